//! Mutual TLS between Envoy and the control service.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kinference_bench::stack::{ControlTls, Stack, StackOptions, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

use crate::common::{alone, ask, instant_workers, prompt};

/// The files of an authority and of two certificates that it signed; removed at the end.
struct Certificates(PathBuf);

impl Certificates {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("kinference-e2e-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    /// Puts those of a new authority in place, all valid to the first day of a year. Each file is renamed into its place.
    fn issue(&self, until: i32) {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        // With the name of what it signs, that would look signed by itself.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        for name in ["control", "envoy"] {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            self.put(&format!("{name}.key"), &key.serialize_pem());
            self.put(&format!("{name}.crt"), &certificate.pem());
        }
        self.put("ca.crt", &authority.pem());
    }

    fn put(&self, name: &str, text: &str) {
        let written = self.path(&format!(".{name}"));
        std::fs::write(&written, text).expect("a file");
        std::fs::rename(&written, self.path(name)).expect("a file in its place");
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.0).join(name)
    }

    fn files(&self) -> ControlTls {
        let pair = |name: &str| (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        ControlTls { ca: self.path("ca.crt"), control: pair("control"), envoy: pair("envoy") }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the gRPC port answers to a client without TLS.
fn said_in_plain_text(stack: &Stack) -> Vec<u8> {
    let mut stream = TcpStream::connect(stack.control_grpc()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    // The preface of HTTP/2, and an empty frame of settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("a preface");
    let mut answer = Vec::new();
    // A reset is an answer too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn envoy_and_the_control_service_authenticate_each_other_and_take_rotated_certificates() {
    alone(120, async {
        let certificates = Certificates::new();
        certificates.issue(2080);
        let options = StackOptions {
            sim: instant_workers(2),
            control_tls: Some(certificates.files()),
            ..StackOptions::default()
        };
        let mut stack = match Stack::start(options).await {
            Ok(stack) => stack,
            Err(error) => panic!("{error}"),
        };
        let client = stack.client();
        let first = ask(&stack, &client, &prompt(1, 400)).await;
        let link = stack.status().await.expect("a status")["link"].clone();
        assert_eq!(link["confidentiality"], "mutualTls");
        assert_eq!(link["tls"]["certificateExpires"], "2080-01-01T00:00:00Z");

        let answer = said_in_plain_text(&stack);
        // An alert of TLS, which begins with 21; no frame of HTTP/2.
        assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
        // The alert may be here before it is counted.
        let counted = until("a refused handshake", Duration::from_secs(30), async || {
            let metrics = stack.control_admin().get("/metrics").await.map_err(|error| error.to_string())?.text();
            if metrics.contains("kinference_tls_handshakes_total{kind=\"refused\"}") { Ok(()) } else { Err(metrics) }
        });
        counted.await.expect("a count");

        certificates.issue(2070);
        let rotated = until("the new certificate", Duration::from_secs(30), async || {
            let status = stack.status().await.map_err(|error| error.to_string())?;
            let tls = &status["link"]["tls"];
            if tls["certificateExpires"] == "2070-01-01T00:00:00Z" { Ok(()) } else { Err(tls.to_string()) }
        });
        rotated.await.expect("files that are read anew");
        // Streams are open yet; the new ones must show the new certificate, as nothing of the old authority is left.
        stack.restart_control().await.expect("the control service starts again");
        stack.settle().await.expect("a settled stack");
        let told = until("a decision on a new snapshot", Duration::from_secs(30), async || {
            let epoch = ask(&stack, &client, &prompt(2, 400)).await.epoch;
            if epoch == first.epoch { Err(format!("epoch {epoch} is the old one")) } else { Ok(()) }
        });
        told.await.expect("a snapshot by a new stream");
    });
}
