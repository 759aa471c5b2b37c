//! `InferenceWorkerSet`: engine processes that serve one model the same way.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, LabelSelector, NameReference, Port, SecretKeyReference, WorkerCounts, rules};
use crate::limits;
use crate::units::{Decimal, Period};

/// Engine processes that serve one model the same way.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "InferenceWorkerSet",
    plural = "inferenceworkersets",
    namespaced,
    status = "InferenceWorkerSetStatus",
    derive = "PartialEq",
    doc = "Engine processes that serve one model the same way.",
    shortname = "kws",
    category = "kinference",
    printcolumn(name = "MODEL", type_ = "string", json_path = ".spec.model.name"),
    printcolumn(name = "WORKERS", type_ = "integer", json_path = ".status.workers.total"),
    printcolumn(name = "WORKERS READY", type_ = "integer", json_path = ".status.workers.ready"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(
        name = "FIDELITY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='PromptFidelity')].status"
    ),
    printcolumn(
        name = "EVENTS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='EventsHealthy')].status",
        priority = 1
    ),
    printcolumn(name = "ENGINE", type_ = "string", json_path = ".spec.engine", priority = 1),
    printcolumn(name = "CACHED TOKENS", type_ = "integer", json_path = ".status.cachedTokens", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::rule(
        "has(self.kvEvents) || !has(self.workers.static) || \
         self.workers.static.all(worker, !has(worker.kvEventsPort) && !has(worker.kvReplayPort))",
        "a worker has a kvEventsPort or kvReplayPort, and the worker set has no KV events \
         (add spec.kvEvents, or remove the port)",
    ),
    validation = rules::rule(
        "!has(self.kvEvents) || has(self.workers.static) || \
         self.kvEvents.port + self.workers.dataParallelSize <= 65536 && \
         (!has(self.kvEvents.replayPort) || self.kvEvents.replayPort + self.workers.dataParallelSize <= 65536)",
        "the last rank would use a port above 65535 (leave room for dataParallelSize ports)",
    ),
    validation = rules::rule(
        "!has(self.kvEvents) || !has(self.workers.static) || self.workers.static.all(worker, \
         (has(worker.kvEventsPort) ? worker.kvEventsPort : self.kvEvents.port) \
         + self.workers.dataParallelSize <= 65536 && \
         (has(worker.kvReplayPort) ? worker.kvReplayPort : \
         has(self.kvEvents.replayPort) ? self.kvEvents.replayPort : 1) \
         + self.workers.dataParallelSize <= 65536)",
        "the last rank of a worker would use a port above 65535 (leave room for dataParallelSize ports)",
    ),
    validation = rules::rule(
        "!has(self.kvEvents) || !has(self.kvEvents.replayPort) || has(self.workers.static) || \
         self.kvEvents.port + self.workers.dataParallelSize <= self.kvEvents.replayPort || \
         self.kvEvents.replayPort + self.workers.dataParallelSize <= self.kvEvents.port",
        "kvEvents.port and kvEvents.replayPort overlap \
         (each needs ports of its own, KV events dataParallelSize of them)",
    ),
    validation = rules::rule(
        "!has(self.kvEvents) || has(self.workers.static) || type(self.workers.port) != int || \
         !(self.workers.port >= self.kvEvents.port && \
         self.workers.port < self.kvEvents.port + self.workers.dataParallelSize) && \
         !(has(self.kvEvents.replayPort) && self.workers.port >= self.kvEvents.replayPort && \
         self.workers.port < self.kvEvents.replayPort + self.workers.dataParallelSize)",
        "workers.port overlaps those of kvEvents (each needs ports of its own, KV events dataParallelSize of them)",
    )
)]
pub struct InferenceWorkerSetSpec {
    /// The engine that the workers run.
    #[serde(default)]
    pub engine: Engine,
    /// The model that the workers serve.
    pub model: Model,
    /// Where the workers are.
    pub workers: WorkerSource,
    /// Where the workers publish KV-cache events. Absent: routed mode, in which prefixes are learned from where
    /// requests were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<KvEvents>,
    /// Where and how often engine metrics are read.
    #[serde(default)]
    pub metrics: Metrics,
    /// Which part of a request the workers do. Not in force yet: every worker set gets whole requests.
    #[serde(default)]
    pub role: Role,
}

/// The engine that workers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Engine {
    /// vLLM.
    #[default]
    #[serde(rename = "vLLM")]
    Vllm,
    /// SGLang.
    #[serde(rename = "SGLang")]
    Sglang,
    /// TensorRT-LLM.
    #[serde(rename = "TensorRTLLM")]
    TensorRtLlm,
}

/// The model that a worker set serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// The name that the engine serves and that clients ask for.
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    #[x_kube(validation = rules::matches(
        r"^[^\x00-\x1f\x7f-\x9f]+$",
        "not a model's name (at most 256 bytes, without control characters)",
    ))]
    pub name: String,
    /// Where the tokenizer's files come from.
    pub tokenizer: Tokenizer,
    /// Jinja source of a chat template that replaces the tokenizer's own. Give the engine the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::TEMPLATE))]
    pub chat_template: Option<String>,
}

