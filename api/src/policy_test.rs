//! `PolicyTest`: what people expect of their policies, in a file beside them. Not a CRD: no cluster ever sees it.

use std::collections::BTreeMap;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use crate::units::{Period, UnitError};
use crate::{ObjectKey, Origin, Resources};

/// A document of kind `PolicyTest`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyTest {
    /// Namespace and name; what it refers to is in the same namespace.
    pub key: ObjectKey,
    /// What it says.
    pub spec: PolicyTestSpec,
    /// Where it was read from.
    pub origin: Origin,
    /// The line of each case within the file, from 1.
    pub case_lines: Vec<usize>,
}

/// What a policy test says.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTestSpec {
    /// The gateway backend whose policies are tested. May be absent where the namespace has one.
    #[serde(default)]
    pub gateway_backend: Option<String>,
    /// State of workers and providers in every case.
    #[serde(default)]
    pub state: TestState,
    /// The cases.
    pub cases: Vec<TestCase>,
}

/// State of workers and providers. What is not stated: every worker is ready, idle and without cache, every provider is
/// ready.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestState {
    /// By `<worker set>/<worker>`; with several data-parallel ranks all of them, or `<worker set>/<worker>/<rank>`. Of a
    /// worker set with a selector, the names that are stated are its workers.
    #[serde(default)]
    pub workers: BTreeMap<String, WorkerState>,
    /// By name.
    #[serde(default)]
    pub providers: BTreeMap<String, ProviderState>,
}

/// State of a worker. What is not stated is as in the test's own state, or else the default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// Takes requests. Default: true.
    #[serde(default)]
    pub ready: Option<bool>,
    /// Requests that wait in the engine. Default: 0.
    #[serde(default)]
    pub queued_requests: Option<f64>,
    /// Requests that the engine works on. Default: 0.
    #[serde(default)]
    pub running_requests: Option<f64>,
    /// Share of the KV cache in use, 0 to 1. Default: 0.
    #[serde(default)]
    pub kv_cache_usage: Option<f64>,
    /// Tokens of the request's prompt that the worker holds; whole blocks of 16 count. Default: 0.
    #[serde(default)]
    pub cached_prefix_tokens: Option<u32>,
    /// Earlier values, for signals over a window.
    #[serde(default)]
    pub history: Option<SignalHistory>,
}

/// Earlier values of a worker's signals, as pairs of when (`-20s`) and what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignalHistory {
    /// Requests that waited.
    #[serde(default)]
    pub queued_requests: Vec<(Ago, f64)>,
    /// Requests that were worked on.
    #[serde(default)]
    pub running_requests: Vec<(Ago, f64)>,
    /// Shares of the KV cache in use.
    #[serde(default)]
    pub kv_cache_usage: Vec<(Ago, f64)>,
}

/// State of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderState {
    /// Takes requests. Default: true.
    #[serde(default)]
    pub ready: Option<bool>,
}

/// One request, and what is expected of it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestCase {
    /// Says what the case is about.
    pub name: String,
    /// The request.
    pub request: TestRequest,
    /// Replaces parts of the test's state.
    #[serde(default)]
    pub state: TestState,
    /// What must come of it.
    pub expect: Expectation,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestRequest {
    /// Who asks. Absent: some tenant that nothing is known of; `""`: a request without tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The requested model.
    pub model: String,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Tokens of its prompt. Default: 256.
    #[serde(default)]
    pub prompt_tokens: Option<u32>,
}

/// Tokens of a prompt where a test does not say.
pub const DEFAULT_PROMPT_TOKENS: u32 = 256;

/// What must come of a request. All that is stated must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expectation {
    /// The worker that takes it, as `<worker set>/<worker>`.
    #[serde(default)]
    pub worker: Option<String>,
    /// The worker set of the worker that takes it.
    #[serde(default)]
    pub worker_set: Option<String>,
    /// The provider that takes it.
    #[serde(default)]
    pub provider: Option<String>,
    /// The model that answers, by the name that clients and policies use.
    #[serde(default)]
    pub model: Option<String>,
    /// The rule whose choice or requirement decided: its name, or `<policy>/<rule>`.
    #[serde(default)]
    pub rule: Option<String>,
    /// It is rejected.
    #[serde(default)]
    pub rejected: Option<ExpectedRejection>,
    /// None of this may hold.
    #[serde(default)]
    pub not: Option<Box<Expectation>>,
}

/// A rejection. All that is stated must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedRejection {
    /// HTTP status.
    #[serde(default)]
    pub status: Option<u16>,
    /// The header `retry-after`.
    #[serde(default)]
    pub retry_after: Option<Period>,
}

impl PolicyTest {
    /// The gateway backend that is tested: the one that it names, or the only one of its namespace.
    pub fn backend<'r>(&self, resources: &'r Resources) -> Option<&'r ObjectKey> {
        let mut siblings = resources.backends.keys().filter(|key| key.namespace == self.key.namespace);
        match &self.spec.gateway_backend {
            Some(name) => siblings.find(|key| key.name == *name),
            None => siblings.next().filter(|_| siblings.next().is_none()),
        }
    }
}

/// True when `expected`, a rule's name or `<policy>/<rule>`, means the rule `name`, which is the latter.
pub fn names_rule(expected: &str, name: &str) -> bool {
    expected == name || name.split_once('/').is_some_and(|(_, rule)| rule == expected)
}

impl Expectation {
    /// True when nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Expectation::default()
    }
}

/// A moment before now, such as `-20s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Ago(
    /// How long before now.
    pub Period,
);

/// Text that is no moment before now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgoError {
    /// Without a minus.
    #[error("`{0}` is not before now; write it with a minus, such as -20s")]
    Sign(String),
    /// Not a duration.
    #[error(transparent)]
    Period(#[from] UnitError),
}

impl FromStr for Ago {
    type Err = AgoError;

    fn from_str(text: &str) -> Result<Ago, AgoError> {
        let period = text.strip_prefix('-').ok_or_else(|| AgoError::Sign(text.to_string()))?;
        Ok(Ago(period.parse()?))
    }
}

impl<'de> Deserialize<'de> for Ago {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ago, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_before_now() {
        assert_eq!("-20s".parse::<Ago>().map(|ago| ago.0.as_millis()), Ok(20_000));
        assert_eq!(
            "20s".parse::<Ago>().unwrap_err().to_string(),
            "`20s` is not before now; write it with a minus, such as -20s"
        );
        assert!("-20".parse::<Ago>().unwrap_err().to_string().contains("is not a duration"));
    }
}
