//! What the parts of one running worker share: its engine, and how requests get in and out of it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kinference_routing::template::ChatTemplate;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};

use super::config::Config;
use super::engine::{Engine, NewRequest};
use super::fault::Fault;
use super::progress::Progress;
use super::publisher::Delivery;
use super::sockets::Addresses;
use super::text::Text;

/// What all workers of a fleet share.
pub(super) struct Model {
    pub(super) config: Config,
    pub(super) text: Text,
    /// Absent when the tokenizer has no chat template; chat requests then fail, as in vLLM.
    pub(super) template: Option<ChatTemplate>,
}

/// A worker from its start to its death.
pub(super) struct Worker {
    pub(super) model: Arc<Model>,
    pub(super) index: usize,
    /// Where to send faults that a worker cannot apply to itself.
    pub(super) fleet: mpsc::UnboundedSender<(usize, Fault)>,
    pub(super) addresses: Addresses,
    /// What happens to event batches on their way out.
    pub(super) delivery: Mutex<Delivery>,
    engine: Mutex<Engine>,
    /// Rung when there may be something to do.
    pub(super) work: Notify,
    /// While true, nothing is answered and no step runs.
    pub(super) hang: watch::Sender<bool>,
    start: Instant,
    /// Start in seconds since the Unix epoch.
    pub(super) created: u64,
    next_id: AtomicU64,
}

/// One worker's figures since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests taken in.
    pub requests: u64,
    /// Requests answered in full.
    pub finished: u64,
    /// Requests whose client went away.
    pub aborted: u64,
    /// Requests in the running batch now.
    pub running: usize,
    /// Requests waiting now.
    pub waiting: usize,
    /// Prompt tokens of requests that reached their first token.
    pub prompt_tokens: u64,
    /// Of those, the ones found in the cache.
    pub cached_tokens: u64,
    /// Answer tokens.
    pub generation_tokens: u64,
    /// Requests put back in the queue to free their blocks.
    pub preemptions: u64,
    /// Engine steps.
    pub steps: u64,
    /// Share of cache blocks in use now, 0 to 1.
    pub kv_cache_usage: f64,
    /// Event batches made, which is the next sequence number.
    pub event_batches: u64,
}

impl Worker {
    pub(super) fn new(
        model: Arc<Model>,
        index: usize,
        addresses: Addresses,
        fleet: mpsc::UnboundedSender<(usize, Fault)>,
    ) -> Self {
        // A new root at each start, like vLLM's random NONE_HASH: hashes of one start mean nothing in the next.
        let engine = Engine::new(&model.config, random());
        Self {
            delivery: Mutex::new(Delivery::new(&model.config)),
            model,
            index,
            fleet,
            addresses,
            engine: Mutex::new(engine),
            work: Notify::new(),
            hang: watch::Sender::new(false),
            start: Instant::now(),
            created: unix_time().as_secs(),
            next_id: AtomicU64::new(1),
        }
    }

    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn delivery(&self) -> MutexGuard<'_, Delivery> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time on the engine's clock.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn config(&self) -> &Config {
        &self.model.config
    }

    /// Hands a request to the engine; its id and progress are set here. Dropping the ticket aborts what is not finished.
    pub(super) fn submit(self: &Arc<Self>, mut request: NewRequest) -> Ticket {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(Progress::default());
        request.id = id;
        request.progress = progress.clone();
        self.engine().submit(request, self.now());
        self.work.notify_one();
        Ticket { worker: self.clone(), id, progress }
    }

    /// Waits while the worker hangs.
    pub(super) async fn responsive(&self) {
        if *self.hang.borrow() {
            // The sender lives as long as the worker.
            let _ = self.hang.subscribe().wait_for(|hang| !hang).await;
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let event_batches = self.delivery().sequence();
        let engine = self.engine();
        let (metrics, gauges) = (engine.metrics(), engine.gauges());
        let [stop, length, aborted] = metrics.finished;
        Stats {
            requests: metrics.received,
            finished: stop + length,
            aborted,
            running: gauges.running,
            waiting: gauges.waiting,
            prompt_tokens: metrics.prompt_tokens,
            cached_tokens: metrics.prompt_tokens_cached,
            generation_tokens: metrics.generation_tokens,
            preemptions: metrics.preemptions,
            steps: metrics.steps,
            kv_cache_usage: gauges.cache_usage,
            event_batches,
        }
    }
}

/// A request in the engine, held by whoever answers the client.
pub(super) struct Ticket {
    worker: Arc<Worker>,
    id: u64,
    pub(super) progress: Arc<Progress>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.seen().finish.is_none() {
            self.worker.engine().abort(self.id);
        }
    }
}

/// A random number; the standard library seeds its hashers from the system's randomness.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
