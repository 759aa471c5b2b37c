//! The status that people and `kinfctl` read, and the gauges that say the same to Prometheus.

use std::collections::BTreeMap;

use kinference_protocol::v1;
use serde::Serialize;

use super::Fleet;
use super::backend::{Backend, by_events};
use super::fidelity::Verdict;
use super::fleet::state_name;
use super::policies::{PolicyStatus, PoolStatus};
use super::providers::ProviderStatus;
use super::set::Mode;
use super::source::SourceStatus;
use super::worker::EventHealth;
use crate::conditions::{Assessed, Assessments, assess};
use crate::eds::Peer;
use crate::push::Confidentiality;
use crate::tls::TlsStatus;

/// Everything, as JSON with camelCase names.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of this service.
    pub version: &'static str,
    /// The configuration.
    pub config: ConfigStatus,
    /// The cluster that it comes from; absent with files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// By "namespace/name".
    pub backends: BTreeMap<String, BackendStatus>,
    /// By "namespace/name": those in force, and those that are to be and cannot.
    pub policies: BTreeMap<String, PolicyStatus>,
    /// By "namespace/name".
    pub worker_sets: BTreeMap<String, SetStatus>,
    /// How filters are served.
    pub link: LinkStatus,
    /// By "namespace/name".
    pub providers: BTreeMap<String, ProviderStatus>,
    /// What is said of every resource, as its status has it in Kubernetes: by kind and name.
    pub resources: Vec<ResourceView>,
    /// Connected filters.
    pub filters: Vec<FilterStatus>,
    /// Envoys that take their endpoints from here.
    pub envoys: Vec<Peer>,
}

/// Whether what is on disk is in force.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStatus {
    /// True while the files are the configuration in force.
    pub valid: bool,
    /// True once any configuration is in force; a later bad one changes nothing.
    pub in_force: bool,
    /// All that is wrong with the files.
    pub problems: Vec<String>,
    /// What most likely is not meant in the configuration in force.
    pub warnings: Vec<String>,
    /// Configurations that took force.
    pub loads: u64,
}

/// How filters are served: who can read what they are told.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// What guards the port.
    pub confidentiality: Confidentiality,
    /// Why filters are not told the credentials of providers, and what to do; absent when they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_withheld: Option<&'static str>,
    /// Certificates; absent without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
}

impl Default for LinkStatus {
    /// The least that can be.
    fn default() -> Self {
        Confidentiality::PlainText.into()
    }
}

impl From<Confidentiality> for LinkStatus {
    fn from(confidentiality: Confidentiality) -> Self {
        Self { confidentiality, credentials_withheld: confidentiality.refusal(), tls: None }
    }
}

/// A gateway backend.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendStatus {
    /// The present epoch and sequence.
    pub epoch: u64,
    /// The sequence that filters are to hold.
    pub sequence: u64,
    /// Its worker sets, "namespace/name".
    pub worker_sets: Vec<String>,
    /// Its pools, by "namespace/name".
    pub pools: BTreeMap<String, PoolStatus>,
    /// The rules that filters were told, in their order: "policy/rule".
    pub rules: Vec<String>,
    /// The prefix index.
    pub prefix_index: IndexStatus,
    /// Filters with an open stream.
    pub filters_connected: usize,
    /// Of these, the ones that said they hold this epoch.
    pub filters_current: usize,
}

/// A prefix index.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexStatus {
    /// Chunks, counted once for each page of 64 workers.
    pub chunks: u64,
    /// Bytes in each filter.
    pub bytes: u64,
    /// Bytes that it may take.
    pub max_bytes: u64,
    /// The grid in force.
    pub chunk_bytes: u32,
    /// The grid that the user asked for.
    pub wanted_chunk_bytes: u32,
}

/// A worker set.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetStatus {
    /// The model it serves.
    pub model: String,
    /// "events" or "routed".
    pub prefix_mode: &'static str,
    /// Why it is in routed mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_because: Option<String>,
    /// True when the filter's prompt text was found equal to the engine's, false when not; absent before an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_fidelity: Option<bool>,
    /// Why the tokenizer cannot be used; absent when it was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_problem: Option<String>,
    /// True when its workers publish KV events.
    pub kv_events: bool,
    /// Bytes of text a token, as filters were told.
    pub bytes_per_token: f32,
    /// The same, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_bytes_per_token: Option<f32>,
    /// Tokens of a KV-cache block, as filters were told.
    pub block_tokens: u32,
    /// By name.
    pub workers: BTreeMap<String, WorkerStatus>,
}

/// A resource, and what is said of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceView {
    /// Its kind.
    pub kind: &'static str,
    /// "namespace/name"
    pub name: String,
    /// Its status.
    #[serde(flatten)]
    pub assessed: Assessed,
}

