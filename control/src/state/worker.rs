//! One worker: its place, its health, and what is learned of it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use kinference_api::ObjectKey;
use kinference_api::compile::{KvPorts, WorkerSetSpec, WorkersSpec};
use kinference_protocol::v1::{self, Signal, WorkerState};
use kinference_routing::signals::{History, Sample};
use kinference_routing::ttft::{LatencyModel, Pace};
use serde::Serialize;

use super::fidelity::Checked;
use super::health::Health;
use super::traffic::Totals;
use crate::scrape::parse::RankMetrics;

/// Set and name of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerName {
    /// The worker set.
    pub set: ObjectKey,
    /// Name within the set, with the rank when there are several: "a", "a/1".
    pub name: String,
}

/// A worker as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: WorkerName,
    pub(super) address: SocketAddr,
    /// The rank, when there are several.
    pub(super) rank: Option<u32>,
    /// Ports of this rank's KV events.
    pub(super) events: Option<KvPorts>,
    pub(super) topic: String,
}

/// The workers of a set; every data-parallel rank is one.
pub(super) fn wanted(spec: &WorkerSetSpec) -> Vec<Wanted> {
    // Selected Pods are found by Kubernetes, which files do not have.
    let WorkersSpec::Static(workers) = &spec.workers else { return Vec::new() };
    let ranks = spec.data_parallel_size.max(1);
    let each = workers.iter().flat_map(|worker| (0..ranks).map(move |rank| (worker, rank)));
    each.map(|(worker, rank)| {
        let several = ranks > 1;
        let name = if several { format!("{}/{rank}", worker.name) } else { worker.name.clone() };
        Wanted {
            name: WorkerName { set: spec.key.clone(), name },
            address: worker.http_address(),
            rank: several.then_some(rank),
            events: spec.kv_topic.as_ref().and(worker.kv_events).map(|ports| ports.of_rank(rank)),
            topic: spec.kv_topic.clone().unwrap_or_default(),
        }
    })
    .collect()
}

/// A worker's KV events, to be subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Names the subscription; another number wants the events from the beginning.
    pub id: u32,
    /// Whose events.
    pub worker: WorkerName,
    /// The worker's publisher.
    pub events: SocketAddr,
    /// Its replay socket.
    pub replay: Option<SocketAddr>,
    /// The topic.
    pub topic: String,
    /// The rank that its batches must name.
    pub rank: u32,
}

/// How a worker's event stream fares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventHealth {
    /// True while subscribed.
    pub connected: bool,
    /// True while all that the engine told, and still remembers, is taken in.
    pub current: bool,
    /// What was last wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_problem: Option<String>,
    /// Batches taken in.
    pub batches: u64,
    /// Times that events were lost.
    pub gaps: u64,
    /// Times that the engine was restarted.
    pub restarts: u64,
}

/// Reads of the metrics that must agree on requests that no filter sent.
const STRANGER_READS: usize = 4;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: u32,
    pub(super) set_id: u32,
    /// Names this life of the worker; never used again.
    pub(super) serial: u64,
    pub(super) wanted: Wanted,
    /// Number of the present event subscription.
    pub(super) subscription: u32,
    pub(super) health: Health,
    pub(super) events: EventHealth,
    pub(super) checked: Checked,
    /// How it compares to its set.
    pub(super) pace: Pace,
    /// Requests that no filter sent, at the newest reads of the metrics.
    strangers: VecDeque<f32>,
    /// State at the last look, to notice changes.
    pub(super) last_state: WorkerState,
    /// The event stream noticed a restart since the newest good read of the metrics.
    pub(super) events_restarted: bool,
    /// What the engine said before, as far as windows look back.
    pub(super) history: History,
}

