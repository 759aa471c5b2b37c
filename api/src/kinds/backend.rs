//! `GatewayBackend`: what the filters of one gateway serve.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, NameReference, Tags, Tenancy, rules};
use crate::limits;
use crate::units::{Period, Size};

/// What the filters of one gateway serve, and within which limits.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "GatewayBackend",
    plural = "gatewaybackends",
    namespaced,
    status = "GatewayBackendStatus",
    derive = "PartialEq",
    doc = "What the filters of one gateway serve, and within which limits.",
    shortname = "kgb",
    category = "kinference",
    printcolumn(name = "FILTERS", type_ = "integer", json_path = ".status.filters.connected"),
    printcolumn(name = "CURRENT", type_ = "integer", json_path = ".status.filters.current"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(
        name = "INDEX IN BUDGET",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='PrefixIndexWithinBudget')].status",
        priority = 1
    ),
    printcolumn(name = "INDEX BYTES", type_ = "integer", json_path = ".status.prefixIndex.bytes", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(
    "has(self.pools) && size(self.pools) > 0 || has(self.providers) && size(self.providers) > 0",
    "serves nothing (name at least one pool or provider)",
))]
pub struct GatewayBackendSpec {
    /// Pools whose workers take requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::REFERENCES))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub pools: Vec<NameReference>,
    /// Providers that policies may send requests to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::REFERENCES))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub providers: Vec<NameReference>,
    /// Who may send requests, and how many. Absent: every request belongs to the tenant `anonymous`, without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenancy: Option<Tenancy>,
    /// How requests get the tags that policies match on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// The prefix index in each filter.
    #[serde(default)]
    pub prefix_index: PrefixIndex,
    /// Larger request bodies get 413. 1Ki to 128Mi. Default: `8Mi`.
    #[serde(default = "default_request_body_limit")]
    #[x_kube(validation = rules::size_within(limits::REQUEST_BODY))]
    pub request_body_limit: Size,
    /// Adds response headers that say what was decided and why. Default: false.
    #[serde(default)]
    pub debug_headers: bool,
    /// What happens to a request when the filter cannot decide.
    #[serde(default)]
    pub failure_mode: FailureMode,
    /// After this long without word from the control service, filters no longer trust what they know of caches and
    /// load. 1s to 1h. Default: `10s`.
    #[serde(default = "default_stale_after")]
    #[x_kube(validation = rules::period_within(limits::STALE_AFTER))]
    pub stale_after: Period,
}

fn default_request_body_limit() -> Size {
    Size::from_mebibytes(8)
}

fn default_stale_after() -> Period {
    Period::from_secs(10)
}

/// Bounds of the prefix index in each filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrefixIndex {
    /// Memory of the index in each filter VM, 64Ki to 512Mi; past it the grid gets coarser. Default: `64Mi`.
    #[serde(default = "default_index_bytes")]
    #[x_kube(validation = rules::size_within(limits::INDEX_BYTES))]
    pub max_bytes: Size,
    /// The grid on which prompts are cut, in bytes: a power of two from 16 to 65536. Default: 256.
    #[serde(default = "default_chunk_bytes")]
    #[schemars(range(min = limits::CHUNK_BYTES.0, max = limits::CHUNK_BYTES.1))]
    #[x_kube(validation = rules::rule(
        "self in [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]",
        "no power of two from 16 to 65536 (256 suits most)",
    ))]
    pub chunk_bytes: u32,
}

impl Default for PrefixIndex {
    fn default() -> Self {
        PrefixIndex { max_bytes: default_index_bytes(), chunk_bytes: default_chunk_bytes() }
    }
}

fn default_index_bytes() -> Size {
    Size::from_mebibytes(64)
}

fn default_chunk_bytes() -> u32 {
    256
}

/// What happens to a request when the filter cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureMode {
    /// Any healthy worker takes it.
    #[default]
    Open,
    /// It gets 503.
    Closed,
}

/// What the control service observed of the filters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayBackendStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Filters that are connected.
    #[serde(default)]
    pub filters: FilterCounts,
    /// The prefix index as the filters hold it.
    #[serde(default)]
    pub prefix_index: PrefixIndexStatus,
    /// `Ready`, `PrefixIndexWithinBudget`, `FiltersCurrent`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Filters of a gateway backend; every worker thread of every proxy has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilterCounts {
    /// Filters with an open stream.
    pub connected: u32,
    /// Filters that hold the newest configuration.
    pub current: u32,
}

/// The prefix index as filters hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrefixIndexStatus {
    /// Memory of the largest.
    pub bytes: u64,
    /// The grid in force, which may be coarser than the spec's.
    pub chunk_bytes: u32,
}
