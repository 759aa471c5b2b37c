//! One task for each worker and rank: subscribes, keeps the frames in order, asks for replays, decodes, and passes on what
//! counts. It ends when it is dropped or nobody listens, and connects again for as long as it lives.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::KvEvent;
use super::sequencer::{Action, Frame, ResetReason, Sequencer};
use super::socket::{Heard, Replay, Replayed, Subscription};
use super::wire::{Decoder, Skipped};

/// Where the events are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publisher {
    /// The engine's address, as `tcp://HOST:PORT`: the usual case.
    Connect(String),
    /// An address of our own that the engine connects to: engines do when their endpoint names a host.
    Bind(String),
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// To connect. The library tries several times within.
    pub connect: Duration,
    /// Between two messages of a replay.
    pub replay: Duration,
    /// A line that is quiet for this long is checked by asking for a replay of the last frame. After replays failed, one is
    /// tried again this often.
    pub quiet: Duration,
    /// Longest pause between two tries to connect; the first one is a sixteenth of it.
    pub backoff: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            replay: Duration::from_secs(3),
            quiet: Duration::from_secs(10),
            backoff: Duration::from_millis(800),
        }
    }
}

/// What to subscribe to.
#[derive(Debug, Clone)]
pub struct FeedConfig {
    /// The worker's id in snapshots; every message carries it.
    pub worker_id: u32,
    /// The data-parallel rank that publishes there.
    pub rank: u32,
    /// Tokens of a block, when known: other sizes are left out.
    pub block_size: Option<u32>,
    /// Where the events are.
    pub publisher: Publisher,
    /// Address of the replay socket, as `tcp://HOST:PORT`; without one, every gap and every lost connection costs all that
    /// is known of the worker.
    pub replay: Option<String>,
    /// Only messages whose topic starts so; "" for all.
    pub topic: String,
    /// How long things may take.
    pub timing: Timing,
}

/// A message of a feed.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedMessage {
    /// The worker.
    pub worker_id: u32,
    /// What happened.
    pub kind: FeedKind,
    /// The last applied frame; `None` before the first.
    pub sequence: Option<u64>,
    /// The engine's clock when it published the events, in seconds since 1970; 0 for other kinds.
    pub engine_time: f64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedKind {
    /// Events to apply, in order, and counts of those that were left out.
    Events {
        /// What counts.
        events: Vec<KvEvent>,
        /// What does not.
        skipped: Skipped,
    },
    /// Forget all that the worker holds.
    Reset {
        /// Why.
        reason: ResetReason,
    },
    /// How the feed itself is doing.
    Health(Health),
}

/// How a feed is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Subscribed. What the worker holds may not be complete yet.
    Connected,
    /// All that the engine told, and still remembers, is applied.
    Current,
    /// Replays fail: only what is stored from now on will be known.
    Incomplete,
    /// Not subscribed; the feed tries again.
    Disconnected {
        /// What happened, for people.
        reason: String,
    },
    /// Something on the port is not a message of events.
    Strange,
}

/// A running feed; it ends when this is dropped.
#[derive(Debug)]
pub struct Feed {
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Starts a feed on the current runtime.
    #[must_use]
    pub fn start(config: FeedConfig, messages: mpsc::Sender<FeedMessage>) -> Self {
        let runner = Runner {
            sequencer: Sequencer::new(config.replay.is_some()),
            decoder: Decoder::new(config.rank, config.block_size),
            replay: None,
            actions: Vec::new(),
            messages,
            config,
        };
        Self { task: tokio::spawn(runner.run()) }
    }
}

/// Nobody listens any more.
struct Closed;

/// Whether to stay with the connection.
enum Next {
    Stay,
    Reconnect,
}

struct Runner {
    config: FeedConfig,
    sequencer: Sequencer,
    decoder: Decoder,
    replay: Option<Replay>,
    actions: Vec<Action>,
    messages: mpsc::Sender<FeedMessage>,
}

impl Runner {
    async fn run(mut self) {
        let first_pause = (self.config.timing.backoff / 16).max(Duration::from_millis(1));
        let mut pause = first_pause;
        loop {
            let opened = tokio::select! {
                opened = Subscription::open(&self.config.publisher, &self.config.topic, &self.config.timing) => opened,
                () = self.messages.closed() => return,
            };
            let ended = match opened {
                Ok(subscription) => {
                    pause = first_pause;
                    self.listen(subscription).await
                }
                Err(error) => self.health(Health::Disconnected { reason: error.to_string() }).await,
            };
            self.replay = None;
            if ended.is_err() {
                return;
            }
            sleep(jitter(pause)).await;
            pause = (pause * 2).min(self.config.timing.backoff);
        }
    }

