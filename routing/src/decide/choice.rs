//! The outcome of a decision.

use kinference_protocol::v1;
use thiserror::Error;

use super::candidates::{Candidate, Gathered, Place};
use crate::snapshot::Snapshot;
use crate::trace::Trace;

/// The outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Where the request goes, or why nowhere.
    pub result: Result<Choice, Rejection>,
    /// How that came about, when asked for.
    pub trace: Option<Trace>,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Workers or a provider.
    pub destination: Destination,
    /// What is expected of each worker in order, or of the provider.
    pub expected: Vec<Expectation>,
    /// The name that the destination knows the model by; the body's is replaced when it differs.
    pub model: String,
    /// The rule that decided, when one did.
    pub rule: Option<String>,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
    /// Hashes of the prompt's chunks, first to last.
    pub chunks: Vec<u64>,
    /// How long the first worker may be believed to hold them without the engine's word, in milliseconds.
    pub believe_ms: u64,
    /// The first worker's set learns its prefixes from where requests were sent.
    pub routed: bool,
}

/// Workers or a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Worker ids, best first, each at an address of its own; at most [`ALTERNATIVES`].
    Workers(Vec<u32>),
    /// A provider.
    Provider(ProviderRoute),
}

/// How a provider is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRoute {
    /// Its name.
    pub name: String,
    /// The proxy's cluster.
    pub cluster: String,
    /// Host for the request's authority.
    pub authority: String,
    /// Path before `/chat/completions`.
    pub base_path: String,
}

impl Choice {
    /// Worker ids, best first; none when a provider was chosen.
    #[must_use]
    pub fn workers(&self) -> &[u32] {
        match &self.destination {
            Destination::Workers(workers) => workers,
            Destination::Provider(_) => &[],
        }
    }

    /// What is expected of the first destination.
    #[must_use]
    pub fn first(&self) -> Expectation {
        self.expected.first().copied().unwrap_or_default()
    }
}

/// What a destination would have to do, and when it would answer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Expectation {
    /// Prompt tokens believed to be in its cache.
    pub cached_tokens: u32,
    /// Prompt tokens that it has to compute.
    pub uncached_tokens: u32,
    /// Prefill tokens queued before this request.
    pub queued_tokens: u32,
    /// Requests that run or wait there.
    pub running: u32,
    /// Predicted time to first token, in milliseconds.
    pub predicted_ttft_ms: f32,
}

/// Most workers that a choice names: the best, and where to go when it cannot be reached.
pub const ALTERNATIVES: usize = 3;

/// How long a prefix that was just sent is believed to be cached, until the engine's events say so themselves.
const EVENTS_BELIEVE_MS: u64 = 3_000;

/// The choice that a ranking stands for; `None` when nothing is left.
pub(super) fn of(
    snapshot: &Snapshot,
    gathered: &Gathered<'_>,
    ranked: &[&Candidate<'_>],
    rule: Option<String>,
) -> Option<Choice> {
    let best = ranked.first()?;
    let prompt = best.prompt.and_then(|index| gathered.prompts.get(index));
    let (destination, model, routed, believe_ms) = match best.place {
        Place::Provider { provider, offer } => {
            let route = ProviderRoute {
                name: provider.name.clone(),
                cluster: provider.cluster.clone(),
                authority: provider.authority.clone(),
                base_path: provider.base_path.clone(),
            };
            (Destination::Provider(route), offer.upstream_name.clone(), false, 0)
        }
        Place::Worker(worker) => {
            let set = snapshot.config.sets.get(&worker.set);
            let routed = set.is_some_and(|set| set.wire.prefix_mode() == v1::PrefixMode::Routed);
            let believe_ms = set.filter(|_| routed).map_or(EVENTS_BELIEVE_MS, |set| set.wire.routed_ttl_ms);
            let ids = ranked.iter().filter_map(|candidate| match candidate.place {
                Place::Worker(worker) => Some(worker.id),
                Place::Provider { .. } => None,
            });
            (Destination::Workers(ids.collect()), best.model.clone(), routed, believe_ms)
        }
    };
    Some(Choice {
        destination,
        expected: ranked.iter().map(|candidate| candidate.expectation()).collect(),
        model,
        rule,
        prompt_tokens: best.cached_tokens + best.uncached_tokens,
        chunks: prompt.map(|prompt| prompt.chunks.clone()).unwrap_or_default(),
        believe_ms,
        routed,
    })
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// Nobody serves the model.
    #[error("The model `{0}` does not exist or you do not have access to it.")]
    UnknownModel(String),
    /// The tenant may not use the model.
    #[error("You may not use the model `{0}`.")]
    Forbidden(String),
    /// All workers of the model are gone or refuse work.
    #[error("No worker of the model `{0}` is available; try again later.")]
    NoWorkers(String),
    /// A rule rejects it, or left nothing.
    #[error("{message}")]
    Rule {
        /// The rule.
        rule: String,
        /// HTTP status.
        status: u16,
        /// Seconds for `retry-after`; 0 for none.
        retry_after_s: u64,
        /// What the client is told.
        message: String,
    },
}

impl Rejection {
    /// What a rule answers.
    pub(super) fn rule(rule: &str, answer: &v1::Answer, model: &str) -> Self {
        let message = if answer.message.is_empty() {
            format!("The model `{model}` does not take this request now.")
        } else {
            answer.message.clone()
        };
        let status = u16::try_from(answer.status).unwrap_or(503);
        Self::Rule { rule: rule.to_owned(), status, retry_after_s: answer.retry_after_s, message }
    }

    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownModel(_) => 404,
            Self::Forbidden(_) => 403,
            Self::NoWorkers(_) => 503,
            Self::Rule { status, .. } => *status,
        }
    }

    /// Seconds for the header `retry-after`, when there is one.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Rule { retry_after_s, .. } => Some(*retry_after_s).filter(|seconds| *seconds > 0),
            Self::NoWorkers(_) => Some(1),
            Self::UnknownModel(_) | Self::Forbidden(_) => None,
        }
    }

    /// `code` of OpenAI's error object.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownModel(_) => "model_not_found",
            Self::Forbidden(_) => "model_not_allowed",
            Self::NoWorkers(_) => "no_workers",
            Self::Rule { status: 429, .. } => "rate_limit_exceeded",
            Self::Rule { .. } => "rejected_by_policy",
        }
    }
}
