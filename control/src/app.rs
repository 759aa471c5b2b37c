//! Puts the parts together: the core in one task, and around it the edges that read, listen and send.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::EndpointDiscoveryServiceServer;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::admin::{self, Admin};
use crate::cli::Args;
use crate::clock::Clock;
use crate::core::{Core, Outputs};
use crate::eds::{EdsService, Peers};
use crate::metrics::Metrics;
use crate::push::{Confidentiality, Directory, SnapshotServer, Timing};
use crate::source::kubernetes::Kubernetes;
use crate::source::{Loader, watch as files};
use crate::statuses::Writer;
use crate::tls::{Tls, accept};

/// How long open streams have to end when the service stops.
const GRACE: Duration = Duration::from_secs(5);
/// Inputs that may wait for the core; beyond, whoever has more waits.
const QUEUE: usize = 1024;
/// Connections that may wait for the gRPC server after their handshake.
const CONNECTIONS: usize = 16;

/// The running service.
#[derive(Debug)]
pub struct Service {
    /// Where the gRPC services listen.
    pub grpc: SocketAddr,
    /// Where the HTTP pages are.
    pub admin: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

/// Where the configuration comes from.
enum Source {
    Folder(Box<Loader>),
    Cluster(Box<Kubernetes>),
}

/// Completes on SIGTERM or SIGINT.
///
/// # Errors
/// When the signals cannot be listened to.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be listened to")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be listened to")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

impl Service {
    /// Binds both addresses and starts everything. A configuration that is not valid does not keep it from starting: it
    /// is not ready until that is mended.
    ///
    /// # Errors
    /// When an address cannot be bound, the files of TLS cannot be used, or it is not known how to reach the cluster.
    pub async fn start(args: &Args) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let tls = args.tls.files().map(|files| Tls::load(files, metrics.clone())).transpose()?;
        let (tls, follower) = tls.unzip();
        let listener = bind(args.listen, "--listen").await?;
        let admin_listener = bind(args.admin, "--admin").await?;
        let (grpc, admin) = (listener.local_addr()?, admin_listener.local_addr()?);

        let shutdown = CancellationToken::new();
        let peers = Arc::new(Peers::default());
        let (inputs, input_queue) = mpsc::channel(QUEUE);
        let (questions, question_queue) = mpsc::channel(16);
        let waiting = "the configuration has not been read yet";
        let (directory, directory_seen) =
            watch::channel(Directory { waiting: Some(waiting.to_owned()), ..Directory::default() });
        let (assignments, assignments_seen) = watch::channel(None);
        let (readiness, readiness_seen) = watch::channel(Some(waiting.to_owned()));

        let clock = Clock::start();
        let outputs = Outputs { directory, assignments, readiness };
        let confidentiality = Confidentiality::of(grpc.ip(), args.tls.guard());
        warn_of_exposure(args, confidentiality);
        let core = Core::new(clock, metrics.clone(), outputs, inputs.clone(), confidentiality);
        let snapshots =
            SnapshotServer::new(directory_seen, inputs.clone(), metrics.clone(), shutdown.clone(), Timing::default());
        let eds = EdsService::new(assignments_seen, peers.clone(), metrics.clone(), shutdown.clone());
        let pages = Admin {
            metrics: metrics.clone(),
            readiness: readiness_seen,
            questions: questions.clone(),
            peers,
            tls: tls.clone(),
        };
        let source = match &args.config {
            Some(folder) => Source::Folder(Box::new(Loader::new(folder.clone(), args.secrets.clone()))),
            None => Source::Cluster(Box::new(Kubernetes::start(&args.cluster, metrics.clone()).await?)),
        };

        let mut tasks = JoinSet::new();
        tasks.spawn(core.run(input_queue, question_queue, shutdown.clone()));
        match source {
            Source::Folder(loader) => tasks.spawn(files::run(*loader, inputs, shutdown.clone())),
            Source::Cluster(cluster) => {
                let client = cluster.client();
                let own = client.default_namespace().to_owned();
                let writer = Writer {
                    namespace: args.cluster.lease_namespace.clone().unwrap_or(own),
                    client,
                    lease: args.cluster.lease_name.clone(),
                    identity: args.cluster.identity(),
                    clock,
                    questions,
                    currents: cluster.statuses(),
                    metrics: metrics.clone(),
                };
                tasks.spawn(writer.run(shutdown.clone()));
                tasks.spawn(cluster.run(inputs, shutdown.clone()))
            }
        };
        if let Some(follower) = follower {
            tasks.spawn(follower.run(shutdown.clone()));
        }
        tasks.spawn(serve_grpc(listener, tls, snapshots, eds, shutdown.clone(), metrics));
        tasks.spawn(serve_admin(admin_listener, pages, shutdown.clone()));
        Ok(Self { grpc, admin, shutdown, tasks })
    }

    /// Returns when a part of the service ended by itself, which none should: better to end and be restarted than to
    /// serve a state that no longer changes.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Err(error)) => anyhow::anyhow!("a part of the service failed: {error}"),
            Some(Ok(())) | None => anyhow::anyhow!("a part of the service ended by itself; the log says why"),
        }
    }

    /// Ends all streams, gives them a few seconds, and returns when everything has stopped.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{flag} {address} cannot be bound; is another process listening there?"))
}

/// Says what anybody who reaches a port can do.
fn warn_of_exposure(args: &Args, confidentiality: Confidentiality) {
    if let Some(refusal) = confidentiality.refusal() {
        tracing::warn!("--listen {}: reachable from other machines by {confidentiality}: {refusal}", args.listen);
    }
    if !args.admin.ip().to_canonical().is_loopback() {
        tracing::warn!(
            "--admin {}: reachable from other machines, without authentication; guard it by a network policy",
            args.admin
        );
    }
}

async fn serve_grpc(
    listener: TcpListener,
    tls: Option<Tls>,
    snapshots: SnapshotServer,
    eds: EdsService,
    shutdown: CancellationToken,
    metrics: Arc<Metrics>,
) {
    // Small messages must not wait for one another, and a proxy that vanished must show within half a minute.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(Duration::from_secs(15)));
    let server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .add_service(snapshots)
        .add_service(EndpointDiscoveryServiceServer::new(eds));
    let stopped = shutdown.clone().cancelled_owned();
    let served = match tls {
        None => server.serve_with_incoming_shutdown(incoming, stopped).await,
        Some(tls) => {
            let (sender, connections) = mpsc::channel(CONNECTIONS);
            let accepting = accept::run(incoming, tls, sender, accept::Limits::default(), metrics, shutdown);
            let serving = server.serve_with_incoming_shutdown(ReceiverStream::new(connections), stopped);
            tokio::join!(accepting, serving).1
        }
    };
    if let Err(error) = served {
        tracing::error!("the gRPC server stopped: {error}");
    }
}

async fn serve_admin(listener: TcpListener, pages: Admin, shutdown: CancellationToken) {
    let served = axum::serve(listener, admin::router(pages)).with_graceful_shutdown(shutdown.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!("the admin server stopped: {error}");
    }
}

#[cfg(test)]
mod tests;
