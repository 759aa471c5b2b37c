//! The fleet: all that is known of sets, workers, backends and filters, and the order in which it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use kinference_api::compile;
use kinference_api::{Kind, ObjectKey};
use kinference_protocol::v1;
use kinference_routing::signals::History;

use super::backend::{Backend, Push};
use super::fidelity::{Check, Verdict};
use super::places::Places;
use super::providers::ProviderStatus;
use super::reports::Filter;
use super::set::Set;
use super::source::Source;
use super::traffic::Traffic;
use super::view::Viewer;
use super::wire::Full;
use super::worker::{Subscription, Worker, WorkerName};
use super::{Faults, Input, PolicyPlan, ScrapeError, Standing};
use crate::eds::Endpoints;
use crate::metrics::Metrics;
use crate::push::Confidentiality;
use crate::scrape::Target;
use crate::scrape::parse::{EngineMetrics, RankMetrics};

/// How often workers are told when only their load changed.
const WORKERS_MS: u64 = 100;
/// How often the slow figures are looked at: bytes per token, lost requests, gauges.
const SLOW_MS: u64 = 1_000;

/// Whether the configuration on disk is the one in force.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigState {
    /// A configuration was read.
    pub(super) read: bool,
    /// A configuration is in force.
    pub(super) in_force: bool,
    /// All that is wrong with the one that was read last; empty when it is in force.
    pub(super) faults: Faults,
    /// What most likely is not meant in the one in force.
    pub(super) warnings: Vec<String>,
    /// The policies of the one in force.
    pub(super) policies: BTreeMap<ObjectKey, PolicyPlan>,
    /// Configurations that took force.
    pub(super) loads: u64,
}

/// The core's state.
#[derive(Debug)]
pub struct Fleet {
    pub(super) metrics: Arc<Metrics>,
    epoch_base: u64,
    /// Whether filters may be told credentials.
    pub(super) confidentiality: Confidentiality,
    pub(super) config: ConfigState,
    /// Providers, and which can be used.
    pub(super) providers: BTreeMap<ObjectKey, ProviderStatus>,
    pub(super) source: Option<Source>,
    pub(super) places: Places,
    pub(super) sets: BTreeMap<ObjectKey, Set>,
    pub(super) workers: BTreeMap<u32, Worker>,
    pub(super) ids: BTreeMap<WorkerName, u32>,
    pub(super) backends: BTreeMap<ObjectKey, Backend>,
    pub(super) traffic: Traffic,
    pub(super) filters: BTreeMap<u64, Filter>,
    pub(super) next_serial: u64,
    pub(super) next_subscription: u32,
    /// Worker by subscription.
    pub(super) subscribed: BTreeMap<u32, u32>,
    /// Something changed that filters must hear of at once.
    pub(super) urgent: bool,
    /// How far back the longest window of any rule looks; milliseconds.
    pub(super) keep_ms: u64,
    workers_told_at: u64,
    slow_at: u64,
    /// Something in the snapshots' configuration may have changed.
    pub(super) config_dirty: bool,
    /// The wiring of edges changed since it was last asked for.
    pub(super) rewired: bool,
}

impl Fleet {
    /// An empty fleet. Epochs count up from `epoch_base`, which must differ from process to process. Its filters are
    /// served as `confidentiality` says.
    pub fn new(metrics: Arc<Metrics>, epoch_base: u64, confidentiality: Confidentiality) -> Self {
        Self {
            metrics,
            epoch_base,
            confidentiality,
            config: ConfigState::default(),
            providers: BTreeMap::new(),
            source: None,
            places: Places::default(),
            sets: BTreeMap::new(),
            workers: BTreeMap::new(),
            ids: BTreeMap::new(),
            backends: BTreeMap::new(),
            traffic: Traffic::default(),
            filters: BTreeMap::new(),
            next_serial: 1,
            next_subscription: 1,
            subscribed: BTreeMap::new(),
            urgent: false,
            keep_ms: 0,
            workers_told_at: 0,
            slow_at: 0,
            config_dirty: false,
            rewired: false,
        }
    }

