//! The sending half of one filter's stream: when to send what, on the order of the channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use kinference_protocol::v1::{ControlMessage, Heartbeat, control_message::Message};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::channel::{Channel, Cursor, Step};
use crate::metrics::Metrics;

/// A filter gets no more than one full snapshot it asked for in this time.
const RESYNC_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait before a refused snapshot is tried again, at first and at most.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What the receiving half asks of the sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The filter lost the thread at this message and needs a full snapshot.
    Resync {
        /// Epoch of the message that did not apply.
        epoch: u64,
        /// Its sequence.
        sequence: u64,
    },
    /// The filter cannot apply the content.
    Refused,
}

/// Sending is suspended.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    /// Ends early when the channel's configuration is another.
    config_version: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Outbound {
    channel: Arc<Channel>,
    changed: watch::Receiver<()>,
    cursor: Cursor,
    commands: mpsc::Receiver<Command>,
    shutdown: CancellationToken,
    metrics: Arc<Metrics>,
    heartbeat: Duration,
    last_sent: Instant,
    /// When the last full snapshot began, and what it was.
    last_full: Option<(Instant, u64, u64)>,
    hold: Option<Hold>,
    refused_pause: Duration,
}

impl Outbound {
    pub(super) fn new(
        channel: Arc<Channel>,
        cursor: Cursor,
        commands: mpsc::Receiver<Command>,
        shutdown: CancellationToken,
        metrics: Arc<Metrics>,
        heartbeat: Duration,
    ) -> Self {
        Self {
            changed: channel.subscribe(),
            channel,
            cursor,
            commands,
            shutdown,
            metrics,
            heartbeat,
            last_sent: Instant::now(),
            last_full: None,
            hold: None,
            refused_pause: REFUSED_PAUSE.0,
        }
    }

    pub(super) fn into_stream(self) -> BoxStream<'static, Result<Bytes, Status>> {
        futures::stream::unfold(Some(self), |outbound| async move {
            let mut outbound = outbound?;
            match outbound.next().await {
                Ok(Some(message)) => Some((Ok(message), Some(outbound))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if self.shutdown.is_cancelled() {
                return Ok(None);
            }
            self.changed.borrow_and_update();
            let idle = match self.release_hold() {
                true => match self.step()? {
                    Some(message) => return Ok(Some(message)),
                    // What the filter must hold now: with a heartbeat it notices when it does not.
                    None => self.cursor.epoch != 0,
                },
                false => false,
            };
            let wake = match (&self.hold, idle) {
                (Some(hold), _) => hold.until,
                (None, true) => self.last_sent + self.heartbeat,
                (None, false) => Instant::now() + Duration::from_secs(3600),
            };
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return Ok(None) },
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    // The receiving half is gone, and so is the filter.
                    None => return Ok(None),
                },
                () = tokio::time::sleep_until(wake) => if idle { return Ok(Some(self.beat())) },
                () = self.shutdown.cancelled() => return Ok(None),
            }
        }
    }

    fn step(&mut self) -> Result<Option<Bytes>, Status> {
        let message = match self.channel.next(&mut self.cursor) {
            Step::Part(part, first) => {
                if first {
                    self.metrics.full_snapshots_sent.inc();
                    self.last_full = Some((Instant::now(), 0, 0));
                }
                if let (Some(full), true) = (&mut self.last_full, self.cursor.epoch != 0) {
                    (full.1, full.2) = (self.cursor.epoch, self.cursor.sequence);
                }
                part
            }
            Step::Delta(delta) => {
                self.metrics.deltas_sent.inc();
                delta
            }
            Step::Idle | Step::Building => return Ok(None),
            Step::Closed => return Err(Status::not_found("this GatewayBackend is no longer in the configuration")),
        };
        self.metrics.sent_bytes.inc_by(message.len() as u64);
        self.last_sent = Instant::now();
        Ok(Some(message))
    }

    fn beat(&mut self) -> Bytes {
        self.last_sent = Instant::now();
        self.metrics.heartbeats_sent.inc();
        let heartbeat = Heartbeat { epoch: self.cursor.epoch, sequence: self.cursor.sequence };
        Bytes::from(ControlMessage { message: Some(Message::Heartbeat(heartbeat)) }.encode_to_vec())
    }

    /// True when sending may go on. A hold always ends with a full snapshot.
    fn release_hold(&mut self) -> bool {
        let Some(hold) = self.hold else { return true };
        let other_config = hold.config_version.is_some_and(|version| version != self.channel.config_version());
        if Instant::now() < hold.until && !other_config {
            return false;
        }
        if other_config {
            self.refused_pause = REFUSED_PAUSE.0;
        }
        self.hold = None;
        self.cursor.reset();
        true
    }

    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Refused => {
                self.hold =
                    Some(Hold { until: now + self.refused_pause, config_version: Some(self.channel.config_version()) });
                self.refused_pause = (self.refused_pause * 2).min(REFUSED_PAUSE.1);
            }
            Command::Resync { epoch, sequence } => {
                if self.hold.is_some() {
                    return;
                }
                if let Some((began, full_epoch, full_sequence)) = self.last_full {
                    // It complains about something from before the full snapshot that is on its way already.
                    if epoch == full_epoch && sequence < full_sequence {
                        return;
                    }
                    if now < began + RESYNC_PAUSE {
                        self.hold = Some(Hold { until: began + RESYNC_PAUSE, config_version: None });
                        return;
                    }
                }
                self.cursor.reset();
            }
        }
    }
}
