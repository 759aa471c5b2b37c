//! TLS on the gRPC port: filters and Envoys show a certificate, and see one.
//!
//! [`material`] turns the files' content into what TLS needs or says what is wrong with it, [`names`] lets in
//! certain names alone, [`reload`] follows the files, [`accept`] does the handshakes. What is served over it knows nothing of it.

pub mod accept;
pub mod error;
pub mod material;
mod names;
pub mod reload;

use std::path::PathBuf;

use rustls::pki_types::ServerName;

pub use error::TlsError;
pub use names::client_name;
pub use reload::{Tls, TlsStatus};

/// Where certificate, key and authority are, and who of the authority's is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate in PEM form, and after it those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key in PEM form.
    pub key: PathBuf,
    /// The authorities of filters' certificates in PEM form. Without it filters are not authenticated.
    pub client_ca: Option<PathBuf>,
    /// DNS names of which a filter's certificate must have one; empty when any certificate of the authorities will do.
    pub client_names: Vec<ServerName<'static>>,
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
