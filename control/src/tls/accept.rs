//! Handshakes: each in a task of its own, within a time, and not too many at once. Nobody waits for another's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

use super::Tls;
use crate::metrics::Metrics;

/// Bounds of handshakes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For one handshake.
    pub time: Duration,
    /// Handshakes at once; who comes beyond is turned away and may come again.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(10), at_once: 256 }
    }
}

/// Accepts connections until shutdown, and hands on those whose handshake is done.
pub async fn run(
    mut incoming: TcpIncoming,
    tls: Tls,
    connections: mpsc::Sender<io::Result<Connection>>,
    limits: Limits,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(limits.at_once));
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = incoming.next() => accepted,
            // Takes the finished ones out.
            Some(_) = handshakes.join_next() => continue,
            () = shutdown.cancelled() => return,
        };
        let stream = match accepted {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::debug!("a connection could not be accepted: {error}");
                // Most likely there are no file descriptors left: going round at once would help nobody.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            None => return,
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            metrics.tls_handshake("busy");
            continue;
        };
        let (acceptor, tls) = (TlsAcceptor::from(tls.config()), tls.clone());
        let (connections, metrics) = (connections.clone(), metrics.clone());
        handshakes.spawn(async move {
            let peer = stream.peer_addr().map_or_else(|_| "somebody gone".to_owned(), |peer| peer.ip().to_string());
            let (kind, done) = match tokio::time::timeout(limits.time, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => ("ok", Ok(stream)),
                Ok(Err(error)) => ("refused", Err(error.to_string())),
                Err(_) => ("timeout", Err(format!("no handshake within {} s", limits.time.as_secs_f32()))),
            };
            drop(permit);
            metrics.tls_handshake(kind);
            match done {
                // The server is stopping when nobody takes it.
                Ok(stream) => drop(connections.send(Ok(Connection(Box::new(stream)))).await),
                Err(reason) => {
                    tracing::debug!(peer, "TLS handshake: {reason}");
                    tls.refuse(format!("{peer}: {reason}"));
                }
            }
        });
    }
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection(Box<TlsStream<TcpStream>>);

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.0.get_ref().0.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
