//! Compilation of one gateway backend.
//!
//! Two steps, because the second needs what only the control service can find out:
//!
//! 1. [`fleet`]: resources to a [`FleetSpec`]: which worker sets the backend uses and where their workers are. From it
//!    the control service loads tokenizers, connects to workers and learns their block size and adapters.
//! 2. [`config`]: the fleet and each set's [`WorkerSetAssets`] to the `Config` section of the snapshot.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use kinference_protocol::v1;

use crate::ObjectKey;
use crate::kinds::{Engine, HuggingFace, LabelSelector, Port, ProviderApi, Role};

mod config;
mod fleet;
mod policies;
mod providers;
#[cfg(test)]
mod tests;

pub use config::config;
pub use fleet::fleet;
pub use policies::policies_of;
pub use providers::{EndpointError, Upstream, provider_cluster, upstream};

/// What one gateway backend serves, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSpec {
    /// The gateway backend.
    pub backend: ObjectKey,
    /// Its settings.
    pub settings: BackendSettings,
    /// The worker sets of its pools, by name, each once.
    pub worker_sets: Vec<WorkerSetSpec>,
    /// Its pools, in the backend's order; the id of each in the snapshot is its place.
    pub pools: Vec<PoolSpec>,
    /// Its providers, in the backend's order. None is ready, and none has credentials: the caller knows of both.
    pub providers: Vec<ProviderSpec>,
    /// The rules that are in force, in their order.
    pub rules: Vec<v1::Rule>,
    /// The signals that rules look at. Workers and pools carry their values in this order.
    pub signals: Vec<v1::WindowedSignal>,
    /// Who sends requests.
    pub tenancy: v1::Tenancy,
}

/// Settings of a gateway backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    /// Larger request bodies get 413; bytes.
    pub request_body_limit: u64,
    /// Whether filters add debug headers.
    pub debug_headers: bool,
    /// What happens when a filter cannot decide.
    pub failure_mode: v1::FailureMode,
    /// After this long without a message, filters ignore prefixes and load.
    pub stale_after: Duration,
    /// Memory of the prefix index in each filter VM, in bytes.
    pub index_max_bytes: u64,
    /// The grid that the user asked for, in bytes: a power of two. The one in force may be coarser.
    pub chunk_bytes: u32,
}

/// A provider.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderSpec {
    /// The provider.
    pub key: ObjectKey,
    /// The API that it speaks.
    pub api: ProviderApi,
    /// The Secret of its namespace that holds its credentials; None: requests carry none.
    pub secret: Option<String>,
    /// As filters know it.
    pub wire: v1::Provider,
}

/// A pool and its worker sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The pool.
    pub key: ObjectKey,
    /// Its worker sets, by name.
    pub worker_sets: Vec<ObjectKey>,
}

/// A worker set, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSetSpec {
    /// The id that the snapshot gives it: its place by name, from 0. A caller that keeps ids over changes may set its
    /// own before it calls [`config`]; they must differ.
    pub id: u32,
    /// The worker set.
    pub key: ObjectKey,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The engine that its workers run.
    pub engine: Engine,
    /// The model that clients ask for.
    pub model: String,
    /// Where the tokenizer's files come from.
    pub tokenizer: TokenizerSource,
    /// A chat template that replaces the tokenizer's own.
    pub chat_template: Option<String>,
    /// Where its workers are.
    pub workers: WorkersSpec,
    /// Data-parallel ranks of each worker; at least 1.
    pub data_parallel_size: u32,
    /// The topic to subscribe to; None: the set has no KV events (routed mode).
    pub kv_topic: Option<String>,
    /// Path of the metrics on the worker's HTTP port, with a leading slash.
    pub metrics_path: String,
    /// How often metrics are read; never zero.
    pub metrics_interval: Duration,
    /// Which part of a request its workers do.
    pub role: Role,
}

/// Where a tokenizer's files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A folder; a relative one was made relative to the folder of its file.
    Folder(PathBuf),
    /// A ConfigMap of the worker set's namespace, by name.
    ConfigMap(String),
    /// A repository of the Hugging Face hub.
    HuggingFace(HuggingFace),
}

