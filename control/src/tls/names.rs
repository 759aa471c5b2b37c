//! Which of an authority's certificates are let in, where it signs for others than filters too.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// A DNS name that a client's certificate may have.
///
/// # Errors
/// Text that is no DNS name, with what to write.
pub fn client_name(text: &str) -> Result<ServerName<'static>, String> {
    match ServerName::try_from(text.to_owned()) {
        Ok(name @ ServerName::DnsName(_)) => Ok(name),
        _ => Err("not a DNS name; write one of the certificate's subject alternative names, such as gateway".into()),
    }
}

/// Takes what another verifier takes, when the certificate is for one of these names.
#[derive(Debug)]
pub(super) struct OfNames {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Never empty.
    pub(super) names: Vec<ServerName<'static>>,
}

impl ClientCertVerifier for OfNames {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let mut refused = Error::General("no name is let in".into());
        for name in &self.names {
            match verify_server_name(&certificate, name) {
                Ok(()) => return Ok(verified),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
