//! The decision: which worker a request goes to.
//!
//! `request -> candidates (policy) -> cached prefix and load of each -> predicted time to first token -> choice`

mod cached;
mod rank;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::ledger::Ledger;
use crate::openai::Request;
use crate::policy;
use crate::prefix::{Chunks, namespace_seed};
use crate::prompt;
use crate::snapshot::{Snapshot, Target, Worker, WorkerSet};
use crate::trace::{CandidateStanding, CandidateTrace, Trace};

pub use cached::{Cached, cached_tokens};

/// A request, and what is known beside it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The request.
    pub request: &'a Request<'a>,
    /// Its body.
    pub body: &'a [u8],
    /// Milliseconds on the clock that the ledger is kept by.
    pub now_ms: u64,
    /// Seconds since 1970, for templates that write the date.
    pub unix_s: u64,
    /// The snapshot is older than its backend's `stale_after_ms`.
    pub stale: bool,
    /// Give a trace too.
    pub explain: bool,
}

/// The outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Where the request goes, or why nowhere.
    pub result: Result<Choice, Rejection>,
    /// How that came about, when asked for.
    pub trace: Option<Trace>,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    /// Worker ids, best first, each at an address of its own; at most [`ALTERNATIVES`].
    pub workers: Vec<u32>,
    /// What is expected of the workers after the first, in their order: needed when the first cannot be reached.
    pub others: Vec<Expectation>,
    /// The name that the first worker serves the model by.
    pub model: String,
    /// The rule that decided, when one did.
    pub rule: Option<String>,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, tokens believed to be in the first worker's cache.
    pub cached_tokens: u32,
    /// Of these, tokens that the first worker has to compute.
    pub uncached_tokens: u32,
    /// Prefill tokens queued on the first worker before this request.
    pub queued_tokens: u32,
    /// Requests that run or wait on the first worker.
    pub running: u32,
    /// Predicted time to first token on the first worker, in milliseconds.
    pub predicted_ttft_ms: f32,
    /// Hashes of the prompt's chunks, first to last.
    pub chunks: Vec<u64>,
    /// How long the first worker may be believed to hold them without the engine's word, in milliseconds.
    pub believe_ms: u64,
    /// The first worker's set learns its prefixes from where requests were sent.
    pub routed: bool,
}

/// What a worker would have to do, and when it would answer.
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

/// Why a request goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// Nobody serves the model.
    #[error("The model `{0}` does not exist or you do not have access to it.")]
    UnknownModel(String),
    /// All workers of the model are gone or refuse work.
    #[error("No worker of the model `{0}` is available; try again later.")]
    NoWorkers(String),
}

impl Rejection {
    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownModel(_) => 404,
            Self::NoWorkers(_) => 503,
        }
    }

    /// `code` of OpenAI's error object.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownModel(_) => "model_not_found",
            Self::NoWorkers(_) => "no_workers",
        }
    }
}

/// A worker that may be chosen.
#[derive(Debug)]
pub(crate) struct Candidate<'s> {
    pub(crate) worker: &'s Worker,
    pub(crate) standing: CandidateStanding,
    pub(crate) cached_tokens: u32,
    pub(crate) uncached_tokens: u32,
    pub(crate) queued_tokens: f32,
    pub(crate) running: f32,
    pub(crate) predicted_ttft_ms: f32,
    /// What the choice minimizes: the time to first token, and the delay that others would have of it.
    pub(crate) score_ms: f32,
    /// Index into the prompts, one for each set.
    prompt: usize,
}

impl Candidate<'_> {
    fn expectation(&self) -> Expectation {
        Expectation {
            cached_tokens: self.cached_tokens,
            uncached_tokens: self.uncached_tokens,
            queued_tokens: self.queued_tokens as u32,
            running: self.running as u32,
            predicted_ttft_ms: self.predicted_ttft_ms,
        }
    }
}

