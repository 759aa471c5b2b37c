//! `InferenceProvider`: an inference service outside.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, NameReference, rules};
use crate::limits;
use crate::units::{Decimal, Period};

/// An inference service outside, to which policies may send requests.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kinference.dev",
    version = "v1alpha1",
    kind = "InferenceProvider",
    plural = "inferenceproviders",
    namespaced,
    status = "InferenceProviderStatus",
    derive = "PartialEq",
    doc = "An inference service outside, to which policies may send requests.",
    shortname = "kprov",
    category = "kinference",
    printcolumn(name = "API", type_ = "string", json_path = ".spec.api"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(
        name = "CREDENTIALS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='CredentialsResolved')].status"
    ),
    printcolumn(name = "ENDPOINT", type_ = "string", json_path = ".spec.endpoint", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(
    "self.api != 'Bedrock' || has(self.region) && self.region != ''",
    "region is missing (Bedrock needs a region)",
))]
pub struct InferenceProviderSpec {
    /// The API that the provider speaks.
    pub api: ProviderApi,
    /// Base URL: what stands before `/chat/completions`, such as `https://api.openai.com/v1`. Without a path: `/v1` for
    /// OpenAI, `/serving-endpoints` for Databricks, `/openai/v1` for Bedrock. `http://` only without credentials or to
    /// this machine.
    #[schemars(length(min = 1, max = limits::URL))]
    #[x_kube(validation = rules::url())]
    pub endpoint: String,
    /// Region, for `Bedrock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_NAME))]
    pub region: Option<String>,
    /// Credentials. Absent: requests carry none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// The models that the provider offers.
    #[schemars(length(min = 1, max = limits::PROVIDER_MODELS))]
    #[x_kube(merge_strategy = rules::by_name())]
    pub models: Vec<ProviderModel>,
    /// After this long without a complete answer a request fails. Default: `120s`.
    #[serde(default = "default_request_timeout")]
    #[x_kube(validation = rules::not_zero())]
    pub request_timeout: Period,
}

fn default_request_timeout() -> Period {
    Period::from_secs(120)
}

/// The API that a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProviderApi {
    /// OpenAI's API, or one like it.
    OpenAI,
    /// Anthropic's Messages API.
    Anthropic,
    /// Amazon Bedrock.
    Bedrock,
    /// Databricks Model Serving.
    Databricks,
}

/// Where a provider's credentials are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// A Secret of the same namespace with the provider's API key as `token`. Requests are not signed with access keys
    /// (`accessKeyId`, `secretAccessKey`) yet.
    pub secret_ref: NameReference,
}

/// A model that a provider offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderModel {
    /// The name that clients and policies use.
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub name: String,
    /// The provider's own name of the model. Default: the same as `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::NAME), regex(pattern = rules::NOT_BLANK))]
    pub upstream_name: Option<String>,
    /// Prices, for the objective `Cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_million_tokens: Option<Prices>,
    /// Time to first token that is assumed until it was measured.
    #[serde(default, rename = "expectedTTFT", skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::not_zero())]
    pub expected_ttft: Option<Period>,
}

/// Prices of a million tokens, all in one currency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prices {
    /// Prompt tokens.
    pub input: Decimal,
    /// Prompt tokens that the provider had cached. Default: the price of `input`, which counts for all of them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<Decimal>,
    /// Completion tokens.
    pub output: Decimal,
}

/// What the control service observed of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceProviderStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `CredentialsResolved`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
