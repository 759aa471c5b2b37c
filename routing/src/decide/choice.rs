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
    /// Where it goes first.
    pub first: Stop,
    /// Where it goes, in order, when that fails before an answer began: with the first at most [`PLACES`], each at an
    /// address of its own. After a worker come workers of the same set and rank; after a provider, providers and workers of its tier
    /// and of those that follow.
    pub next: Vec<Stop>,
    /// The rule that decided, when one did.
    pub rule: Option<String>,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
    /// Hashes of the prompt's chunks, first to last; empty when a provider is first.
    pub chunks: Vec<u64>,
    /// How long the first worker may be believed to hold them without the engine's word, in milliseconds.
    pub believe_ms: u64,
    /// The first worker's set learns its prefixes from where requests were sent.
    pub routed: bool,
}

/// One of the places that a request may go to.
#[derive(Debug, Clone, PartialEq)]
pub struct Stop {
    /// The place.
    pub destination: Destination,
    /// The model that it answers with, as clients and rules name it. A worker knows it by that name too.
    pub model: String,
    /// What is expected of it.
    pub expected: Expectation,
}

/// A worker or a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Id of a worker.
    Worker(u32),
    /// A provider.
    Provider(ProviderRoute),
}

/// How a provider is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRoute {
    /// Its name.
    pub name: String,
    /// The proxy's listener and cluster that lead to it.
    pub cluster: String,
    /// The name that it knows the model by.
    pub upstream_model: String,
}

impl Stop {
    /// The worker's id; `None` for a provider.
    #[must_use]
    pub fn worker(&self) -> Option<u32> {
        match self.destination {
            Destination::Worker(id) => Some(id),
            Destination::Provider(_) => None,
        }
    }

    /// The provider; `None` for a worker.
    #[must_use]
    pub fn provider(&self) -> Option<&ProviderRoute> {
        match &self.destination {
            Destination::Worker(_) => None,
            Destination::Provider(route) => Some(route),
        }
    }
}

impl Choice {
    /// All places, in the order in which they are tried.
    pub fn stops(&self) -> impl Iterator<Item = &Stop> {
        std::iter::once(&self.first).chain(&self.next)
    }

    /// Worker ids, in the order in which they are tried.
    #[must_use]
    pub fn workers(&self) -> Vec<u32> {
        self.stops().filter_map(Stop::worker).collect()
    }

    /// The name that the workers among the places know the model by, the same for all; `None` when there is none.
    #[must_use]
    pub fn served_model(&self) -> Option<&str> {
        self.stops().find(|stop| stop.worker().is_some()).map(|stop| stop.model.as_str())
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

/// Most places that a choice names: the best, and where to go when that fails.
pub const PLACES: usize = 3;

/// How long a prefix that was just sent is believed to be cached, until the engine's events say so themselves.
const EVENTS_BELIEVE_MS: u64 = 3_000;

/// The choice that places in their order stand for, the first of them from `gathered`; `None` when there is none.
pub(super) fn of(
    snapshot: &Snapshot,
    gathered: &Gathered<'_>,
    ranked: &[&Candidate<'_>],
    rule: Option<String>,
) -> Option<Choice> {
    let (best, next) = ranked.split_first()?;
    let prompt = best.prompt.and_then(|index| gathered.prompts.get(index));
    let (routed, believe_ms) = match best.place {
        Place::Provider { .. } => (false, 0),
        Place::Worker(worker) => {
            let set = snapshot.config.sets.get(&worker.set);
            let routed = set.is_some_and(|set| set.wire.prefix_mode() == v1::PrefixMode::Routed);
            (routed, set.filter(|_| routed).map_or(EVENTS_BELIEVE_MS, |set| set.wire.routed_ttl_ms))
        }
    };
    Some(Choice {
        first: stop(best),
        next: next.iter().copied().map(stop).collect(),
        rule,
        prompt_tokens: best.cached_tokens + best.uncached_tokens,
        chunks: prompt.map(|prompt| prompt.chunks.clone()).unwrap_or_default(),
        believe_ms,
        routed,
    })
}

fn stop(candidate: &Candidate<'_>) -> Stop {
    let destination = match candidate.place {
        Place::Worker(worker) => Destination::Worker(worker.id),
        Place::Provider { provider, offer } => Destination::Provider(ProviderRoute {
            name: provider.name.clone(),
            cluster: provider.cluster.clone(),
            upstream_model: offer.upstream_name.clone(),
        }),
    };
    Stop { destination, model: candidate.model.clone(), expected: candidate.expectation() }
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
