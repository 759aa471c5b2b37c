//! Certificates of a test's own authorities, in files of its own.

use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::TlsFiles;
use crate::testing;

/// A certificate and its key, in PEM form.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Signs certificates for "localhost".
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = params(Vec::new(), 2020, 2090);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// One that is valid in our time.
    pub(super) fn issue(&self) -> Pair {
        self.issue_for(2020, 2080)
    }

    /// One that is valid from the first day of one year to the first of another.
    pub(super) fn issue_for(&self, from: i32, until: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params(vec!["localhost".into()], from, until).signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn params(names: Vec<String>, from: i32, until: i32) -> CertificateParams {
    let mut params = CertificateParams::new(names).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// The three files, removed at the end.
pub(super) struct Folder(testing::Folder);

impl Folder {
    pub(super) fn new() -> Self {
        Self(testing::Folder::new())
    }

    pub(super) fn files(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.path().join("tls.crt"),
            key: self.path().join("tls.key"),
            client_ca: Some(self.path().join("ca.crt")),
            client_names: Vec::new(),
        }
    }

    pub(super) fn write(&self, pair: &Pair, client_ca: &str) {
        for (name, text) in [("tls.crt", &*pair.certificate), ("tls.key", &*pair.key), ("ca.crt", client_ca)] {
            self.write_one(name, text);
        }
    }

    pub(super) fn write_one(&self, name: &str, text: &str) {
        self.0.write(name, text);
    }

    pub(super) fn path(&self) -> &Path {
        &self.0.0
    }
}

/// A client that trusts `server_ca` and shows a certificate, or none.
pub(super) fn client(server_ca: &Authority, shows: Option<&Pair>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server_ca.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shows {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap()).unwrap()
        }
    })
}