/// A worker.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// Its id in snapshots.
    pub id: u32,
    /// "10.0.0.7:8000"
    pub address: String,
    /// "ready", "unready" or "unknown".
    pub state: &'static str,
    /// Why its metrics could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_problem: Option<String>,
    /// What it has to do.
    pub load: LoadStatus,
    /// Tokens of the blocks that its events say it holds.
    pub cached_tokens: u64,
    /// Its event stream; absent for a set without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventHealth>,
    /// How its time to first token is predicted.
    pub latency: LatencyStatus,
}

/// A worker's load, as filters were told.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadStatus {
    /// False when the engine's figures are missing or too old.
    pub known: bool,
    /// Requests that wait in the engine.
    pub queued_requests: f32,
    /// Requests that the engine computes.
    pub running_requests: f32,
    /// 0 to 1
    pub kv_cache_usage: f32,
    /// Uncached tokens without a first token yet.
    pub pending_prefill_tokens: u32,
    /// Requests that filters sent and that have not ended.
    pub in_flight: u32,
}

/// Coefficients of the TTFT model.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyStatus {
    /// Milliseconds with nothing to compute.
    pub base_ms: f32,
    /// Milliseconds a token.
    pub ms_per_token: f32,
    /// Milliseconds for each running request.
    pub ms_per_running: f32,
    /// Observations; 0 for the defaults.
    pub samples: u32,
}

/// A connected filter.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FilterStatus {
    /// "namespace/name"
    pub backend: String,
    /// The proxy's node id.
    pub proxy: String,
    /// The VM within the proxy, in hexadecimal.
    pub vm: String,
    /// The filter's build.
    pub build: String,
    /// What it said it holds; zeros before it said so.
    pub epoch: u64,
    /// What it said it holds.
    pub sequence: u64,
    /// Chunks of its index.
    pub index_chunks: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Messages that it refused.
    pub rejections: u64,
    /// Why, the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rejection: Option<String>,
}

impl Fleet {
    /// The present status. `envoys` and `link.tls` are for the edges to fill in.
    pub fn status(&self, now: u64) -> Status {
        let mut status = self.facts(now);
        let assessments = assess(&status, &self.config.faults.outcomes);
        status.resources = assessments
            .into_iter()
            .map(|((kind, key), assessed)| ResourceView { kind: kind.as_str(), name: key.to_string(), assessed })
            .collect();
        status
    }

    /// What is to be said of every resource.
    pub fn assessments(&self, now: u64) -> Assessments {
        assess(&self.facts(now), &self.config.faults.outcomes)
    }

