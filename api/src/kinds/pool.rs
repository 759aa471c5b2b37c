//! `InferencePool`: worker sets on one set of GPUs.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, LabelSelector, WorkerCounts, rules};
use crate::limits;
use crate::units::Decimal;

/// Worker sets on one set of GPUs, whose joint state policies can ask about.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "InferencePool",
    plural = "inferencepools",
    namespaced,
    status = "InferencePoolStatus",
    derive = "PartialEq",
    doc = "Worker sets on one set of GPUs, whose joint state policies can ask about.",
    shortname = "kpool",
    category = "kinference",
    printcolumn(name = "WORKERS", type_ = "integer", json_path = ".status.workers.total"),
    printcolumn(name = "WORKERS READY", type_ = "integer", json_path = ".status.workers.ready"),
    printcolumn(name = "QUEUED", type_ = "string", json_path = ".status.queuedRequests"),
    printcolumn(name = "KV CACHE", type_ = "string", json_path = ".status.kvCacheUsage"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolSpec {
    /// The worker sets of the pool.
    pub worker_sets: WorkerSetSelection,
}

/// Which worker sets of the namespace belong to a pool. Exactly one of `names` and `selector`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::exactly_one(&["names", "selector"]))]
pub struct WorkerSetSelection {
    /// Names of worker sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::REFERENCES), inner(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub names: Option<Vec<String>>,
    /// Selects worker sets by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What the control service observed of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Workers of the pool's sets.
    #[serde(default)]
    pub workers: WorkerCounts,
    /// Average of queued requests over the ready workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_requests: Option<Decimal>,
    /// Average share of the KV cache in use over the ready workers, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<Decimal>,
    /// `Ready`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
