//! `InferencePolicy`: the rules.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, NameReference, rules};
use crate::limits;
use crate::units::{Decimal, Period};

/// Rules that say where requests may go and what is best for them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "InferencePolicy",
    plural = "inferencepolicies",
    namespaced,
    status = "InferencePolicyStatus",
    derive = "PartialEq",
    doc = "Rules that say where requests may go and what is best for them.",
    shortname = "kpol",
    category = "kinference",
    printcolumn(name = "PRIORITY", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "ACCEPTED", type_ = "string", json_path = ".status.conditions[?(@.type=='Accepted')].status"),
    printcolumn(name = "IN FORCE", type_ = "string", json_path = ".status.conditions[?(@.type=='InForce')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InferencePolicySpec {
    /// Gateway backends that the policy is for. Absent: all of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::REFERENCES))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub gateway_backends: Option<Vec<NameReference>>,
    /// Policies with a higher priority come first, then by name. Default: 0.
    #[serde(default)]
    #[schemars(range(min = -limits::PRIORITY, max = limits::PRIORITY))]
    pub priority: i32,
    /// The rules, in order.
    #[schemars(length(max = limits::RULES))]
    #[x_kube(validation = rules::rule(
        "self.all(rule, self.exists_one(other, other.name == rule.name))",
        "a name of a rule is there twice",
    ))]
    // `self::`, since the derived schema has kube's own `Rule` in scope.
    pub rules: Vec<self::Rule>,
}

/// A rule. All rules that match a request count: their requirements hold together, and each choice (`candidates`,
/// `minimize`, `onEmpty`) comes from the first that states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::rule(
        "has(self.candidates) || has(self.minimize) || has(self.require) || has(self.onEmpty) || has(self.reject) || \
         has(self.fallback) && size(self.fallback) > 0",
        "the rule does nothing (state candidates, minimize, require, fallback, onEmpty or reject)",
    ),
    validation = rules::rule(
        "!has(self.ttftBudget) || has(self.minimize) && self.minimize == 'Cost'",
        "ttftBudget has no effect (it goes with minimize: Cost)",
    ),
    validation = rules::rule(
        "!has(self.fallback) || !has(self.require) || !has(self.require.locality) || \
         self.require.locality != 'Local' || \
         self.fallback.all(tier, !has(tier.providers) || size(tier.providers) == 0)",
        "a provider of a fallback can never be used: the rule requires locality Local \
         (move the fallback to a rule of its own, or drop one of the two)",
    ),
    validation = rules::rule(
        "!has(self.fallback) || !has(self.require) || !has(self.require.locality) || \
         self.require.locality != 'External' || \
         self.fallback.all(tier, !has(tier.models) || size(tier.models) == 0)",
        "models of a fallback can never be used: the rule requires locality External, and models are on workers \
         (name providers instead)",
    ),
    validation = rules::rule(
        "!has(self.fallback) || !has(self.require) || !has(self.require.providers) || \
         self.fallback.all(tier, !has(tier.providers) || \
         tier.providers.all(name, name in self.require.providers))",
        "a provider of a fallback can never be used: it is not of the rule's require.providers \
         (add it there, or drop the fallback)",
    )
)]
pub struct Rule {
    /// Name of the rule, unique within its policy; shown in traces and metrics.
    #[schemars(length(min = 1, max = limits::SHORT_NAME))]
    #[x_kube(validation = rules::short_name("rule"))]
    pub name: String,
    /// Which requests the rule matches. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Which models may answer. Absent: the requested one. Names that nobody serves are answered where `when.models` of
    /// a rule with candidates matches them; a tenant that may use such a name may use the models behind it when
    /// `when.models` states it without a glob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<Candidates>,
    /// What the choice among candidates minimizes. Absent: `PredictedTTFT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimize: Option<Objective>,
    /// With `minimize: Cost`: the cheapest among candidates whose predicted time to first token is within this.
    /// Default: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::not_zero())]
    pub ttft_budget: Option<Period>,
    /// What every candidate must satisfy, those of fallback tiers too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Requirements>,
    /// Tiers to use, in order, when no candidate satisfies the requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TIERS))]
    pub fallback: Vec<FallbackTier>,
    /// What happens when nothing is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_empty: Option<OnEmpty>,
    /// Rejects the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<Reject>,
}

