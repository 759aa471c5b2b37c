//! What `/status` says of policies, and of the pools whose state they ask about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kinference_api::{Kind, ObjectKey};
use kinference_protocol::v1::{Aggregate, Signal, WindowedSignal, WorkerState};
use serde::Serialize;

use super::backend::Backend;
use super::view::Viewer;
use super::{Fleet, PolicyPlan};

/// A policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// True while a version of it is in force in some gateway backend: the one of the files, unless it has problems.
    pub in_force: bool,
    /// The gateway backends in which it is in force, "namespace/name".
    pub backends: Vec<String>,
    /// Its rules that filters were told, in their order, each once.
    pub rules: Vec<String>,
    /// What is wrong with it in the files. While any file has a problem, the last good configuration stays in force.
    pub problems: Vec<String>,
    /// What most likely is not meant in the version in force.
    pub warnings: Vec<String>,
}

/// A pool, as rules of a gateway backend see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Its worker sets, "namespace/name".
    pub worker_sets: Vec<String>,
    /// Its workers.
    pub workers: WorkerCount,
    /// Requests that wait in the engine: the mean over ready workers; absent when none says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_requests: Option<f32>,
    /// Requests that the engine computes, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_requests: Option<f32>,
    /// Share of the KV cache in use, 0 to 1, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<f32>,
    /// The signals that rules look at.
    pub signals: Vec<SignalStatus>,
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCount {
    /// All.
    pub total: usize,
    /// Those that take requests.
    pub ready: usize,
}

/// A signal of a pool, as filters are told it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalStatus {
    /// As policies name it.
    pub signal: &'static str,
    /// The window, such as "30s"; absent for the newest value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// As policies name it.
    pub aggregate: &'static str,
    /// Absent when it is missing: bounds on it do not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f32>,
}

impl Fleet {
    /// Proxies whose filters are connected.
    pub(super) fn proxies(&self) -> u32 {
        let ids: BTreeSet<&str> = self.filters.values().map(|filter| filter.hello.proxy_id.as_str()).collect();
        u32::try_from(ids.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn viewer(&self, now: u64) -> Viewer<'_> {
        let proxies = self.proxies();
        Viewer { sets: &self.sets, workers: &self.workers, traffic: &self.traffic, proxies, now }
    }

    pub(super) fn pool_statuses(&self, backend: &Backend, now: u64) -> BTreeMap<String, PoolStatus> {
        let viewer = self.viewer(now);
        // What a request is predicted to take is no figure of a pool.
        let windows = backend.fleet.signals.iter().filter(|signal| signal.signal() != Signal::PredictedTtft);
        let windows: Vec<WindowedSignal> = windows.copied().collect();
        let newest = [Signal::QueuedRequests, Signal::RunningRequests, Signal::KvCacheUsage]
            .map(|signal| WindowedSignal { signal: signal.into(), ..Default::default() });
        let status = |sets: &[ObjectKey]| {
            let newest = viewer.pool(sets, &newest);
            let now_is = |at: usize| newest.get(at).copied().filter(|value| !value.is_nan());
            let ready = |worker: &&super::worker::Worker| worker.health.state(now) == WorkerState::Ready;
            PoolStatus {
                worker_sets: sets.iter().map(ToString::to_string).collect(),
                workers: WorkerCount {
                    total: viewer.members(sets).count(),
                    ready: viewer.members(sets).filter(ready).count(),
                },
                queued_requests: now_is(0),
                running_requests: now_is(1),
                kv_cache_usage: now_is(2),
                signals: windows
                    .iter()
                    .zip(viewer.pool(sets, &windows))
                    .map(|(w, value)| signal_status(w, value))
                    .collect(),
            }
        };
        let pools = backend.fleet.pools.iter();
        pools.map(|pool| (pool.key.to_string(), status(&pool.worker_sets))).collect()
    }

    pub(super) fn policy_statuses(&self) -> BTreeMap<String, PolicyStatus> {
        let mut statuses = BTreeMap::new();
        for (key, plan) in &self.config.policies {
            statuses.insert(key.to_string(), self.policy_status(key, plan));
        }
        for ((kind, key), outcome) in &self.config.faults.outcomes {
            if *kind == Kind::InferencePolicy && !outcome.problems.is_empty() {
                let status = statuses.entry(key.to_string()).or_insert_with(PolicyStatus::default);
                status.problems.clone_from(&outcome.problems);
            }
        }
        statuses
    }

    fn policy_status(&self, key: &ObjectKey, plan: &PolicyPlan) -> PolicyStatus {
        let mut rules: Vec<String> = Vec::new();
        for backend in plan.backends.iter().filter_map(|backend| self.backends.get(backend)) {
            for rule in backend.rule_names() {
                let own = rule.split_once('/').filter(|(policy, _)| *policy == key.name);
                if let Some((_, name)) = own
                    && !rules.iter().any(|known| known == name)
                {
                    rules.push(name.to_owned());
                }
            }
        }
        PolicyStatus {
            in_force: !plan.backends.is_empty(),
            backends: plan.backends.iter().map(ToString::to_string).collect(),
            rules,
            problems: Vec::new(),
            warnings: plan.warnings.clone(),
        }
    }
}

fn signal_status(signal: &WindowedSignal, value: f32) -> SignalStatus {
    SignalStatus {
        signal: match signal.signal() {
            Signal::QueuedRequests => "QueuedRequests",
            Signal::RunningRequests => "RunningRequests",
            Signal::KvCacheUsage => "KvCacheUsage",
            Signal::PredictedTtft => "PredictedTTFT",
        },
        over: (signal.over_ms > 0).then(|| format!("{:?}", Duration::from_millis(signal.over_ms))),
        aggregate: match signal.aggregate() {
            Aggregate::Last => "Last",
            Aggregate::Average => "Average",
            Aggregate::Max => "Max",
            Aggregate::Min => "Min",
        },
        value: (!value.is_nan()).then_some(value),
    }
}