    /// An epoch that was not used before; the next one used is larger by one.
    pub(super) fn fresh_epoch(&mut self) -> u64 {
        // Room for the epochs that a backend begins by itself.
        self.epoch_base += 1 << 16;
        self.epoch_base
    }

    /// Takes an input.
    pub fn handle(&mut self, input: Input, now: u64) {
        match input {
            Input::Config(result) => self.configure(result, now),
            Input::Source(report) => self.source_reported(report, now),
            Input::Scraped { set, address, began, result } => self.scraped(&set, address, began, result, now),
            Input::Feed(message) => self.feed(message),
            Input::Checked { set, address, generation, verdict } => {
                self.checked(&set, address, generation, verdict, now);
            }
            Input::StreamOpened { stream, backend, hello } => self.opened(stream, &backend, hello),
            Input::Reports { stream, reports } => self.reported(stream, reports, now),
            Input::Applied { stream, applied } => self.applied(stream, applied),
            Input::Rejected { stream, rejected } => self.rejected(stream, rejected),
            Input::StreamClosed { stream } => self.closed(stream),
        }
    }

    fn scraped(
        &mut self,
        set: &ObjectKey,
        address: SocketAddr,
        began: u64,
        result: Result<EngineMetrics, ScrapeError>,
        now: u64,
    ) {
        let Some(of_set) = self.sets.get_mut(set) else { return };
        let mut failed = None;
        let mut restarted = Vec::new();
        for worker in self.workers.values_mut().filter(|w| w.wanted.address == address && w.wanted.name.set == *set) {
            let figures = result.clone().and_then(|metrics| of_rank(&metrics, worker.wanted.rank));
            if let Ok(RankMetrics { block_tokens: Some(tokens), .. }) = figures {
                self.config_dirty |= of_set.learn_block(tokens);
            }
            failed = figures.as_ref().err().cloned();
            let good = figures.as_ref().ok().cloned();
            if worker.health.scraped(figures, began, now) {
                worker.history = History::default();
                restarted.push(worker.id);
            } else if good.is_some() {
                worker.events_restarted = false;
            }
            if let Some(good) = &good {
                worker.remember(good, self.keep_ms, now);
                worker.count_strangers(good, self.traffic.totals(worker.serial).in_flight);
            }
            self.urgent |= settle(worker, now);
        }
        for id in restarted {
            self.restarted(id);
        }
        self.metrics.scraped(set, failed.as_ref());
    }

    fn checked(&mut self, set: &ObjectKey, address: SocketAddr, generation: u64, verdict: Verdict, now: u64) {
        for worker in self.workers.values_mut().filter(|w| w.wanted.address == address && w.wanted.name.set == *set) {
            worker.checked.answered(generation, verdict.clone(), now);
        }
        self.judge(set);
    }

    /// Judges by the workers that there are now whether the set's events can be used.
    pub(super) fn judge(&mut self, set: &ObjectKey) {
        let Some(of_set) = self.sets.get_mut(set) else { return };
        let before = of_set.mode();
        of_set.judge(self.workers.values().filter(|w| w.wanted.name.set == *set).map(|w| &w.checked));
        let after = of_set.mode();
        self.config_dirty = true;
        if before != after {
            tracing::info!(worker_set = %set, "{}", match after {
                super::set::Mode::Events => "prompt text is equal to the engine's: events are used".to_owned(),
                super::set::Mode::Routed(why) => format!("routed mode: {why}"),
            });
        }
    }