/// Which requests a rule matches. All that is stated must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct When {
    /// Tenants, as globs; one must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::NAMES), inner(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub tenants: Option<Vec<String>>,
    /// Requested models, as globs; one must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::NAMES), inner(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub models: Option<Vec<String>>,
    /// Tags of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<TagCondition>,
    /// States of pools; all must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::BOUNDS))]
    #[x_kube(validation = rules::rule(
        "self.all(low, !has(low.atLeast) || self.all(high, high.name != low.name || high.signal != low.signal || \
         high.aggregate != low.aggregate || (has(high.over) ? high.over : '') != (has(low.over) ? low.over : '') || \
         (!has(high.max) || double(high.max) >= double(low.atLeast)) && \
         (!has(high.below) || double(high.below) > double(low.atLeast))))",
        "the rule can never match: two conditions on the same pool exclude each other \
         (all conditions of `when` must hold together)",
    ))]
    pub pools: Option<Vec<PoolCondition>>,
}

/// A condition on the tags of a request. All that is stated must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::rule(
        "!has(self.all) || !has(self.none) || !self.all.exists(tag, tag in self.none)",
        "the rule can never match: a tag must be there and must not (remove it from `all` or from `none`)",
    ),
    validation = rules::rule(
        "!has(self.any) || size(self.any) == 0 || !has(self.none) || !self.any.all(tag, tag in self.none)",
        "the rule can never match: every tag of `any` is in `none` (remove one from `none`)",
    )
)]
pub struct TagCondition {
    /// The request has every one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TAGS), inner(length(min = 1, max = limits::SHORT_NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub all: Vec<String>,
    /// The request has at least one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TAGS), inner(length(min = 1, max = limits::SHORT_NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub any: Vec<String>,
    /// The request has none of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TAGS), inner(length(min = 1, max = limits::SHORT_NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub none: Vec<String>,
}

/// A condition on the state of a pool. Exactly one of `max`, `below` and `atLeast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::bound::exactly_one(),
    validation = rules::bound::share(),
    validation = rules::bound::can_be_below(),
    validation = rules::bound::aggregate_needs_window(),
    validation = rules::rule(
        "self.signal != 'PredictedTTFT'",
        "PredictedTTFT is of a request on a worker, no pool has one \
         (write QueuedRequests, RunningRequests or KvCacheUsage)",
    )
)]
pub struct PoolCondition {
    /// Name of the pool.
    #[schemars(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME))]
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
    #[x_kube(validation = rules::period_within(limits::WINDOW))]
    pub over: Option<Period>,
    /// How the values of the window become one. Default: `Last`.
    #[serde(default)]
    pub aggregate: Aggregate,
}

/// A requirement on each worker's state. Exactly one of `max`, `below` and `atLeast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::bound::exactly_one(),
    validation = rules::bound::share(),
    validation = rules::bound::can_be_below(),
    validation = rules::bound::aggregate_needs_window(),
    validation = rules::bound::prediction_has_no_window()
)]
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
    #[x_kube(validation = rules::period_within(limits::WINDOW))]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidates {
    /// Names of models, at least one. They are not expanded by other rules.
    #[schemars(length(min = 1, max = limits::NAMES), inner(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
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
    #[schemars(length(max = limits::BOUNDS))]
    pub workers: Vec<WorkerRequirement>,
    /// Where the prompt may go. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// The only providers that may be used. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::REFERENCES), inner(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME)))]
    pub providers: Option<Vec<String>>,
    /// The only pools whose workers may be used. Never yields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::REFERENCES), inner(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME)))]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(
    "has(self.providers) && size(self.providers) > 0 || has(self.models) && size(self.models) > 0",
    "an empty tier (name providers or models)",
))]
pub struct FallbackTier {
    /// Names of providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::REFERENCES), inner(length(min = 1, max = limits::RESOURCE_NAME), regex(pattern = rules::RESOURCE_NAME)))]
    pub providers: Vec<String>,
    /// Names of models whose workers are candidates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::NAME)))]
    pub models: Vec<String>,
}

/// What happens when nothing is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(
    "self.action != 'Continue' || !has(self.status) && !has(self.retryAfter) && !has(self.message)",
    "status, retryAfter and message are for rejections (remove them, or write action: Reject)",
))]
pub struct OnEmpty {
    /// What to do.
    pub action: OnEmptyAction,
    /// HTTP status of a rejection, 400 to 599. Default: 503.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = limits::REJECTION_STATUS.0, max = limits::REJECTION_STATUS.1))]
    pub status: Option<u16>,
    /// The `retry-after` of a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Period>,
    /// What a rejection tells the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::MESSAGE))]
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
    #[schemars(range(min = limits::REJECTION_STATUS.0, max = limits::REJECTION_STATUS.1))]
    pub status: u16,
    /// The `retry-after` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Period>,
    /// What the client is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::MESSAGE))]
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
    /// The spec that is in force while the present one is not, because something is wrong with it or with another policy
    /// of the same gateway backend. A control service that starts takes it up, so that a restart loses no rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::anything")]
    pub last_good: Option<InferencePolicySpec>,
}