/// The prompt as one worker set would see it.
struct SetPrompt {
    prompt_tokens: u32,
    affinity: u64,
    chunks: Vec<u64>,
    set: u32,
}

/// Decides where a request goes.
#[must_use]
pub fn decide(snapshot: &Snapshot, ledger: &Ledger, ask: &Ask<'_>) -> Decision {
    let model = &*ask.request.model.name;
    let mut trace = ask.explain.then(|| Trace { model: model.to_owned(), stale: ask.stale, ..Trace::default() });
    let allowed = match policy::candidates(snapshot, ask) {
        Ok(allowed) => allowed,
        Err(rejection) => return Decision { result: Err(rejection), trace },
    };
    let (candidates, prompts) = gather(snapshot, ledger, ask, allowed.targets);
    let affinity = prompts.first().map_or(0, |prompt| prompt.affinity);
    let ranked = if ask.stale { rank::by_hash(&candidates, affinity) } else { rank::by_ttft(&candidates, affinity) };
    if let Some(trace) = &mut trace {
        trace.rule = allowed.rule.map(str::to_owned);
        trace.candidates = candidates.iter().map(|candidate| explained(snapshot, candidate)).collect();
        trace.chosen = ranked.iter().map(|candidate| candidate.worker.id).collect();
    }
    let result = match ranked.first() {
        None => Err(Rejection::NoWorkers(model.to_owned())),
        Some(best) => {
            let mut choice = choice(snapshot, best, model, prompts, allowed.rule);
            choice.workers = ranked.iter().map(|candidate| candidate.worker.id).collect();
            choice.others = ranked.iter().skip(1).map(|candidate| candidate.expectation()).collect();
            Ok(choice)
        }
    };
    Decision { result, trace }
}

fn choice(
    snapshot: &Snapshot,
    best: &Candidate<'_>,
    requested: &str,
    mut prompts: Vec<SetPrompt>,
    rule: Option<&str>,
) -> Choice {
    let set = snapshot.config.sets.get(&best.worker.set);
    let routed = set.is_some_and(|set| set.wire.prefix_mode() == kinference_protocol::v1::PrefixMode::Routed);
    let believe_ms = set.filter(|_| routed).map_or(EVENTS_BELIEVE_MS, |set| set.wire.routed_ttl_ms);
    let prompt = (best.prompt < prompts.len()).then(|| prompts.swap_remove(best.prompt));
    let (prompt_tokens, chunks) = prompt.map(|prompt| (prompt.prompt_tokens, prompt.chunks)).unwrap_or_default();
    // Adapters are asked for by their own names.
    let model = set.filter(|set| !set.wire.adapters.iter().any(|adapter| adapter == requested));
    Choice {
        workers: Vec::new(),
        others: Vec::new(),
        model: model.map_or(requested, |set| &set.wire.model).to_owned(),
        rule: rule.map(str::to_owned),
        prompt_tokens,
        cached_tokens: best.cached_tokens,
        uncached_tokens: best.uncached_tokens,
        queued_tokens: best.queued_tokens as u32,
        running: best.running as u32,
        predicted_ttft_ms: best.predicted_ttft_ms,
        chunks,
        believe_ms,
        routed,
    }
}

