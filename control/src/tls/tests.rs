//! Files that cannot be used, rotation, and who is let in.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::accept::{self, Limits};
use super::material::{Content, Material};
use super::reload::now;
use super::testing::{Authority, Folder, Pair, client};
use super::{Tls, TlsError, TlsFiles, client_name};
use crate::metrics::Metrics;

const DEADLINE: Duration = Duration::from_secs(30);

/// What is said of the folder's files.
fn judged(folder: &Folder) -> Result<Material, String> {
    let files = folder.files();
    let material = Content::read(&files).and_then(|content| Material::new(&files, &content, now()));
    material.map_err(|error: TlsError| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn what_cannot_be_used_is_named_with_its_file_and_a_remedy() {
    let folder = Folder::new();
    let (ca, good) = (Authority::new("ca"), Authority::new("ca").issue());
    let damaged = good.certificate.replace("-----END CERTIFICATE-----", "");
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let (expired, early) = (ca.issue_for(2001, 2002), ca.issue_for(2079, 2080));
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (file, text, expected) in [
        ("tls.crt", "", "--tls-cert tls.crt: there is no certificate in PEM form in it; it begins with -----BEGIN"),
        ("tls.crt", &*good.key, "--tls-cert tls.crt: there is no certificate in PEM form in it"),
        ("tls.crt", &damaged, "--tls-cert tls.crt: is not valid PEM: "),
        ("tls.crt", no_certificate, "--tls-cert tls.crt: the certificate cannot be used: "),
        (
            "tls.crt",
            &expired.certificate,
            "--tls-cert tls.crt: the certificate expired at 2002-01-01T00:00:00Z; renew it",
        ),
        ("tls.crt", &early.certificate, "--tls-cert tls.crt: the certificate is valid from 2079-01-01T00:00:00Z only"),
        (
            "tls.crt",
            &ca.issue().certificate,
            "--tls-key tls.key: is not the key of the certificate in --tls-cert tls.crt; put both files",
        ),
        ("tls.key", &good.certificate, "--tls-key tls.key: there is no private key in PEM form in it; PKCS#8"),
        ("tls.key", encrypted, "--tls-key tls.key: there is no private key in PEM form in it"),
        ("ca.crt", "x", "--tls-client-ca ca.crt: there is no certificate in PEM form in it"),
        ("ca.crt", &expired.certificate, "--tls-client-ca ca.crt: the certificate expired at 2002-01-01T00:00:00Z"),
    ] {
        folder.write(&good, &ca.pem());
        judged(&folder).expect("good files");
        folder.write_one(file, text);
        let error = judged(&folder).expect_err(expected);
        assert!(error.starts_with(expected), "{error}\nis not: {expected}");
        assert!(!error.contains("PRIVATE"), "{error}");
    }
    std::fs::remove_file(folder.files().key).unwrap();
    let error = judged(&folder).unwrap_err();
    assert!(error.starts_with("--tls-key tls.key: cannot be read: No such file"), "{error}");
}

#[test]
fn an_old_authority_may_be_over_while_a_new_one_is_there() {
    let folder = Folder::new();
    let (ca, old) = (Authority::new("ca"), Authority::new("old").issue_for(2001, 2002).certificate);
    folder.write(&ca.issue(), &format!("{old}{}", ca.pem()));
    let material = judged(&folder).unwrap();
    assert!(material.client_ca_expires.is_some_and(|expires| expires > material.expires));
}

#[test]
fn a_bad_change_keeps_the_last_good_pair_and_says_so_once() {
    let folder = Folder::new();
    let ca = Authority::new("ca");
    folder.write(&ca.issue(), &ca.pem());
    let metrics = Arc::new(Metrics::default());
    let (tls, mut follower) = Tls::load(folder.files(), metrics.clone()).unwrap();
    let first = tls.config();
    let mut look = || follower.take(Content::read(&folder.files()), now());

    let original = std::fs::read_to_string(folder.path().join("tls.key")).unwrap();
    folder.write_one("tls.key", &ca.issue().key);
    look();
    look();
    assert!(Arc::ptr_eq(&first, &tls.config()));
    let problem = tls.status().problem.expect("a problem");
    assert!(problem.contains("is not the key of the certificate"), "{problem}");
    let text = metrics.text();
    assert!(text.contains(r#"kinference_tls_reloads_total{kind="error"} 1"#), "{text}");
    assert!(
        text.contains(r#"kinference_tls_certificate_expiry_timestamp_seconds{kind="server"} 3471292800"#),
        "{text}"
    );

    folder.write_one("tls.key", &original);
    look();
    assert_eq!(tls.status().problem, None);
    assert!(Arc::ptr_eq(&first, &tls.config()));

    folder.write(&ca.issue_for(2020, 2070), &ca.pem());
    look();
    assert!(!Arc::ptr_eq(&first, &tls.config()));
    assert_eq!(tls.status().certificate_expires, "2070-01-01T00:00:00Z");
    std::fs::remove_dir_all(folder.path()).unwrap();
    look();
    assert!(tls.status().problem.is_some_and(|problem| problem.contains("cannot be read")));
    assert_eq!(tls.status().certificate_expires, "2070-01-01T00:00:00Z");
}

/// A server that says "hello" to everybody whom it lets in.
struct Server {
    address: SocketAddr,
    tls: Tls,
    metrics: Arc<Metrics>,
    _stops: DropGuard,
}

async fn serve(folder: &Folder, limits: Limits) -> Server {
    serve_with(folder.files(), limits).await
}

async fn serve_with(files: TlsFiles, limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (metrics, shutdown) = (Arc::new(Metrics::default()), CancellationToken::new());
    let (tls, follower) = Tls::load(files, metrics.clone()).unwrap();
    let (sender, mut connections) = mpsc::channel(4);
    tokio::spawn(follower.run(shutdown.clone()));
    tokio::spawn(accept::run(listener.into(), tls.clone(), sender, limits, metrics.clone(), shutdown.clone()));
    tokio::spawn(async move {
        while let Some(Ok(mut connection)) = connections.recv().await {
            tokio::spawn(async move {
                connection.write_all(b"hello").await?;
                connection.shutdown().await
            });
        }
    });
    Server { address, tls, metrics, _stops: shutdown.drop_guard() }
}

/// What the server says to a client. One without a certificate may believe for a while that it was let in.
async fn said(server: &Server, config: Arc<ClientConfig>) -> std::io::Result<String> {
    let stream = TcpStream::connect(server.address).await?;
    let mut stream = TlsConnector::from(config).connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < DEADLINE, "{what}: never");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn only_holders_of_a_certificate_of_the_authority_are_let_in() {
    let folder = Folder::new();
    let (ours, clients, strangers) = (Authority::new("ours"), Authority::new("clients"), Authority::new("strangers"));
    folder.write(&ours.issue(), &clients.pem());
    let server = serve(&folder, Limits::default()).await;

    assert_eq!(said(&server, client(&ours, Some(&clients.issue()))).await.unwrap(), "hello");
    said(&server, client(&ours, None)).await.unwrap_err();
    let refused = || server.tls.status().last_refused.unwrap_or_default();
    until("the reason", async || refused().contains("127.0.0.1: peer sent no certificates")).await;
    said(&server, client(&ours, Some(&strangers.issue()))).await.unwrap_err();
    said(&server, client(&ours, Some(&clients.issue_for(2001, 2002)))).await.unwrap_err();
    // Plain text gets an alert and nothing else.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(answer.len() < 16 && !answer.starts_with(b"hello"), "{answer:?}");
    let count = |line: &str| server.metrics.text().contains(line);
    until("counts", async || count(r#"tls_handshakes_total{kind="refused"} 4"#)).await;
    assert!(count(r#"tls_handshakes_total{kind="ok"} 1"#), "{}", server.metrics.text());
}

/// The authority signs for others too: all of these certificates are for "localhost".
#[tokio::test]
async fn of_the_authoritys_certificates_only_those_with_a_name_are_let_in() {
    let folder = Folder::new();
    let ca = Authority::new("ca");
    folder.write(&ca.issue(), &ca.pem());
    let server = async |names: &[&str]| {
        let client_names = names.iter().map(|name| client_name(name).unwrap()).collect();
        serve_with(TlsFiles { client_names, ..folder.files() }, Limits::default()).await
    };
    let shows = ca.issue();
    let named = server(&["kinference-gateway", "localhost"]).await;
    assert_eq!(said(&named, client(&ca, Some(&shows))).await.unwrap(), "hello");
    let stranger = Authority::new("ca").issue();
    said(&named, client(&ca, Some(&stranger))).await.unwrap_err();

    let others = server(&["kinference-gateway"]).await;
    said(&others, client(&ca, Some(&shows))).await.unwrap_err();
    let refused = || others.tls.status().last_refused.unwrap_or_default();
    until("the reason", async || refused().contains("kinference-gateway")).await;
    for bad in ["", "10.0.0.1", "a b"] {
        assert!(client_name(bad).unwrap_err().starts_with("not a DNS name"), "{bad}");
    }
}

#[tokio::test]
async fn rotated_files_are_used_without_a_restart() {
    let folder = Folder::new();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (before, after): (Pair, Pair) = (old.issue(), new.issue());
    folder.write(&old.issue(), &old.pem());
    let server = serve(&folder, Limits::default()).await;
    assert_eq!(said(&server, client(&old, Some(&before))).await.unwrap(), "hello");
    said(&server, client(&old, Some(&after))).await.unwrap_err();

    folder.write(&new.issue(), &new.pem());
    until("the new authority", async || said(&server, client(&new, Some(&after))).await.is_ok()).await;
    said(&server, client(&new, Some(&before))).await.unwrap_err();
}

#[tokio::test]
async fn who_never_shakes_hands_holds_up_nobody_and_is_dropped() {
    let folder = Folder::new();
    let ca = Authority::new("ca");
    folder.write(&ca.issue(), &ca.pem());
    let server = serve(&folder, Limits { time: Duration::from_secs(1), at_once: 2 }).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let shows = ca.issue();
    assert_eq!(said(&server, client(&ca, Some(&shows))).await.unwrap(), "hello");
    let mut byte = [0];
    let dropped = tokio::time::timeout(DEADLINE, silent.read(&mut byte)).await.expect("it is dropped");
    assert!(matches!(dropped, Ok(0) | Err(_)), "{dropped:?}");
    assert!(server.metrics.text().contains(r#"tls_handshakes_total{kind="timeout"} 1"#), "{}", server.metrics.text());
}

#[tokio::test]
async fn too_many_handshakes_at_once_are_turned_away() {
    let folder = Folder::new();
    let ca = Authority::new("ca");
    folder.write(&ca.issue(), &ca.pem());
    let server = serve(&folder, Limits { time: DEADLINE, at_once: 1 }).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    let shows = ca.issue();
    until("turned away", async || said(&server, client(&ca, Some(&shows))).await.is_err()).await;
    assert!(server.metrics.text().contains(r#"kind="busy""#), "{}", server.metrics.text());
    drop(silent);
    until("room again", async || said(&server, client(&ca, Some(&shows))).await.is_ok()).await;
}
