//! What became of one request.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

/// The engine's own figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Prompt tokens.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Answer tokens.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Where `cached_tokens` is, when the engine tells.
    #[serde(default, rename = "prompt_tokens_details")]
    pub details: Option<UsageDetails>,
}

/// Details of a prompt's usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct UsageDetails {
    /// Prompt tokens that were found in the cache.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Prompt tokens that were found in the cache, when the engine tells.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<u64> {
        self.details.and_then(|details| details.cached_tokens)
    }
}

/// Why a request counts as failed. The text is the kind of error that tables count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// No connection, or it broke before an answer came.
    #[error("no answer ({0})")]
    NoAnswer(String),
    /// An HTTP status that is no success.
    #[error("HTTP {0}")]
    Status(u16),
    /// The stream broke off before its end.
    #[error("answer cut off")]
    CutOff,
    /// The stream told of an error.
    #[error("error in the stream")]
    Stream,
    /// What came is no stream of chat completion chunks.
    #[error("answer not understood")]
    Malformed,
    /// The stream ended properly but had no content.
    #[error("answer without tokens")]
    Empty,
    /// No end in time.
    #[error("timeout")]
    Timeout,
    /// Not sent, because an earlier turn of the conversation failed.
    #[error("not sent after a failed turn")]
    Skipped,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number of its session.
    pub session: usize,
    /// Its turn in the session, from 0.
    pub turn: usize,
    /// When it was sent, from the start of the run.
    pub sent: Duration,
    /// When it should have been sent; later only when the load generator was late.
    pub due: Duration,
    /// From sending to the first content.
    pub first: Option<Duration>,
    /// From sending to the last content.
    pub last: Option<Duration>,
    /// From sending to the end of the answer, or to its failure.
    pub end: Duration,
    /// Chunks with content.
    pub chunks: u64,
    /// The engine's own figures.
    pub usage: Option<Usage>,
    /// Tokens that the gateway predicted to be cached, when its debug headers are on.
    pub predicted_cached: Option<u64>,
    /// Where the gateway sent it, when its debug headers are on.
    pub destination: Option<String>,
    /// What went wrong.
    pub failure: Option<Failure>,
}

impl Record {
    /// Answer tokens: the engine's figure, else the number of chunks.
    #[must_use]
    pub fn answer_tokens(&self) -> u64 {
        self.usage.map_or(self.chunks, |usage| usage.completion_tokens)
    }

    /// Mean time between its tokens in milliseconds; none for answers of one token.
    #[must_use]
    pub fn inter_token_ms(&self) -> Option<f64> {
        let gaps = self.answer_tokens().checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((self.last? - self.first?).as_secs_f64() * 1000.0 / gaps as f64)
    }
}
