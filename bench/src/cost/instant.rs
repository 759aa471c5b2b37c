//! Workers that answer at once: what they add to a request's time and to the machine's load is as little as can be, so that
//! the gateway's own share shows. They publish what an engine would publish for each prompt; all else is answered by a
//! simulated worker behind them.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::corpus::{Corpus, Prompt};
use super::error::CostError;
use super::kv::{BLOCK, Event, Publisher, encode};
use crate::load::Client;
use crate::sim::Addresses;

/// The request header that says what to answer.
pub(super) const ORDER: &str = "x-bench-order";
/// Blocks of what follows the shared prefixes that a worker's cache holds; the oldest are evicted: 400,000 tokens, as on an
/// 80 GB GPU with an 8-billion-parameter model.
const CAPACITY: usize = 25_000;
/// What opens a chunk of a stream, as long as vLLM's.
const CHUNK: &str = concat!(
    r#"data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"model":"tiny","#,
    r#""choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    "\n\n"
);
const USAGE: &str = concat!(
    r#"data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"model":"tiny","#,
    r#""choices":[],"usage":{"prompt_tokens":100,"total_tokens":108,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":90}}}"#,
    "\n\n"
);
const DONE: &str = "data: [DONE]\n\n";

/// What to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    /// What the prompt is; absent when nothing of it is to be kept in the cache.
    pub(super) prompt: Option<Prompt>,
    /// Chunks of the stream.
    pub(super) chunks: u32,
    /// Time between chunks in milliseconds; 0: as fast as they can be written, each by itself.
    pub(super) pace_ms: u64,
    /// Whether figures of usage follow.
    pub(super) usage: bool,
}

