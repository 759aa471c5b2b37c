//! The status of the control service, as its admin port answers it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What the control service answers. Fields that a version of it does not send have their defaults, and those that
/// this one does not know are passed over.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) config: Config,
    pub(crate) source: Option<Source>,
    pub(crate) backends: BTreeMap<String, Backend>,
    pub(crate) policies: BTreeMap<String, Policy>,
    pub(crate) worker_sets: BTreeMap<String, WorkerSet>,
    pub(crate) resources: Vec<Resource>,
    pub(crate) link: Option<Link>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) envoys: Vec<Envoy>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Config {
    pub(crate) valid: bool,
    pub(crate) in_force: bool,
    pub(crate) problems: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) loads: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Source {
    pub(crate) kubernetes: String,
    pub(crate) namespaces: Vec<String>,
    pub(crate) connected: bool,
    pub(crate) sync_age_seconds: Option<f64>,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Backend {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) worker_sets: Vec<String>,
    pub(crate) rules: Vec<String>,
    pub(crate) prefix_index: PrefixIndex,
    pub(crate) filters_connected: u64,
    pub(crate) filters_current: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PrefixIndex {
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) wanted_chunk_bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkerSet {
    pub(crate) model: String,
    pub(crate) prefix_mode: String,
    pub(crate) routed_because: Option<String>,
    pub(crate) prompt_fidelity: Option<bool>,
    pub(crate) tokenizer_problem: Option<String>,
    pub(crate) bytes_per_token: f64,
    pub(crate) block_tokens: u64,
    pub(crate) workers: BTreeMap<String, Worker>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Worker {
    pub(crate) address: String,
    pub(crate) state: String,
    pub(crate) metrics_problem: Option<String>,
    pub(crate) load: Load,
    pub(crate) cached_tokens: u64,
    pub(crate) events: Option<Events>,
    pub(crate) latency: Latency,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Load {
    pub(crate) known: bool,
    pub(crate) queued_requests: f64,
    pub(crate) running_requests: f64,
    pub(crate) kv_cache_usage: f64,
    pub(crate) in_flight: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Events {
    pub(crate) connected: bool,
    pub(crate) current: bool,
    pub(crate) last_problem: Option<String>,
    pub(crate) gaps: u64,
    pub(crate) restarts: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Latency {
    pub(crate) base_ms: f64,
    pub(crate) ms_per_token: f64,
    pub(crate) samples: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Filter {
    pub(crate) backend: String,
    pub(crate) proxy: String,
    pub(crate) vm: String,
    pub(crate) build: String,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) index_chunks: u64,
    pub(crate) rejections: u64,
    pub(crate) last_rejection: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Envoy {
    pub(crate) node: String,
    pub(crate) acknowledged: String,
    pub(crate) sent: String,
    pub(crate) refused: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Policy {
    pub(crate) in_force: bool,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Link {
    pub(crate) credentials_withheld: Option<String>,
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Tls {
    pub(crate) certificate_expires: String,
    pub(crate) client_ca_expires: Option<String>,
    pub(crate) problem: Option<String>,
    pub(crate) last_refused: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Resource {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}
