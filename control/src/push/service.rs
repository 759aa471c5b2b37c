//! The gRPC service `kinference.snapshot.v1.SnapshotService`: one stream per filter VM.
//!
//! Served by hand rather than from the generated trait, because its messages are encoded already.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use kinference_protocol::v1::{self, filter_message::Message};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::codegen::{BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::channel::{Channel, Cursor};
use super::codec::PreEncoded;
use super::outbound::{Command, Outbound};
use crate::metrics::Metrics;
use crate::state::Input;

const PATH: &str = "/kinference.snapshot.v1.SnapshotService/Stream";

/// The channels by gateway backend ("namespace/name").
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// Why there are none yet; absent once a configuration is in force.
    pub waiting: Option<String>,
    /// By full name.
    pub channels: BTreeMap<String, Arc<Channel>>,
}

/// How long streams wait.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A stream that has been silent for this long gets a heartbeat.
    pub heartbeat: Duration,
    /// For a stream's first message, and for a gateway backend that is not configured (yet).
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(1), patience: Duration::from_secs(10) }
    }
}

#[derive(Debug)]
struct Shared {
    directory: watch::Receiver<Directory>,
    core: mpsc::Sender<Input>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    timing: Timing,
    next_stream: AtomicU64,
}

/// The service, cheap to clone.
#[derive(Debug, Clone)]
pub struct SnapshotServer(Arc<Shared>);

impl SnapshotServer {
    /// Serves the channels of `directory`, tells `core` what filters say, and ends its streams on `shutdown`.
    pub fn new(
        directory: watch::Receiver<Directory>,
        core: mpsc::Sender<Input>,
        metrics: Arc<Metrics>,
        shutdown: CancellationToken,
        timing: Timing,
    ) -> Self {
        Self(Arc::new(Shared { directory, core, metrics, shutdown, timing, next_stream: AtomicU64::new(1) }))
    }
}

impl NamedService for SnapshotServer {
    const NAME: &'static str = kinference_protocol::SERVICE;
}

impl<B> Service<http::Request<B>> for SnapshotServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Method(self.0.clone());
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("SnapshotService has one method: Stream").into_http());
            }
            Ok(Grpc::new(PreEncoded).streaming(method, request).await)
        })
    }
}

struct Method(Arc<Shared>);

impl StreamingService<v1::FilterMessage> for Method {
    type Response = Bytes;
    type ResponseStream = BoxStream<'static, Result<Bytes, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::FilterMessage>>) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move {
            let mut inbound = request.into_inner();
            let hello = first_message(&mut inbound, shared.timing.patience).await?;
            let name = full_name(&hello.gateway_backend);
            let channel = shared.channel(&name).await?;
            let id = shared.next_stream.fetch_add(1, Ordering::Relaxed);
            let cursor = Cursor::at(hello.epoch, hello.sequence);
            let _ = shared.core.send(Input::StreamOpened { stream: id, backend: name, hello }).await;

            let (commands, receiver) = mpsc::channel(8);
            tokio::spawn(read(shared.clone(), id, inbound, commands));
            let outbound = Outbound::new(
                channel,
                cursor,
                receiver,
                shared.shutdown.clone(),
                shared.metrics.clone(),
                shared.timing.heartbeat,
            );
            Ok(Response::new(outbound.into_stream()))
        })
    }
}

/// "name" is short for "default/name".
fn full_name(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("default/{name}") }
}

async fn first_message(inbound: &mut Streaming<v1::FilterMessage>, patience: Duration) -> Result<v1::Hello, Status> {
    let first = tokio::time::timeout(patience, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no Hello arrived in time"))??;
    match first.and_then(|message| message.message) {
        Some(Message::Hello(hello)) => Ok(hello),
        _ => Err(Status::failed_precondition("the first message of a stream must be Hello")),
    }
}

impl Shared {
    /// The channel of a backend, waiting a while for one that is not there: a configuration may be on its way.
    async fn channel(&self, name: &str) -> Result<Arc<Channel>, Status> {
        let mut directory = self.directory.clone();
        let found = directory.wait_for(|directory| directory.channels.contains_key(name));
        let waited = tokio::select! {
            waited = tokio::time::timeout(self.timing.patience, found) => waited,
            () = self.shutdown.cancelled() => return Err(Status::unavailable("the control service is shutting down")),
        };
        if let Ok(Ok(directory)) = waited
            && let Some(channel) = directory.channels.get(name)
        {
            return Ok(channel.clone());
        }
        self.metrics.unknown_backend_streams.inc();
        let directory = self.directory.borrow();
        let status = match &directory.waiting {
            Some(reason) => {
                Status::unavailable(format!("the control service has no valid configuration yet: {reason}"))
            }
            None => {
                let known = directory.channels.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                Status::not_found(format!("there is no GatewayBackend {name:?}; the configuration has: {known}"))
            }
        };
        tracing::warn!(backend = name, "a filter was turned away: {}", status.message());
        Err(status)
    }
}

/// Hands on what a filter says until its stream ends.
async fn read(
    shared: Arc<Shared>,
    stream: u64,
    mut inbound: Streaming<v1::FilterMessage>,
    commands: mpsc::Sender<Command>,
) {
    loop {
        let message = tokio::select! {
            message = inbound.message() => message,
            () = commands.closed() => break,
        };
        let message = match message {
            Ok(Some(message)) => message.message,
            Ok(None) => break,
            Err(status) => {
                tracing::debug!(stream, "a filter's stream broke: {}", status.message());
                break;
            }
        };
        let input = match message {
            Some(Message::Reports(reports)) => Input::Reports { stream, reports },
            Some(Message::Applied(applied)) => Input::Applied { stream, applied },
            Some(Message::Rejected(rejected)) => {
                // A full queue means that the same was asked for already.
                let _ = commands.try_send(match rejected.resync {
                    true => Command::Resync { epoch: rejected.epoch, sequence: rejected.sequence },
                    false => Command::Refused,
                });
                Input::Rejected { stream, rejected }
            }
            // A message of a later protocol version, or a second Hello.
            Some(Message::Hello(_)) | None => continue,
        };
        if shared.core.send(input).await.is_err() {
            break;
        }
    }
    let _ = shared.core.send(Input::StreamClosed { stream }).await;
}