impl Order {
    /// The header's value.
    pub(super) fn header(&self) -> String {
        // Numbers only: there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A worker's cache, as far as its events depend on it. Prefixes stay; what follows them is evicted in the order it came.
#[derive(Debug, Default)]
struct Cache {
    prefixes: HashSet<(usize, u64)>,
    tails: VecDeque<Vec<u64>>,
    blocks: usize,
}

impl Cache {
    /// The events of a prompt that was just computed.
    fn store(&mut self, corpus: &Corpus, prompt: Prompt) -> Bytes {
        let tokens = corpus.tokens(prompt);
        let shared = corpus.shared_tokens(prompt) / BLOCK;
        let total = tokens.len() / BLOCK;
        let prefix: Vec<u64> = (0..shared).map(|block| hash(prompt.bytes, prompt.family, 0, block)).collect();
        let tail: Vec<u64> =
            (shared..total).map(|block| hash(prompt.bytes, prompt.family, prompt.number + 1, block)).collect();
        let mut events = Vec::new();
        if shared > 0 && self.prefixes.insert((prompt.bytes, prompt.family)) {
            events.push(Event::Stored { hashes: &prefix, parent: None, tokens: &tokens[..shared * BLOCK] });
        }
        if !tail.is_empty() {
            let tokens = &tokens[shared * BLOCK..total * BLOCK];
            events.push(Event::Stored { hashes: &tail, parent: prefix.last().copied(), tokens });
        }
        self.blocks += tail.len();
        let mut evicted = Vec::new();
        while self.blocks > CAPACITY {
            let Some(oldest) = self.tails.pop_front() else { break };
            self.blocks -= oldest.len();
            evicted.extend(oldest.into_iter().rev());
        }
        events.extend(evicted.into_iter().map(Event::Removed));
        let batch = encode(&events);
        self.tails.push_back(tail);
        batch
    }
}

/// A block's hash: of SplitMix64's form, so that they are spread as an engine's are.
pub(super) fn hash(bytes: usize, family: u64, number: u64, block: usize) -> u64 {
    let place = (bytes as u64) << 44 ^ family << 56 ^ number << 16 ^ block as u64;
    crate::load::Random::new(place, 3).next()
}

struct Worker {
    corpus: Arc<Corpus>,
    cache: Mutex<Cache>,
    events: Publisher,
    engine: Client,
}

/// Running workers, all on one thread of their own. They end when this is dropped.
pub(super) struct InstantWorkers {
    /// Where they listen, in order.
    pub(super) addresses: Vec<Addresses>,
    /// Their events, in order.
    pub(super) events: Vec<Publisher>,
    _stop: oneshot::Sender<()>,
}

impl InstantWorkers {
    /// Starts workers in front of a simulated one, which answers all but orders.
    ///
    /// # Errors
    /// A socket or a thread that cannot be had.
    pub(super) async fn start(count: usize, corpus: &Arc<Corpus>, engine: SocketAddr) -> Result<Self, CostError> {
        let (ready, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let corpus = corpus.clone();
        let io = |what| move |source| CostError::Io { what, source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io("have a runtime"))?;
        let live = move || {
            runtime.block_on(async {
                let opened = open(count, &corpus, engine).await;
                // Whoever started this waits for it, or is gone and ends this.
                let _ = ready.send(opened);
                let _ = stopped.await;
            });
        };
        std::thread::Builder::new().name("instant-workers".into()).spawn(live).map_err(io("have a thread"))?;
        let gone = |_| CostError::Unexpected("the workers' thread ended".into());
        let (addresses, events) = started.await.map_err(gone)??;
        Ok(Self { addresses, events, _stop: stop })
    }
}

async fn open(
    count: usize,
    corpus: &Arc<Corpus>,
    engine: SocketAddr,
) -> Result<(Vec<Addresses>, Vec<Publisher>), CostError> {
    let (mut addresses, mut publishers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let listen = || {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            Ok((listener.local_addr()?, listener))
        };
        let io = |what| move |source| CostError::Io { what, source };
        let [(http_at, http), (kv_at, kv), (replay_at, replay)] =
            [listen().map_err(io("listen"))?, listen().map_err(io("listen"))?, listen().map_err(io("listen"))?];
        let events = Publisher::bind(kv, replay).await?;
        http.set_nonblocking(true).map_err(io("listen"))?;
        let http = tokio::net::TcpListener::from_std(http).map_err(io("listen"))?;
        let http = http.tap_io(|connection| {
            let _ = connection.set_nodelay(true);
        });
        let (corpus, cache) = (corpus.clone(), Mutex::default());
        let worker = Arc::new(Worker { corpus, cache, events: events.clone(), engine: Client::of(engine) });
        let router = Router::new().fallback(answer).with_state(worker);
        // Ends only with the runtime: accept errors are retried inside.
        tokio::spawn(async move { axum::serve(http, router).await });
        addresses.push(Addresses { http: http_at, kv: kv_at, replay: replay_at });
        publishers.push(events);
    }
    Ok((addresses, publishers))
}

async fn answer(State(worker): State<Arc<Worker>>, request: Request) -> Response {
    let order = request.headers().get(ORDER).and_then(|order| serde_json::from_slice::<Order>(order.as_bytes()).ok());
    let Some(order) = order else { return forward(&worker, request).await };
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return StatusCode::BAD_REQUEST.into_response();
        }
    }
    if let Some(prompt) = order.prompt {
        let batch = worker.cache.lock().unwrap_or_else(PoisonError::into_inner).store(&worker.corpus, prompt);
        worker.events.publish(batch);
    }
    let stream = futures::stream::unfold(0, move |sent| async move {
        if sent == order.chunks {
            return None;
        }
        match (sent, order.pace_ms) {
            (0, _) => {}
            // What was made so far is written before the next is made.
            (_, 0) => tokio::task::yield_now().await,
            (_, pace) => tokio::time::sleep(Duration::from_millis(pace)).await,
        }
        let chunk = match (sent + 1 == order.chunks, order.usage) {
            (false, _) => Bytes::from_static(CHUNK.as_bytes()),
            (true, false) => Bytes::from([CHUNK, DONE].concat()),
            (true, true) => Bytes::from([CHUNK, USAGE, DONE].concat()),
        };
        Some((Ok::<_, Infallible>(chunk), sent + 1))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Hands a request on to the simulated worker.
async fn forward(worker: &Worker, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let Ok(body) = body.collect().await else { return StatusCode::BAD_REQUEST.into_response() };
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let headers: Vec<_> = kind.map(|kind| ("content-type", kind)).into_iter().collect();
    match worker.engine.send(head.method, &path, &headers, body.to_bytes()).await {
        Ok(answer) => {
            let kind = answer.headers.get(header::CONTENT_TYPE).cloned();
            let kind = kind.unwrap_or(HeaderValue::from_static("application/json"));
            (answer.status, [(header::CONTENT_TYPE, kind)], answer.body).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