    fn facts(&self, now: u64) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION"),
            config: ConfigStatus {
                valid: self.config.in_force && self.config.faults.problems.is_empty(),
                in_force: self.config.in_force,
                problems: self.config.faults.problems.clone(),
                warnings: self.config.warnings.clone(),
                loads: self.config.loads,
            },
            source: self.source_status(now),
            backends: self
                .backends
                .iter()
                .map(|(key, backend)| (key.to_string(), self.backend_status(backend, now)))
                .collect(),
            policies: self.policy_statuses(),
            worker_sets: self.set_statuses(now),
            link: self.confidentiality.into(),
            providers: self.providers.iter().map(|(key, status)| (key.to_string(), status.clone())).collect(),
            resources: Vec::new(),
            filters: self.filter_statuses(),
            envoys: Vec::new(),
        }
    }

    fn backend_status(&self, backend: &Backend, now: u64) -> BackendStatus {
        let stats = backend.store.stats();
        let connected = self.filters.values().filter(|filter| filter.backend == backend.fleet.backend);
        let current = connected.clone().filter(|f| f.applied.as_ref().is_some_and(|a| a.epoch == backend.epoch));
        BackendStatus {
            epoch: backend.epoch,
            sequence: backend.sequence,
            worker_sets: backend.fleet.worker_sets.iter().map(|set| set.key.to_string()).collect(),
            pools: self.pool_statuses(backend, now),
            rules: backend.rule_names().map(str::to_owned).collect(),
            prefix_index: IndexStatus {
                chunks: stats.chunks,
                bytes: stats.filter_bytes,
                max_bytes: backend.fleet.settings.index_max_bytes,
                chunk_bytes: stats.chunk_bytes,
                wanted_chunk_bytes: backend.fleet.settings.chunk_bytes,
            },
            filters_connected: connected.count(),
            filters_current: current.count(),
        }
    }

    /// Tokens that each worker's events say it holds, by worker id.
    fn cached_tokens(&self) -> BTreeMap<u32, u64> {
        let stats = self.backends.values().map(|backend| backend.store.stats());
        stats.flat_map(|stats| stats.workers).map(|(id, worker)| (id, worker.cached_tokens)).collect()
    }

    fn set_statuses(&self, now: u64) -> BTreeMap<String, SetStatus> {
        let cached = self.cached_tokens();
        let mut statuses = BTreeMap::new();
        for (key, set) in &self.sets {
            let assets = set.assets();
            let (prefix_mode, routed_because) = match set.mode() {
                Mode::Events => ("events", None),
                Mode::Routed(why) => ("routed", Some(why)),
            };
            let members = self.workers.values().filter(|worker| worker.set_id == set.id);
            let workers = members.map(|worker| {
                let wire = self.viewer(now).worker(worker);
                let (load, latency) = (wire.load.unwrap_or_default(), wire.latency.unwrap_or_default());
                let status = WorkerStatus {
                    id: worker.id,
                    address: wire.address,
                    state: state_name(worker.health.state(now)),
                    metrics_problem: worker.health.error.as_ref().map(ToString::to_string),
                    load: load_status(&load),
                    cached_tokens: cached.get(&by_events(worker.id)).copied().unwrap_or_default(),
                    events: worker.wanted.events.map(|_| worker.events.clone()),
                    latency: LatencyStatus {
                        base_ms: latency.base_ms,
                        ms_per_token: latency.ms_per_token,
                        ms_per_running: latency.ms_per_running,
                        samples: latency.samples,
                    },
                };
                (worker.wanted.name.name.clone(), status)
            });
            let status = SetStatus {
                model: set.spec.model.clone(),
                prefix_mode,
                routed_because,
                prompt_fidelity: fidelity(set.verdict.as_ref()),
                tokenizer_problem: set.model.as_ref().err().cloned(),
                kv_events: set.spec.kv_topic.is_some(),
                bytes_per_token: assets.bytes_per_token,
                measured_bytes_per_token: set.measured_bytes_per_token(),
                block_tokens: assets.block_tokens,
                workers: workers.collect(),
            };
            statuses.insert(key.to_string(), status);
        }
        statuses
    }

    fn filter_statuses(&self) -> Vec<FilterStatus> {
        let status = |filter: &super::reports::Filter| {
            let applied = filter.applied.unwrap_or_default();
            FilterStatus {
                backend: filter.backend.to_string(),
                proxy: filter.hello.proxy_id.clone(),
                vm: format!("{:016x}", filter.hello.vm_id),
                build: filter.hello.filter_build.clone(),
                epoch: applied.epoch,
                sequence: applied.sequence,
                index_chunks: applied.index_chunks,
                index_bytes: applied.index_bytes,
                rejections: filter.rejections,
                last_rejection: filter.last_rejection.clone(),
            }
        };
        self.filters.values().map(status).collect()
    }

    pub(super) fn set_gauges(&self, now: u64) {
        let metrics = &self.metrics;
        metrics.config_valid.set(i64::from(self.config.in_force && self.config.faults.problems.is_empty()));
        self.gauge_source(now);
        let cached = self.cached_tokens();
        for (key, set) in &self.sets {
            let mut states: BTreeMap<&'static str, i64> =
                BTreeMap::from([("ready", 0), ("unready", 0), ("unknown", 0)]);
            for worker in self.workers.values().filter(|worker| worker.set_id == set.id) {
                *states.entry(state_name(worker.health.state(now))).or_default() += 1;
                let tokens = cached.get(&by_events(worker.id)).copied().unwrap_or_default();
                let totals = self.traffic.totals(worker.serial);
                metrics.worker(&worker.wanted.name, totals.in_flight, totals.pending_prefill, tokens);
            }
            metrics.set(key, states, fidelity(set.verdict.as_ref()));
        }
        for (key, backend) in &self.backends {
            let filters = self.filters.values().filter(|filter| filter.backend == *key).count();
            metrics.backend(key, &backend.store.stats(), filters, backend.rule_names().count());
        }
    }
}

fn fidelity(verdict: Option<&Verdict>) -> Option<bool> {
    match verdict {
        Some(Verdict::Equal(_)) => Some(true),
        Some(Verdict::Different(_)) => Some(false),
        Some(Verdict::NoAnswer(_)) | None => None,
    }
}

fn load_status(load: &v1::Load) -> LoadStatus {
    LoadStatus {
        known: load.known,
        queued_requests: load.queued_requests,
        running_requests: load.running_requests,
        kv_cache_usage: load.kv_cache_usage,
        pending_prefill_tokens: load.pending_prefill_tokens,
        in_flight: load.in_flight,
    }
}
