//! From files to what a handshake needs: the server's pair, and the authorities that filters' certificates are of.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kinference_api::certificate::{self, NotACertificate, Validity};
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

use super::names::OfNames;
use super::{TlsError, TlsFiles};

pub(super) const CERTIFICATE: &str = "--tls-cert";
pub(super) const KEY: &str = "--tls-key";
pub(super) const CLIENT_CA: &str = "--tls-client-ca";

/// The files' content. Holds the private key: never printed.
pub(super) struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Content {
    /// Reads all files.
    pub(super) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |flag, path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Unreadable { flag, path: path.to_owned(), source })
        };
        Ok(Self {
            certificate: read(CERTIFICATE, &files.certificate)?,
            key: read(KEY, &files.key)?,
            client_ca: files.client_ca.as_deref().map(|path| read(CLIENT_CA, path)).transpose()?,
        })
    }

    /// A number that changes when a file changes.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.certificate, &self.key, &self.client_ca).hash(&mut hasher);
        hasher.finish()
    }
}

/// What handshakes need.
#[derive(Debug, Clone)]
pub struct Material {
    /// How connections are encrypted and authenticated.
    pub config: Arc<ServerConfig>,
    /// When the server's certificate expires; seconds since 1970.
    pub expires: i64,
    /// When the last of the clients' authorities expires; seconds since 1970.
    pub client_ca_expires: Option<i64>,
}

impl Material {
    /// Checks the content as of `now` (seconds since 1970) and makes use of it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its file and what to do.
    pub(super) fn new(files: &TlsFiles, content: &Content, now: i64) -> Result<Self, TlsError> {
        let (leaf, issuers) = certificates(CERTIFICATE, &files.certificate, &content.certificate)?;
        let validity = validity(CERTIFICATE, &files.certificate, &leaf)?;
        let expires = valid_until(validity, CERTIFICATE, &files.certificate, now)?;
        let chain = std::iter::once(leaf).chain(issuers).collect();
        let provider = Arc::new(ring::default_provider());
        let key = private_key(files, &content.key)?;
        let pair = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::OtherKey { key: files.key.clone(), certificate: files.certificate.clone() }
            }
            rustls::Error::InvalidCertificate(reason) => TlsError::BadCertificate {
                flag: CERTIFICATE,
                path: files.certificate.clone(),
                reason: format!("{reason:?}"),
            },
            other => TlsError::BadKey { path: files.key.clone(), reason: other.to_string() },
        })?;

        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::BadKey { path: files.key.clone(), reason: error.to_string() })?;
        let (builder, client_ca_expires) = match (&files.client_ca, &content.client_ca) {
            (Some(path), Some(pem)) => {
                let (roots, expires) = authorities(path, pem, now)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let verifier = verifier.map_err(|error| TlsError::BadCertificate {
                    flag: CLIENT_CA,
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
                let verifier = match files.client_names.as_slice() {
                    [] => verifier,
                    names => Arc::new(OfNames { verifier, names: names.to_vec() }),
                };
                (builder.with_client_cert_verifier(verifier), Some(expires))
            }
            _ => (builder.with_no_client_auth(), None),
        };
        let mut config = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Streams are long. A resumed session would skip the look at the client's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), expires, client_ca_expires })
    }
}

/// A time in RFC 3339; seconds since 1970.
pub(super) fn rfc3339(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The last second of a certificate that is valid now.
fn valid_until(validity: Validity, flag: &'static str, path: &Path, now: i64) -> Result<i64, TlsError> {
    if now > validity.until {
        return Err(TlsError::Expired { flag, path: path.to_owned(), at: rfc3339(validity.until) });
    }
    if now < validity.from {
        return Err(TlsError::NotYetValid { flag, path: path.to_owned(), from: rfc3339(validity.from) });
    }
    Ok(validity.until)
}

fn validity(flag: &'static str, path: &Path, certificate: &CertificateDer<'_>) -> Result<Validity, TlsError> {
    let bad =
        |error: NotACertificate| TlsError::BadCertificate { flag, path: path.to_owned(), reason: error.to_string() };
    certificate::validity(certificate).map_err(bad)
}

/// The first certificate of a file, and those after it.
fn certificates(
    flag: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<(CertificateDer<'static>, Vec<CertificateDer<'static>>), TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| TlsError::NotPem { flag, path: path.to_owned(), reason: error.to_string() })?;
    let mut found = found.into_iter();
    let first = found.next().ok_or_else(|| TlsError::NothingThere {
        flag,
        path: path.to_owned(),
        wanted: "certificate",
        remedy: "it begins with -----BEGIN CERTIFICATE-----",
    })?;
    Ok((first, found.collect()))
}

fn private_key(files: &TlsFiles, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let path = || files.key.clone();
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        PemError::NoItemsFound => TlsError::NothingThere {
            flag: KEY,
            path: path(),
            wanted: "private key",
            remedy: "PKCS#8, PKCS#1 and SEC1 are understood, without a passphrase",
        },
        other => TlsError::NotPem { flag: KEY, path: path(), reason: other.to_string() },
    })
}

/// The authorities, of which some may be over: while they are changed, old and new ones are in one file.
fn authorities(path: &Path, pem: &[u8], now: i64) -> Result<(RootCertStore, i64), TlsError> {
    let (first, others) = certificates(CLIENT_CA, path, pem)?;
    let mut latest = validity(CLIENT_CA, path, &first)?;
    let mut roots = RootCertStore::empty();
    for certificate in std::iter::once(first).chain(others) {
        let validity = validity(CLIENT_CA, path, &certificate)?;
        if validity.until > latest.until {
            latest = validity;
        }
        roots.add(certificate).map_err(|error| TlsError::BadCertificate {
            flag: CLIENT_CA,
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok((roots, valid_until(latest, CLIENT_CA, path, now)?))
}
