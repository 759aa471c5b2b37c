//! The core's task: feeds inputs and time to the fleet, and its pushes to the edges.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kinference_api::ObjectKey;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::admin::Readiness;
use crate::clock::Clock;
use crate::conditions::Assessments;
use crate::eds::Assignments;
use crate::events::feed::Timing;
use crate::events::{Feed, FeedConfig, FeedMessage, Publisher};
use crate::fidelity;
use crate::metrics::Metrics;
use crate::push::{Channel, Confidentiality, Directory, Limits};
use crate::scrape::{self, HttpClient, Target};
use crate::state::{Fleet, Full, Input, NoSnapshot, Push, Status, Subscription};

/// How often filters are told what changed.
const TICK: Duration = Duration::from_millis(20);
/// Inputs that are taken in before the tick gets its turn.
const BATCH: usize = 256;
/// Event messages that may wait for the core.
const FEED_QUEUE: usize = 4096;

/// What the edges watch.
#[derive(Debug)]
pub struct Outputs {
    /// Channels by gateway backend.
    pub directory: watch::Sender<Directory>,
    /// Endpoints for Envoys.
    pub assignments: watch::Sender<Option<Arc<Assignments>>>,
    /// Whether a configuration is in force.
    pub readiness: watch::Sender<Readiness>,
}

/// What edges ask the core. Whoever asked may be gone by the time of the answer.
#[derive(Debug)]
pub enum Question {
    /// How everything is.
    Status(oneshot::Sender<Status>),
    /// What is to be said of every resource.
    Assessments(oneshot::Sender<Assessments>),
    /// What the filters of a gateway backend were told, without credentials.
    Snapshot {
        /// Which; none for the only one.
        backend: Option<ObjectKey>,
        /// Where the answer goes.
        answer: oneshot::Sender<Result<Full, NoSnapshot>>,
    },
}

/// A task that ends when this is dropped.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The fleet and its wiring to the edges.
#[derive(Debug)]
pub struct Core {
    fleet: Fleet,
    clock: Clock,
    outputs: Outputs,
    inputs: mpsc::Sender<Input>,
    feed_sender: mpsc::Sender<FeedMessage>,
    feed_queue: mpsc::Receiver<FeedMessage>,
    client: HttpClient,
    scrapes: Vec<(Target, Task)>,
    feeds: Vec<(Subscription, Feed)>,
}

impl Core {
    /// A core without configuration. `inputs` is the sending end of its own queue, for the edges that it starts.
    pub fn new(
        clock: Clock,
        metrics: Arc<Metrics>,
        outputs: Outputs,
        inputs: mpsc::Sender<Input>,
        confidentiality: Confidentiality,
    ) -> Self {
        let (feed_sender, feed_queue) = mpsc::channel(FEED_QUEUE);
        Self {
            fleet: Fleet::new(metrics, epoch_base(), confidentiality),
            clock,
            outputs,
            inputs,
            feed_sender,
            feed_queue,
            client: scrape::http_client(),
            scrapes: Vec::new(),
            feeds: Vec::new(),
        }
    }

