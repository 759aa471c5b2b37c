//! What is asked.

use std::collections::BTreeMap;

use crate::openai::Request;

/// A request, and what is known beside it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What is to be answered.
    pub prompted: Prompted<'a>,
    /// Who asks.
    pub caller: Caller<'a>,
    /// Milliseconds on the clock that the ledger is kept by.
    pub now_ms: u64,
    /// Seconds since 1970, for templates that write the date.
    pub unix_s: u64,
    /// The snapshot is older than its backend's `stale_after_ms`.
    pub stale: bool,
    /// Give a trace too.
    pub explain: bool,
}

/// What is to be answered.
#[derive(Debug, Clone, Copy)]
pub enum Prompted<'a> {
    /// A request as it came.
    Request {
        /// The request.
        request: &'a Request<'a>,
        /// Its body.
        body: &'a [u8],
    },
    /// Only figures, for tests of policies and for explanations.
    Figures {
        /// Requested model.
        model: &'a str,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens of it that workers hold, by worker id.
        cached: &'a BTreeMap<u32, u32>,
    },
}

impl<'a> Prompted<'a> {
    /// The requested model.
    #[must_use]
    pub fn model(&self) -> &'a str {
        match self {
            Self::Request { request, .. } => &request.model.name,
            Self::Figures { model, .. } => model,
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller<'a> {
    /// The tenant; empty when there is none.
    pub tenant: &'a str,
    /// Tags of the request.
    pub tags: &'a [&'a str],
}
