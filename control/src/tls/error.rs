//! What can be wrong with the files of TLS, and what to do about it.

use std::path::PathBuf;

use thiserror::Error;

/// Why a certificate, a key or an authority cannot be used. No message holds anything of a key.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{flag} {}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no PEM section of the kind that is needed.
    #[error("{flag} {}: there is no {wanted} in PEM form in it; {remedy}", path.display())]
    NothingThere {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The PEM sections are damaged.
    #[error("{flag} {}: is not valid PEM: {reason}; write the file anew", path.display())]
    NotPem {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// A section is no certificate, or one that cannot be used.
    #[error("{flag} {}: the certificate cannot be used: {reason}; issue it anew", path.display())]
    BadCertificate {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It is too late.
    #[error("{flag} {}: the certificate expired at {at}; renew it", path.display())]
    Expired {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// When, in RFC 3339.
        at: String,
    },
    /// It is too early.
    #[error("{flag} {}: the certificate is valid from {from} only; is this machine's clock right?", path.display())]
    NotYetValid {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// From when on, in RFC 3339.
        from: String,
    },
    /// Certificate and key are not of one pair.
    #[error(
        "--tls-key {}: is not the key of the certificate in --tls-cert {}; put both files of one pair in place",
        key.display(),
        certificate.display()
    )]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The key is of a kind that is not supported.
    #[error("--tls-key {}: the key cannot be used: {reason}; use an ECDSA (P-256), Ed25519 or RSA (2048 bits or more) key", path.display())]
    BadKey {
        /// The key's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