    /// Runs until shutdown.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut questions: mpsc::Receiver<Question>,
        shutdown: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    self.take(input);
                    for _ in 0..BATCH {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.take(input);
                    }
                }
                message = self.feed_queue.recv() => {
                    let Some(message) = message else { return };
                    self.take(Input::Feed(message));
                    for _ in 0..BATCH {
                        let Ok(message) = self.feed_queue.try_recv() else { break };
                        self.take(Input::Feed(message));
                    }
                }
                question = questions.recv() => {
                    let Some(question) = question else { return };
                    self.answer(question);
                }
                _ = ticks.tick() => self.tick(),
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn answer(&self, question: Question) {
        match question {
            Question::Status(answer) => drop(answer.send(self.fleet.status(self.clock.now_ms()))),
            Question::Assessments(answer) => drop(answer.send(self.fleet.assessments(self.clock.now_ms()))),
            Question::Snapshot { backend, answer } => drop(answer.send(self.fleet.full_to_show(backend.as_ref()))),
        }
    }

    fn take(&mut self, input: Input) {
        let config = matches!(input, Input::Config(_));
        self.fleet.handle(input, self.clock.now_ms());
        if config {
            // Streams that wait for a backend and probes that wait for readiness shall not wait for the next tick.
            self.tick();
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now_ms();
        let pushes = self.fleet.tick(now);
        let rewired = self.fleet.take_rewired();
        if rewired {
            self.rewire();
        }
        let channels = self.outputs.directory.borrow().channels.clone();
        for push in pushes {
            match push {
                Push::Epoch { backend, epoch, sequence } => {
                    if let Some(channel) = channels.get(&backend.to_string()) {
                        channel.start_epoch(epoch, sequence);
                    }
                }
                Push::Delta { backend, message, config } => {
                    if let Some(channel) = channels.get(&backend.to_string()) {
                        channel.publish(message, config);
                    }
                }
            }
        }
        for key in self.fleet.backend_names() {
            if let Some(channel) = channels.get(&key.to_string())
                && channel.full_wanted()
                && let Some(full) = self.fleet.full(key)
            {
                channel.put_full(full);
            }
        }
        for check in self.fleet.checks(now) {
            let (client, inputs) = (self.client.clone(), self.inputs.clone());
            tokio::spawn(async move {
                let verdict = fidelity::check(&client, &check).await;
                let (set, address, generation) = (check.set, check.address, check.generation);
                let _ = inputs.send(Input::Checked { set, address, generation, verdict }).await;
            });
        }
    }

    /// Starts and stops scrapes, feeds and channels, so that they are what the fleet wants.
    fn rewire(&mut self) {
        let mut targets = self.fleet.targets();
        self.scrapes.retain(|(target, _)| take_out(&mut targets, target));
        for target in targets {
            let task = tokio::spawn(scrape::run(target.clone(), self.clock, self.inputs.clone()));
            self.scrapes.push((target, Task(task.abort_handle())));
        }
        let mut wanted = self.fleet.subscriptions();
        self.feeds.retain(|(subscription, _)| take_out(&mut wanted, subscription));
        for subscription in wanted {
            let feed = Feed::start(feed_config(&subscription), self.feed_sender.clone());
            self.feeds.push((subscription, feed));
        }

        let readiness = self.fleet.readiness();
        self.outputs.directory.send_modify(|directory| {
            let mut old = std::mem::take(&mut directory.channels);
            let kept = self.fleet.backend_names().map(|key| {
                let name = key.to_string();
                let channel = old.remove(&name).unwrap_or_else(|| Arc::new(Channel::new(Limits::default())));
                (name, channel)
            });
            directory.channels = kept.collect::<BTreeMap<_, _>>();
            directory.waiting = readiness.as_ref().err().cloned();
            old.into_values().for_each(|channel| channel.close());
        });
        if let Some(endpoints) = self.fleet.endpoints() {
            let assignments = Arc::new(Assignments::new(&endpoints, &self.fleet.not_in_force()));
            self.outputs.assignments.send_if_modified(|current| {
                let changed = current.as_ref() != Some(&assignments);
                *current = Some(assignments);
                changed
            });
        }
        self.outputs.readiness.send_replace(readiness.err());
    }
}

/// Takes one that equals `wanted` out of the list; false when there is none.
fn take_out<T: PartialEq>(list: &mut Vec<T>, wanted: &T) -> bool {
    let found = list.iter().position(|one| one == wanted);
    found.map(|at| list.swap_remove(at)).is_some()
}

fn feed_config(subscription: &Subscription) -> FeedConfig {
    let endpoint = |address: SocketAddr| format!("tcp://{address}");
    FeedConfig {
        worker_id: subscription.id,
        rank: subscription.rank,
        block_size: None,
        publisher: Publisher::Connect(endpoint(subscription.events)),
        replay: subscription.replay.map(endpoint),
        topic: subscription.topic.clone(),
        timing: Timing::default(),
    }
}

/// Epochs of this process, apart from those of any other: the time it started, and some random bits.
fn epoch_base() -> u64 {
    let millis = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let random = RandomState::new().hash_one(millis) & 0xffff;
    (millis << 22) | (random << 6)
}