/// Where the workers of a set are.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkersSpec {
    /// Listed by address.
    Static(Vec<WorkerSpec>),
    /// Pods of the set's namespace, with the ports that all of them use.
    Selector {
        /// Which Pods.
        selector: LabelSelector,
        /// Port of the engine's HTTP server; a name is looked up in each Pod's containers.
        port: Port,
        /// Ports of KV events; None: routed mode.
        kv_events: Option<KvPorts>,
    },
}

/// A worker that is listed by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Name within its set.
    pub name: String,
    /// IP address.
    pub ip: IpAddr,
    /// Port of the engine's HTTP server.
    pub port: u16,
    /// Ports of KV events; None: routed mode.
    pub kv_events: Option<KvPorts>,
}

/// Ports of a worker's KV events, those of rank 0; rank r uses each plus r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPorts {
    /// The publisher.
    pub events: u16,
    /// The replay socket, when the engine has one.
    pub replay: Option<u16>,
}

impl WorkerSpec {
    /// Where the worker takes HTTP requests. Displays as the snapshot and Envoy write it: `10.0.0.7:8000`,
    /// `[fd00::8]:8000`.
    pub fn http_address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

impl KvPorts {
    /// The ports of a data-parallel rank. A port past 65535 cannot be reached through checked resources; it saturates.
    pub fn of_rank(self, rank: u32) -> KvPorts {
        let rank = u16::try_from(rank).unwrap_or(u16::MAX);
        KvPorts { events: self.events.saturating_add(rank), replay: self.replay.map(|port| port.saturating_add(rank)) }
    }
}

/// What the control service found out about a worker set.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSetAssets {
    /// The chat template with the special tokens that it may use; None: prompts of chats have no text that the filter
    /// knows.
    pub template: Option<v1::Template>,
    /// What the tokenizer does to text before it cuts it into tokens.
    pub normalization: v1::Normalization,
    /// Literal text of the special tokens that the engine puts before a completion prompt.
    pub completion_prefix: String,
    /// How the set's prefixes are learned.
    pub prefix_mode: v1::PrefixMode,
    /// Average bytes of text a token; values below 0.1 and those that are no number count as 0.1.
    pub bytes_per_token: f32,
    /// Tokens of one KV-cache block; 0 counts as 1.
    pub block_tokens: u32,
    /// LoRA adapters that the engine serves beside the model.
    pub adapters: Vec<String>,
    /// In routed mode: how long a prefix is believed to be cached after it was sent.
    pub routed_ttl: Duration,
}

impl Default for WorkerSetAssets {
    /// What is safe to assume before anything is known: routed mode, 4 bytes a token, blocks of 16 tokens, 2 minutes.
    fn default() -> Self {
        WorkerSetAssets {
            template: None,
            normalization: v1::Normalization::None,
            completion_prefix: String::new(),
            prefix_mode: v1::PrefixMode::Routed,
            bytes_per_token: 4.0,
            block_tokens: 16,
            adapters: Vec::new(),
            routed_ttl: Duration::from_secs(120),
        }
    }
}

/// Why a gateway backend could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is no such gateway backend.
    #[error("there is no GatewayBackend {wanted}; {}", known_backends(.known))]
    UnknownBackend {
        /// The one that was asked for.
        wanted: ObjectKey,
        /// Those that exist.
        known: Vec<ObjectKey>,
    },
    /// A resource did not pass [`crate::check`]; loading from files cannot bring this about.
    #[error("{resource}: {message}")]
    Unchecked {
        /// The resource.
        resource: ObjectKey,
        /// What is wrong with it.
        message: String,
    },
    /// A worker set without assets.
    #[error("nothing is known of worker set {0} yet; pass its assets, or the defaults")]
    MissingAssets(ObjectKey),
    /// Two worker sets with the same id.
    #[error("worker sets {0} and {1} have the same id; give each its own")]
    SameId(ObjectKey, ObjectKey),
}

fn known_backends(known: &[ObjectKey]) -> String {
    if known.is_empty() {
        return "the configuration has none at all".into();
    }
    let names: Vec<String> = known.iter().map(ObjectKey::to_string).collect();
    format!("the configuration has {}", names.join(", "))
}