/// All workers of the sets, with what each would have to do.
fn gather<'s>(
    snapshot: &'s Snapshot,
    ledger: &Ledger,
    ask: &Ask<'_>,
    targets: &[Target],
) -> (Vec<Candidate<'s>>, Vec<SetPrompt>) {
    let mut prompts: Vec<SetPrompt> = Vec::with_capacity(targets.len());
    let mut cached: BTreeMap<u32, Cached> = BTreeMap::new();
    for target in targets {
        let Some(set) = snapshot.config.sets.get(&target.set) else { continue };
        let (prompt, held) = look_up(snapshot, ledger, ask, set, *target);
        prompts.push(prompt);
        cached.extend(held);
    }
    let mut candidates = Vec::new();
    for worker in snapshot.workers.values() {
        let Some(index) = prompts.iter().position(|prompt| prompt.set == worker.set) else { continue };
        let prompt_tokens = prompts.get(index).map_or(0, |prompt| prompt.prompt_tokens);
        let cached_tokens = cached.get(&worker.id).map_or(0, |cached| cached.tokens).min(prompt_tokens);
        let load = ledger.standing(worker);
        let uncached_tokens = prompt_tokens - cached_tokens;
        let predicted_ttft_ms = worker.latency.predict(load.queued_tokens, uncached_tokens as f32, load.running);
        // On a worker with a queue, about as many requests as wait now will come before it is empty, and each of them
        // waits for this one's prefill too. Without that, a fleet under pressure copies prefixes to whoever is ahead by one
        // prefill, which makes more work for all and drives other prefixes out of the caches.
        let delay_of_others = worker.latency.ms_per_token * uncached_tokens as f32 * ledger.waiting(load.queued_tokens);
        candidates.push(Candidate {
            worker,
            standing: standing(worker, ledger, ask.now_ms),
            cached_tokens,
            uncached_tokens,
            queued_tokens: load.queued_tokens,
            running: load.running,
            predicted_ttft_ms,
            score_ms: predicted_ttft_ms + delay_of_others,
            prompt: index,
        });
    }
    (candidates, prompts)
}

fn standing(worker: &Worker, ledger: &Ledger, now_ms: u64) -> CandidateStanding {
    use kinference_protocol::v1::WorkerState::{Ready, Unknown, Unready};
    match worker.state {
        Unready => CandidateStanding::Unready,
        Unknown => CandidateStanding::Suspect,
        Ready if ledger.is_suspect(worker.id, now_ms) => CandidateStanding::Suspect,
        Ready if worker.load.is_none() => CandidateStanding::LoadUnknown,
        Ready => CandidateStanding::Usable,
    }
}

fn look_up(
    snapshot: &Snapshot,
    ledger: &Ledger,
    ask: &Ask<'_>,
    set: &WorkerSet,
    target: Target,
) -> (SetPrompt, BTreeMap<u32, Cached>) {
    let text = prompt::text(ask.request, ask.body, set, ask.unix_s);
    let adapter = if target.adapter { &*ask.request.model.name } else { "" };
    let salt = ask.request.cache_salt.as_deref().unwrap_or_default();
    // A likeness must never meet hashes of real text: it has a domain of its own.
    let domain = if text.is_exact() { set.wire.prefix_domain.clone() } else { routed_domain(&set.wire.prefix_domain) };
    let seed = namespace_seed(&domain, adapter, salt);
    let mut chunks = Chunks::new(text.text().as_bytes(), snapshot.config.backend.chunk_bytes, seed);
    let affinity = chunks.affinity_key();
    let (held, prompt_tokens) = if ask.stale {
        (BTreeMap::new(), (text.text().len() as f32 / set.bytes_per_token()) as u32)
    } else {
        cached::of_set(snapshot, ledger.recent(), set, &mut chunks, ask.now_ms)
    };
    (SetPrompt { prompt_tokens, affinity, chunks: chunks.all().to_vec(), set: target.set }, held)
}

/// The prefix domain of texts that are only alike to the engine's.
#[must_use]
pub fn routed_domain(prefix_domain: &str) -> String {
    format!("routed:{prefix_domain}")
}

fn explained(snapshot: &Snapshot, candidate: &Candidate<'_>) -> CandidateTrace {
    let set = snapshot.config.sets.get(&candidate.worker.set).map_or("", |set| set.wire.name.as_str());
    CandidateTrace {
        worker: candidate.worker.id,
        name: format!("{set}/{}", candidate.worker.name),
        standing: candidate.standing,
        cached_tokens: candidate.cached_tokens,
        uncached_tokens: candidate.uncached_tokens,
        queued_tokens: candidate.queued_tokens,
        running: candidate.running,
        predicted_ttft_ms: candidate.predicted_ttft_ms,
    }
}

#[cfg(test)]
mod tests;
