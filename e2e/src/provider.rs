//! A provider outside: an OpenAI-compatible server that says what it got, and fails on demand.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::stream;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// Pieces of a streamed answer, and the pause between them.
const PIECES: usize = 5;
const PAUSE: Duration = Duration::from_millis(40);

/// A request as the provider got it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Value,
    /// The server name of the TLS handshake.
    pub server_name: Option<String>,
}

impl Seen {
    /// A header's value; empty when it is not there.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    status: Mutex<StatusCode>,
    seen: Mutex<Vec<Seen>>,
}

/// A running provider. Dropping it ends it.
#[derive(Debug)]
pub struct Provider {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Provider {
    /// Starts one that speaks plain HTTP. Its answers say its name.
    ///
    /// # Panics
    /// No port is free.
    pub async fn start(name: &'static str) -> Self {
        Self::serve(name, None).await
    }

    /// Starts one that speaks TLS as `localhost`, and gives the certificate of its authority in PEM.
    ///
    /// # Panics
    /// No port is free.
    pub async fn start_tls(name: &'static str) -> (Self, String) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key")).expect("a CA");
        let key = KeyPair::generate().expect("a key");
        let mut names = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        // Of the same name as its issuer it would pass for self-signed.
        names.distinguished_name.push(DnType::CommonName, name);
        let certificate = names.signed_by(&key, &authority).expect("a certificate");
        let pair = (vec![certificate.der().clone()], key.serialize_der().try_into().expect("a private key"));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config =
            config.expect("versions").with_no_client_auth().with_single_cert(pair.0, pair.1).expect("a key pair");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        (Self::serve(name, Some(TlsAcceptor::from(Arc::new(config)))).await, authority.pem())
    }

    async fn serve(name: &'static str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared { name, status: Mutex::new(StatusCode::OK), seen: Mutex::default() });
        let router = Router::new().fallback(any(answer)).with_state(shared.clone());
        let task = tokio::spawn(async move {
            match tls {
                None => {
                    let service = router.into_make_service_with_connect_info::<Peer>();
                    axum::serve(listener, service).await.expect("a server");
                }
                Some(acceptor) => {
                    let service = router.into_make_service_with_connect_info::<Peer>();
                    axum::serve(Tls { listener, acceptor }, service).await.expect("a server");
                }
            }
        });
        Self { address, shared, task }
    }

    /// What it answers from now on.
    pub fn set_status(&self, status: u16) {
        *lock(&self.shared.status) = StatusCode::from_u16(status).expect("a status");
    }

    /// Takes what it got since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *lock(&self.shared.seen))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a connection.
#[derive(Debug, Clone)]
struct Peer {
    server_name: Option<String>,
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(_: axum::serve::IncomingStream<'_, TcpListener>) -> Self {
        Self { server_name: None }
    }
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Tls>> for Peer {
    fn connect_info(stream: axum::serve::IncomingStream<'_, Tls>) -> Self {
        Self { server_name: stream.io().get_ref().1.server_name().map(str::to_owned) }
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else { continue };
            // Whoever does not like the certificate goes away again.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    axum::extract::ConnectInfo(peer): axum::extract::ConnectInfo<Peer>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let server_name = peer.server_name;
    lock(&shared.seen).push(Seen { path, headers, body: body.clone(), server_name });
    let status = *lock(&shared.status);
    let name = shared.name;
    if status != StatusCode::OK {
        let error = json!({"error": {"message": format!("{name} says no"), "type": "x", "param": null, "code": null}});
        return (status, [("retry-after", "7"), ("x-secret-of-provider", "1")], axum::Json(error)).into_response();
    }
    let usage = json!({"prompt_tokens": 11, "completion_tokens": PIECES, "total_tokens": 16});
    if body["stream"] == true {
        let pieces = (0..=PIECES).map(move |number| {
            if number == PIECES {
                return "data: [DONE]\n\n".to_owned();
            }
            let choice = json!({"index": 0, "delta": {"content": name}, "finish_reason": null});
            format!("data: {}\n\n", json!({"object": "chat.completion.chunk", "choices": [choice]}))
        });
        let pieces = stream::unfold(pieces, |mut pieces| async {
            tokio::time::sleep(PAUSE).await;
            Some((Ok::<_, Infallible>(pieces.next()?), pieces))
        });
        return ([("content-type", "text/event-stream")], Body::from_stream(pieces)).into_response();
    }
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"});
    axum::Json(json!({"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}))
        .into_response()
}