/// Where tokenizer.json, tokenizer_config.json and chat_template.jinja come from. Exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::exactly_one(&["path", "configMap", "huggingFace"]))]
pub struct Tokenizer {
    /// A folder that the control service can read. In a file, a relative path is relative to that file's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::URL), regex(pattern = rules::NOT_BLANK))]
    pub path: Option<String>,
    /// A ConfigMap of the same namespace whose keys are the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<NameReference>,
    /// A repository of the Hugging Face hub. Not fetched yet: download it, and use `path` or `configMap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFace>,
}

/// A repository of the Hugging Face hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HuggingFace {
    /// Name of the repository, such as `Qwen/Qwen3.8-27B-FP8`.
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub repository: String,
    /// Branch, tag or commit. Default: `main`.
    #[serde(default = "main_revision")]
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub revision: String,
    /// The access token, for repositories that need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
}

fn main_revision() -> String {
    "main".into()
}

/// Where the workers of a set are. Exactly one of `selector` and `static`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::exactly_one(&["selector", "static"]),
    validation = rules::rule(
        "!has(self.static) || type(self.port) == int",
        "port is the name of a port, which only Pods have (static workers need a number)",
    )
)]
pub struct WorkerSource {
    /// Selects the Pods of the same namespace that are workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(
        "has(self.matchLabels) && size(self.matchLabels) > 0 || \
         has(self.matchExpressions) && size(self.matchExpressions) > 0",
        "selects every Pod of the namespace (state matchLabels or matchExpressions)",
    ))]
    pub selector: Option<LabelSelector>,
    /// Lists the workers by address.
    #[serde(default, rename = "static", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::STATIC_WORKERS))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub static_workers: Option<Vec<StaticWorker>>,
    /// Port of the engine's HTTP server: 1 to 65535, or with `selector` the name of a container's port. Default: 8000.
    #[serde(default = "default_port")]
    #[x_kube(validation = rules::rule(
        "type(self) == int ? self >= 1 && self <= 65535 : \
         self.matches('^[a-z0-9]+(-[a-z0-9]+)*$') && self.matches('[a-z]') && size(self) <= 15",
        "not a port (1 to 65535, or with selector the name of a container's port: at most 15 lower-case letters, \
         digits and `-`, with a letter)",
    ))]
    pub port: Port,
    /// Data-parallel ranks of each worker, 1 to 256; each is a candidate of its own. Default: 1.
    #[serde(default = "default_data_parallel_size")]
    #[schemars(range(min = 1, max = limits::RANKS))]
    pub data_parallel_size: u32,
}

fn default_port() -> Port {
    Port::Number(8000)
}

fn default_data_parallel_size() -> u32 {
    1
}

/// A worker that is listed by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticWorker {
    /// Name of the worker, unique within its set: letters, digits, `-`, `_` and `.`.
    #[schemars(length(min = 1, max = limits::SHORT_NAME))]
    #[x_kube(validation = rules::short_name("worker"))]
    pub name: String,
    /// IP address, without port; IPv6 without brackets.
    #[schemars(length(min = 1, max = 45))]
    #[x_kube(validation = rules::rule(
        "isIP(self) && !ip(self).isUnspecified() && !self.matches('^(22[4-9]|23[0-9])[.]|^[fF][fF]..:')",
        "not the IP address of a worker (write an IP address such as 10.0.0.7 or fd00::8, without port and brackets)",
    ))]
    pub address: String,
    /// HTTP port of this worker, where it differs from the set's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// KV-event port of this worker, where it differs from the set's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_events_port: Option<u16>,
    /// Replay port of this worker, where it differs from the set's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_replay_port: Option<u16>,
}

/// Where workers publish KV-cache events (ZMQ). Rank r of a worker uses each port plus r.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvEvents {
    /// Port of rank 0's publisher. Default: 5557.
    #[serde(default = "default_kv_events_port")]
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Port of rank 0's replay socket. Absent: the engine has none, and events that were lost clear what is known of
    /// the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replay_port: Option<u16>,
    /// Topic to subscribe to. Default: the empty topic, which is all of them.
    #[serde(default)]
    #[schemars(length(max = limits::NAME))]
    pub topic: String,
}

fn default_kv_events_port() -> u16 {
    5557
}

/// Where and how often engine metrics are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Path on the worker's HTTP port. Default: `/metrics`.
    #[serde(default = "default_metrics_path")]
    #[schemars(length(min = 1, max = limits::URL))]
    #[x_kube(validation = rules::matches("^/[!-~]*$", "not a path (start with `/`)"))]
    pub path: String,
    /// How often, 10ms to 1m. Default: `250ms`.
    #[serde(default = "default_metrics_interval")]
    #[x_kube(validation = rules::period_within(limits::METRICS_INTERVAL))]
    pub interval: Period,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { path: default_metrics_path(), interval: default_metrics_interval() }
    }
}

fn default_metrics_path() -> String {
    "/metrics".into()
}

fn default_metrics_interval() -> Period {
    Period::from_millis(250)
}

/// Which part of a request workers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

/// What the control service observed of a worker set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceWorkerSetStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Workers of the set.
    #[serde(default)]
    pub workers: WorkerCounts,
    /// Average bytes of text a token, measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<Decimal>,
    /// Prompt tokens that the workers together hold in their caches.
    #[serde(default)]
    pub cached_tokens: u64,
    /// `Ready`, `TokenizerLoaded`, `PromptFidelity`, `EventsHealthy`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