    /// Lets time pass: what filters must be told now, in order.
    pub fn tick(&mut self, now: u64) -> Vec<Push> {
        self.learn_first_tokens(now);
        if now >= self.slow_at {
            self.slow_at = now + SLOW_MS;
            self.slow(now);
        }
        if !self.config.in_force {
            return Vec::new();
        }
        let due = std::mem::take(&mut self.urgent) || now >= self.workers_told_at + WORKERS_MS;
        if due {
            self.workers_told_at = now;
        }
        let config_dirty = std::mem::take(&mut self.config_dirty);
        let mut pushes = Vec::new();
        let proxies = self.proxies();
        for backend in self.backends.values_mut() {
            let config = if config_dirty { config_of(backend, &self.sets) } else { None };
            let viewer = Viewer { sets: &self.sets, workers: &self.workers, traffic: &self.traffic, proxies, now };
            pushes.extend(backend.advance(config, due, |config| viewer.view(config)));
        }
        if due {
            self.places.recycle();
        }
        for push in &pushes {
            if let Push::Delta { .. } = push {
                self.metrics.deltas_built.inc();
            }
        }
        pushes
    }

    fn slow(&mut self, now: u64) {
        self.traffic.sweep(now);
        for worker in self.workers.values_mut() {
            self.urgent |= settle(worker, now);
        }
        for backend in self.backends.values_mut() {
            backend.store.expire(now);
            let measured = backend.store.stats().bytes_per_token;
            for set in self.sets.values_mut() {
                if let Some(bytes) = measured.get(&super::backend::by_events(set.id)) {
                    self.config_dirty |= set.learn_bytes_per_token(*bytes);
                }
            }
        }
        self.set_gauges(now);
    }

    /// The full snapshot of a backend, as of its last push.
    pub fn full(&self, backend: &ObjectKey) -> Option<Full> {
        let full = self.backends.get(backend)?.full()?;
        self.metrics.full_snapshots_built.inc();
        Some(full)
    }

    /// True once after the edges must be wired anew: see [`Self::targets`], [`Self::subscriptions`],
    /// [`Self::endpoints`] and [`Self::backend_names`].
    pub fn take_rewired(&mut self) -> bool {
        std::mem::take(&mut self.rewired)
    }

    /// Whether the configuration is in force, or there is nothing to put in force yet; else what keeps it from being.
    pub fn readiness(&self) -> Result<(), String> {
        let problems = &self.config.faults.problems;
        match (self.config.in_force, self.config.read) {
            (true, _) => Ok(()),
            (false, true) if problems.is_empty() => Ok(()),
            (false, true) => Err(problems.join("; ")),
            (false, false) => Err(match self.source.as_ref().map(|source| source.report.problems.as_slice()) {
                None | Some([]) => "the configuration has not been read yet".into(),
                Some(problems) => format!("the configuration has not been read yet: {}", problems.join("; ")),
            }),
        }
    }

    /// The gateway backends.
    pub fn backend_names(&self) -> impl Iterator<Item = &ObjectKey> {
        self.backends.keys()
    }

    /// Which metrics to read.
    pub fn targets(&self) -> Vec<Target> {
        let mut targets: BTreeMap<(&ObjectKey, SocketAddr), Target> = BTreeMap::new();
        for worker in self.workers.values() {
            let Some(set) = self.sets.get(&worker.wanted.name.set) else { continue };
            targets.entry((&set.spec.key, worker.wanted.address)).or_insert_with(|| Target {
                set: set.spec.key.clone(),
                address: worker.wanted.address,
                path: set.spec.metrics_path.clone(),
                interval: set.spec.metrics_interval,
                engine: set.spec.engine,
            });
        }
        targets.into_values().collect()
    }

    /// Which KV events to follow.
    pub fn subscriptions(&self) -> Vec<Subscription> {
        let usable = |worker: &&Worker| self.sets.get(&worker.wanted.name.set).is_some_and(Set::events_possible);
        self.workers.values().filter(usable).filter_map(Worker::wants_events).collect()
    }

