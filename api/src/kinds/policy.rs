//! `InferencePolicy`: the rules.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, NameReference};
use crate::units::{Decimal, Period};

/// Rules that say where requests may go and what is best for them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "InferencePolicy",
    plural = "inferencepolicies",
    namespaced,
    status = "InferencePolicyStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct InferencePolicySpec {
    /// Gateway backends that the policy is for. Absent: all of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_backends: Option<Vec<NameReference>>,
    /// Policies with a higher priority come first, then by name. Default: 0.
    #[serde(default)]
    pub priority: i32,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule. All rules that match a request count: their requirements hold together, and each choice (`candidates`,
/// `minimize`, `onEmpty`) comes from the first that states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Name of the rule, unique within its policy; shown in traces and metrics.
    pub name: String,
    /// Which requests the rule matches. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Which models may answer. Absent: the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<Candidates>,
    /// What the choice among candidates minimizes. Absent: `PredictedTTFT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimize: Option<Objective>,
    /// With `minimize: Cost`: the cheapest among candidates whose predicted time to first token is within this.
    /// Default: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_budget: Option<Period>,
    /// What every candidate must satisfy, those of fallback tiers too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Requirements>,
    /// Tiers to use, in order, when no candidate satisfies the requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<FallbackTier>,
    /// What happens when nothing is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_empty: Option<OnEmpty>,
    /// Rejects the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<Reject>,
}

/// Which requests a rule matches. All that is stated must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct When {
    /// Tenants, as globs; one must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Requested models, as globs; one must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Tags of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<TagCondition>,
    /// States of pools; all must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<PoolCondition>>,
}

/// A condition on the tags of a request. All that is stated must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TagCondition {
    /// The request has every one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all: Vec<String>,
    /// The request has at least one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub any: Vec<String>,
    /// The request has none of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub none: Vec<String>,
}

/// A condition on the state of a pool. Exactly one of `max`, `below` and `atLeast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolCondition {
    /// Name of the pool.
    pub name: String,
    /// What is looked at, averaged over the pool's ready workers.
    pub signal: Signal,
    /// Holds when the signal is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// Holds when the signal is less than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Decimal>,
    /// Holds when the signal is this or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Decimal>,
    /// The window that is looked at. Absent: the newest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Period>,
    /// How the values of the window become one. Default: `Last`.
    #[serde(default)]
    pub aggregate: Aggregate,
}

/// A requirement on each worker's state. Exactly one of `max`, `below` and `atLeast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerRequirement {
    /// What is looked at.
    pub signal: Signal,
    /// Holds when the signal is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// Holds when the signal is less than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Decimal>,
    /// Holds when the signal is this or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Decimal>,
    /// The window that is looked at. Absent: the newest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Period>,
    /// How the values of the window become one. Default: `Last`.
    #[serde(default)]
    pub aggregate: Aggregate,
}

/// A figure of a worker or pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// Requests that wait in the engine.
    QueuedRequests,
    /// Requests that the engine works on.
    RunningRequests,
    /// Share of the KV cache in use, 0 to 1.
    KvCacheUsage,
    /// Predicted time to first token of the request, in milliseconds.
    #[serde(rename = "PredictedTTFT")]
    PredictedTtft,
}

/// How the values of a window become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Aggregate {
    /// The newest.
    #[default]
    Last,
    /// The mean.
    Average,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Which models may answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidates {
    /// Names of models, at least one. They are not expanded by other rules.
    pub models: Vec<String>,
}

/// What the choice among candidates minimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Objective {
    /// Predicted time to first token.
    #[serde(rename = "PredictedTTFT")]
    PredictedTtft,
    /// Price of the request.
    Cost,
    /// Requests that wait in the engine.
    QueuedRequests,
}

/// What every candidate must satisfy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requirements {
    /// Load requirements on each worker. They yield only with `onEmpty.action: Continue`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerRequirement>,
    /// Where the prompt may go. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// The only providers that may be used. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<String>>,
    /// The only pools whose workers may be used. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
}

/// Where a prompt may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Locality {
    /// Only to workers of worker sets.
    Local,
    /// Only to providers.
    External,
}

/// A tier of candidates for when those before are exhausted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FallbackTier {
    /// Names of providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
    /// Names of models whose workers are candidates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

/// What happens when nothing is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnEmpty {
    /// What to do.
    pub action: OnEmptyAction,
    /// HTTP status of a rejection, 400 to 599. Default: 503.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub status: Option<u16>,
    /// The `retry-after` of a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Period>,
    /// What a rejection tells the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What to do when nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnEmptyAction {
    /// The candidates without the load requirements are used.
    Continue,
    /// The request is rejected.
    Reject,
}

/// Rejects a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reject {
    /// HTTP status, 400 to 599. Default: 503.
    #[serde(default = "default_reject_status")]
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// The `retry-after` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Period>,
    /// What the client is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

fn default_reject_status() -> u16 {
    503
}

/// What the control service observed of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePolicyStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `InForce`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