impl Worker {
    pub(super) fn new(id: u32, set_id: u32, serial: u64, wanted: Wanted) -> Self {
        Self {
            id,
            set_id,
            serial,
            wanted,
            subscription: 0,
            health: Health::default(),
            events: EventHealth::default(),
            checked: Checked::default(),
            pace: Pace::default(),
            strangers: VecDeque::new(),
            last_state: WorkerState::Unknown,
            events_restarted: false,
            history: History::default(),
        }
    }

    /// What to subscribe to, where the worker publishes events.
    pub(super) fn wants_events(&self) -> Option<Subscription> {
        let ports = self.wanted.events?;
        let ip = self.wanted.address.ip();
        Some(Subscription {
            id: self.subscription,
            worker: self.wanted.name.clone(),
            events: SocketAddr::new(ip, ports.events),
            replay: ports.replay.map(|port| SocketAddr::new(ip, port)),
            topic: self.wanted.topic.clone(),
            rank: self.wanted.rank.unwrap_or_default(),
        })
    }

    pub(super) fn load(&self, totals: Totals, proxies: u32, interval_ms: u64, now: u64) -> v1::Load {
        let seen = self.health.metrics(interval_ms, now);
        let figure = |value: Option<f64>| value.unwrap_or_default() as f32;
        v1::Load {
            known: seen.is_some(),
            queued_requests: figure(seen.and_then(|seen| seen.waiting)),
            running_requests: figure(seen.and_then(|seen| seen.running)),
            kv_cache_usage: figure(seen.and_then(|seen| seen.kv_usage)),
            pending_prefill_tokens: u32::try_from(totals.pending_prefill).unwrap_or(u32::MAX),
            in_flight: totals.in_flight,
            proxies,
            strangers: self.strangers.iter().copied().reduce(f32::min).unwrap_or_default(),
        }
    }

    /// Compares what the engine has with what filters say that they sent. Reports and reads are never of the same moment,
    /// so only what several reads agree on counts.
    pub(super) fn count_strangers(&mut self, figures: &RankMetrics, in_flight: u32) {
        let has = figures.waiting.unwrap_or_default() + figures.running.unwrap_or_default();
        self.strangers.push_back((has - f64::from(in_flight)).max(0.0) as f32);
        if self.strangers.len() > STRANGER_READS {
            self.strangers.pop_front();
        }
    }

    /// Remembers what the engine said now, as far back as windows look.
    pub(super) fn remember(&mut self, figures: &RankMetrics, keep_ms: u64, now: u64) {
        let sample = Sample {
            queued_requests: figures.waiting,
            running_requests: figures.running,
            kv_cache_usage: figures.kv_usage,
        };
        self.history.record(now, &sample, keep_ms);
    }

    /// Values of signals in their order; NaN for what the engine does not say, and for all when it was last heard too
    /// long ago.
    pub(super) fn signals(&self, signals: &[v1::WindowedSignal], interval_ms: u64, now: u64) -> Vec<f32> {
        let Some(seen) = self.health.metrics(interval_ms, now) else { return vec![f32::NAN; signals.len()] };
        let mut values = self.history.values(signals, now);
        for (value, signal) in values.iter_mut().zip(signals) {
            let said = match signal.signal() {
                Signal::QueuedRequests => seen.waiting,
                Signal::RunningRequests => seen.running,
                Signal::KvCacheUsage => seen.kv_usage,
                // Of a request, not of a worker.
                Signal::PredictedTtft => None,
            };
            if said.is_none() {
                *value = f32::NAN;
            }
        }
        values
    }

    pub(super) fn wire(
        &self,
        totals: Totals,
        proxies: u32,
        model: LatencyModel,
        interval_ms: u64,
        now: u64,
    ) -> v1::Worker {
        v1::Worker {
            id: self.id,
            worker_set: self.set_id,
            name: self.wanted.name.name.clone(),
            address: self.wanted.address.to_string(),
            state: self.health.state(now).into(),
            data_parallel_rank: self.wanted.rank,
            load: Some(self.load(totals, proxies, interval_ms, now)),
            latency: Some(self.pace.of(model).into()),
            ..Default::default()
        }
    }
}