    /// Follows one connection to its end.
    async fn listen(&mut self, mut subscription: Subscription) -> Result<(), Closed> {
        let waits = matches!(self.config.publisher, Publisher::Bind(_));
        let mut check_at = Instant::now() + self.config.timing.quiet;
        loop {
            let next = tokio::select! {
                heard = subscription.next() => match heard {
                    Heard::Frame(frame) => {
                        if !self.sequencer.is_incomplete() {
                            check_at = Instant::now() + self.config.timing.quiet;
                        }
                        self.sequencer.live(frame, &mut self.actions);
                        self.act().await?
                    }
                    Heard::NotAFrame => {
                        self.health(Health::Strange).await?;
                        Next::Stay
                    }
                    Heard::Connected => {
                        self.health(Health::Connected).await?;
                        self.sequencer.connected(&mut self.actions);
                        self.act().await?
                    }
                    Heard::Disconnected => {
                        self.health(Health::Disconnected { reason: "the engine closed the connection".into() }).await?;
                        if waits { Next::Stay } else { Next::Reconnect }
                    }
                },
                replayed = next_replayed(&mut self.replay) => {
                    match replayed {
                        Replayed::Frame(frame) => self.sequencer.replayed(frame, &mut self.actions),
                        Replayed::End => {
                            self.replay = None;
                            self.sequencer.replay_ended(&mut self.actions);
                        }
                        Replayed::Failed => {
                            self.replay = None;
                            self.sequencer.replay_failed(&mut self.actions);
                        }
                    }
                    self.act().await?
                }
                () = sleep_until(check_at) => {
                    check_at = Instant::now() + self.config.timing.quiet;
                    self.sequencer.check(&mut self.actions);
                    self.act().await?
                }
                () = self.messages.closed() => return Err(Closed),
            };
            if matches!(next, Next::Reconnect) {
                return Ok(());
            }
        }
    }

    /// Does what the sequencer wants.
    async fn act(&mut self) -> Result<Next, Closed> {
        let mut next = Next::Stay;
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Apply(frame) => self.apply(&frame).await?,
                Action::Reset(reason) => {
                    self.decoder.reset();
                    self.send(FeedKind::Reset { reason }, self.sequencer.last(), 0.0).await?;
                }
                Action::Replay { from, failures } => {
                    let timing = self.config.timing;
                    let wait = timing.backoff * failures;
                    self.replay =
                        self.config.replay.clone().map(|endpoint| Replay::start(endpoint, from, wait, timing));
                }
                Action::Current => self.health(Health::Current).await?,
                Action::Incomplete => self.health(Health::Incomplete).await?,
                Action::Reconnect => next = Next::Reconnect,
            }
        }
        Ok(next)
    }

    async fn apply(&mut self, frame: &Frame) -> Result<(), Closed> {
        match self.decoder.decode(&frame.payload) {
            Ok(batch) if batch.events.is_empty() && batch.skipped == Skipped::default() => Ok(()),
            Ok(batch) => {
                let kind = FeedKind::Events { events: batch.events, skipped: batch.skipped };
                self.send(kind, Some(frame.sequence), batch.engine_time).await
            }
            Err(error) => {
                let kind = FeedKind::Reset { reason: ResetReason::BadBatch(error.to_string()) };
                self.send(kind, Some(frame.sequence), 0.0).await
            }
        }
    }

    async fn health(&self, health: Health) -> Result<(), Closed> {
        self.send(FeedKind::Health(health), self.sequencer.last(), 0.0).await
    }

    async fn send(&self, kind: FeedKind, sequence: Option<u64>, engine_time: f64) -> Result<(), Closed> {
        let message = FeedMessage { worker_id: self.config.worker_id, kind, sequence, engine_time };
        self.messages.send(message).await.map_err(|_| Closed)
    }
}

async fn next_replayed(replay: &mut Option<Replay>) -> Replayed {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}

/// Between half of a pause and the whole, so that many feeds do not knock at once.
fn jitter(pause: Duration) -> Duration {
    let share = RandomState::new().hash_one(0u8) % 1024;
    pause.mul_f64(0.5 + share as f64 / 2048.0)
}

#[cfg(test)]
mod tests;