    /// Which engine processes to ask for their prompt text now; they are not named again until they answered.
    pub fn checks(&mut self, now: u64) -> Vec<Check> {
        let mut checks: BTreeMap<(&ObjectKey, SocketAddr), Check> = BTreeMap::new();
        for worker in self.workers.values_mut() {
            let Some(set) = self.sets.get(&worker.wanted.name.set) else { continue };
            let due = worker.checked.is_due(now) && set.events_possible();
            if !due || worker.health.state(now) != v1::WorkerState::Ready {
                continue;
            }
            if let Ok(tokenizer) = set.can_use_events()
                && worker.checked.ask(set.generation, now)
            {
                checks.entry((&set.spec.key, worker.wanted.address)).or_insert_with(|| Check {
                    set: set.spec.key.clone(),
                    address: worker.wanted.address,
                    generation: set.generation,
                    model: set.spec.model.clone(),
                    template: set.template.clone().unwrap_or_default(),
                    tokenizer: tokenizer.clone(),
                });
            }
        }
        checks.into_values().collect()
    }

    /// The gateway backends that exist and of which no version is in force, "namespace/name".
    pub fn not_in_force(&self) -> BTreeSet<String> {
        let outcomes = self.config.faults.outcomes.iter();
        let of_backends = outcomes
            .filter(|((kind, _), outcome)| *kind == Kind::GatewayBackend && outcome.standing == Standing::NotInForce);
        of_backends.map(|((_, key), _)| key.to_string()).collect()
    }

    /// Where requests can go, by backend. Absent until a configuration is in force.
    pub fn endpoints(&self) -> Option<BTreeMap<String, Endpoints>> {
        self.config.in_force.then(|| {
            let of = |backend: &Backend| {
                let ids: BTreeSet<u32> = backend.fleet.worker_sets.iter().map(|set| set.id).collect();
                let workers = self.workers.values().filter(|worker| ids.contains(&worker.set_id));
                Endpoints {
                    workers: workers.map(|worker| worker.wanted.address).collect(),
                    providers: backend.fleet.providers.iter().map(|provider| provider.wire.cluster.clone()).collect(),
                }
            };
            self.backends.iter().map(|(key, backend)| (key.to_string(), of(backend))).collect()
        })
    }
}

/// Notes a change of state; true when there was one.
pub(super) fn settle(worker: &mut Worker, now: u64) -> bool {
    let state = worker.health.state(now);
    if state == worker.last_state {
        return false;
    }
    if state == v1::WorkerState::Ready {
        worker.checked.came_back();
    }
    let name = &worker.wanted.name;
    let why = worker.health.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    tracing::info!(worker_set = %name.set, worker = name.name, "worker is {}{why}", state_name(state));
    worker.last_state = state;
    true
}

pub(super) fn state_name(state: v1::WorkerState) -> &'static str {
    match state {
        v1::WorkerState::Unknown => "unknown",
        v1::WorkerState::Ready => "ready",
        v1::WorkerState::Unready => "unready",
    }
}

/// The figures of one rank, when the page has those that routing cannot do without.
fn of_rank(metrics: &EngineMetrics, rank: Option<u32>) -> Result<RankMetrics, ScrapeError> {
    match metrics.of(rank) {
        Some(figures) if figures.running.is_some() && figures.waiting.is_some() => Ok(figures),
        Some(_) => Err(ScrapeError::Bad("the page lacks the numbers of running and waiting requests".into())),
        None if rank.is_some() => Err(ScrapeError::Bad("the page says nothing of this rank".into())),
        None => Err(ScrapeError::Bad("the page has no metric of the engine; is spec.engine right?".into())),
    }
}

fn config_of(backend: &Backend, sets: &BTreeMap<ObjectKey, Set>) -> Option<v1::Config> {
    let specs = backend.fleet.worker_sets.iter();
    let assets = specs.filter_map(|spec| Some((spec.key.clone(), sets.get(&spec.key)?.assets()))).collect();
    let config = compile::config(&backend.fleet, &assets);
    config.inspect_err(|error| tracing::error!(backend = %backend.fleet.backend, "{error}")).ok()
}
