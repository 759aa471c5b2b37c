//! The parts of `GatewayBackend` that say who sends a request and which tags it gets.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LabelSelector, rules};
use crate::limits;
use crate::units::Period;

/// Who may send requests, and how many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenancy {
    /// Ways to find out the tenant of a request, in order; the first that yields one wins.
    #[serde(default)]
    #[schemars(length(max = limits::IDENTITIES))]
    pub identify: Vec<Identity>,
    /// What happens to a request without tenant. Default: `Deny`.
    #[serde(default)]
    pub unidentified: Unidentified,
    /// Tenants with settings of their own. A tenant that is not listed may use every model, without limits.
    #[serde(default)]
    #[schemars(length(max = limits::TENANTS))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub tenants: Vec<Tenant>,
}

/// A way to find out the tenant of a request. Exactly one of its fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::exactly_one(&["apiKey", "jwt", "header"]))]
pub struct Identity {
    /// By API key, from `Authorization: Bearer` or `x-api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKeyIdentity>,
    /// By a claim of a JWT that the proxy verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtIdentity>,
    /// By a header, only for gateways whose front sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderIdentity>,
}

/// Finds the tenant by API key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyIdentity {
    /// Selects the Secrets of the same namespace that hold keys; keys are compared by SHA-256.
    pub secret_selector: LabelSelector,
}

/// Finds the tenant in a JWT's payload that the proxy's own JWT filter verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct JwtIdentity {
    /// The header in which the proxy forwards the verified payload.
    #[schemars(length(min = 1, max = limits::HEADER))]
    #[x_kube(validation = rules::header_name())]
    pub payload_header: String,
    /// The claim that names the tenant.
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub claim: String,
}

/// Finds the tenant in a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderIdentity {
    /// Name of the header.
    #[schemars(length(min = 1, max = limits::HEADER))]
    #[x_kube(validation = rules::header_name())]
    pub name: String,
}

/// What happens to a request without tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unidentified {
    /// It belongs to the tenant `anonymous`.
    Allow,
    /// It gets 401.
    #[default]
    Deny,
}

/// A tenant's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Name of the tenant, as `identify` yields it.
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub name: String,
    /// Higher goes first where requests wait. Default: 0.
    #[serde(default)]
    #[schemars(range(min = -limits::PRIORITY, max = limits::PRIORITY))]
    pub priority: i32,
    /// Models that the tenant may use, as globs. Default: `["*"]`.
    #[serde(default = "all_models")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::NAME)))]
    pub models: Vec<String>,
    /// Limits over all gateways. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TenantLimits>,
}

fn all_models() -> Vec<String> {
    vec!["*".into()]
}

/// A tenant's limits. What is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantLimits {
    /// Prompt and completion tokens a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens_per_minute: Option<u64>,
    /// Requests a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u64>,
    /// Requests at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrent_requests: Option<u64>,
}

/// How requests get the tags that policies match on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tags {
    /// A header with tags, separated by commas, that a trusted front sets. Absent: tags in headers are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::HEADER))]
    #[x_kube(validation = rules::header_name())]
    pub header: Option<String>,
    /// Classifiers that look at the prompt; each applies its tag or does not.
    #[serde(default)]
    #[schemars(length(max = limits::CLASSIFIERS))]
    pub classifiers: Vec<Classifier>,
}

/// Applies a tag to prompts of a certain kind. Exactly one of `pii`, `complexity` and `http`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::exactly_one(&["pii", "complexity", "http"]))]
pub struct Classifier {
    /// The tag.
    #[schemars(length(min = 1, max = limits::SHORT_NAME), regex(pattern = rules::NOT_BLANK))]
    pub tag: String,
    /// Applies to prompts with personal data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pii: Option<PiiClassifier>,
    /// Applies to prompts up to a certain complexity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complexity: Option<ComplexityClassifier>,
    /// Asks a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpClassifier>,
}

/// Finds personal data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PiiClassifier {
    /// Kinds of data to look for, at least one.
    #[schemars(length(min = 1, max = limits::PII_KINDS))]
    pub kinds: Vec<PiiKind>,
}

/// A kind of personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PiiKind {
    /// Email addresses.
    Email,
    /// Credit card numbers with a valid check digit.
    CreditCard,
    /// International bank account numbers with valid check digits.
    Iban,
    /// US social security numbers.
    UsSocialSecurity,
    /// Phone numbers.
    PhoneNumber,
    /// IP addresses.
    IpAddress,
}

/// Judges how hard a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComplexityClassifier {
    /// The hardest that still gets the tag.
    pub at_most: Complexity,
}

/// How hard a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Complexity {
    /// Short and plain.
    Low,
    /// In between.
    Medium,
    /// Long, or asks for several steps.
    High,
}

/// Asks a service whether a prompt gets the tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpClassifier {
    /// URL of the service, `http://` or `https://`.
    #[schemars(length(min = 1, max = limits::URL))]
    #[x_kube(validation = rules::url())]
    pub url: String,
    /// How long a request waits for the answer. Default: `50ms`.
    #[serde(default = "default_classifier_timeout")]
    #[x_kube(validation = rules::not_zero())]
    pub timeout: Period,
    /// What happens when there is no answer in time. Default: `ApplyTag`.
    #[serde(default)]
    pub on_error: OnClassifierError,
}

fn default_classifier_timeout() -> Period {
    Period::from_millis(50)
}

/// What happens when a classifier does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnClassifierError {
    /// The prompt gets the tag: the safe side where the tag restricts.
    #[default]
    ApplyTag,
    /// The prompt does not get the tag.
    Skip,
}
