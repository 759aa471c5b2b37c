//! The ZMQ side: a subscription, and a replay as a stream of frames. Every connection is a socket of its own: the library
//! would connect again by itself, but silently, and after up to 30 seconds.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc::Receiver as Monitor;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketEvent, SocketRecv, SocketSend, SubSocket, ZmqError, ZmqMessage};

use super::feed::{Publisher, Timing};
use super::sequencer::Frame;

/// Number that ends a replay.
const END: u64 = u64::MAX;
/// Replayed frames that are read ahead.
const READ_AHEAD: usize = 256;

/// Why a socket is of no use.
#[derive(Debug, Error)]
pub(super) enum SocketError {
    #[error("no connection to {endpoint} within {} ms", after.as_millis())]
    Timeout { endpoint: String, after: Duration },
    #[error("{endpoint}: {source}")]
    Zmq { endpoint: String, source: ZmqError },
}

/// What a subscription says.
#[derive(Debug)]
pub(super) enum Heard {
    Frame(Frame),
    /// A message that is not `[topic, sequence, payload]`.
    NotAFrame,
    /// The publisher is there.
    Connected,
    /// The publisher is gone.
    Disconnected,
}

/// A subscription to one publisher.
pub(super) struct Subscription {
    socket: SubSocket,
    monitor: Monitor<SocketEvent>,
}

impl Subscription {
    /// Connects to the publisher, or waits for it at an address of our own.
    pub(super) async fn open(publisher: &Publisher, topic: &str, timing: &Timing) -> Result<Self, SocketError> {
        let mut socket = SubSocket::new();
        let monitor = socket.monitor();
        let endpoint = match publisher {
            Publisher::Connect(endpoint) | Publisher::Bind(endpoint) => endpoint.clone(),
        };
        let opened = timeout(timing.connect, async {
            socket.subscribe(topic).await?;
            match publisher {
                Publisher::Connect(endpoint) => socket.connect(endpoint).await,
                Publisher::Bind(endpoint) => socket.bind(endpoint).await.map(|_| ()),
            }
        });
        match opened.await {
            Ok(Ok(())) => Ok(Self { socket, monitor }),
            Ok(Err(source)) => Err(SocketError::Zmq { endpoint, source }),
            Err(_) => Err(SocketError::Timeout { endpoint, after: timing.connect }),
        }
    }

    /// The next thing that happens. May be dropped before it completes.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                message = self.socket.recv() => return match message {
                    Ok(message) => frame(&message).map_or(Heard::NotAFrame, Heard::Frame),
                    Err(_) => Heard::Disconnected,
                },
                event = self.monitor.next() => match event {
                    Some(SocketEvent::Connected(..) | SocketEvent::Accepted(..)) => return Heard::Connected,
                    Some(SocketEvent::Disconnected(_)) => return Heard::Disconnected,
                    Some(_) => {}
                    None => return Heard::Disconnected,
                },
            }
        }
    }
}

/// Sequence number and payload are the last two parts of a message, in a subscription and in both forms of a replay.
fn frame(message: &ZmqMessage) -> Option<Frame> {
    let payload = message.get(message.len().checked_sub(1)?)?;
    let number = message.get(message.len().checked_sub(2)?)?;
    let sequence = u64::from_be_bytes(number.as_ref().try_into().ok()?);
    Some(Frame { sequence, payload: payload.clone() })
}

/// What a replay says.
#[derive(Debug)]
pub(super) enum Replayed {
    Frame(Frame),
    End,
    Failed,
}

/// A replay under way; it ends when this is dropped.
pub(super) struct Replay {
    frames: mpsc::Receiver<Replayed>,
    task: JoinHandle<()>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replay {
    /// Asks for all frames from `from` on, after `wait`.
    pub(super) fn start(endpoint: String, from: u64, wait: Duration, timing: Timing) -> Self {
        let (sender, frames) = mpsc::channel(READ_AHEAD);
        let task = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let failed = ask(&endpoint, from, &timing, &sender).await.is_none();
            if failed {
                let _ = sender.send(Replayed::Failed).await;
            }
        });
        Self { frames, task }
    }

    /// The next part; after [`Replayed::End`] or [`Replayed::Failed`] there is nothing more to ask for.
    pub(super) async fn next(&mut self) -> Replayed {
        self.frames.recv().await.unwrap_or(Replayed::Failed)
    }
}

/// Passes the replay on to its end; `None` when it breaks off.
async fn ask(endpoint: &str, from: u64, timing: &Timing, frames: &mpsc::Sender<Replayed>) -> Option<()> {
    // Not a REQ socket: that one would only get the first reply.
    let mut socket = DealerSocket::new();
    timeout(timing.connect, socket.connect(endpoint)).await.ok()?.ok()?;
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
    timeout(timing.replay, socket.send(request)).await.ok()?.ok()?;
    loop {
        let message = timeout(timing.replay, socket.recv()).await.ok()?.ok()?;
        let frame = frame(&message)?;
        if frame.sequence == END {
            frames.send(Replayed::End).await.ok()?;
            return Some(());
        }
        frames.send(Replayed::Frame(frame)).await.ok()?;
    }
}
