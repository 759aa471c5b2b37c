//! Places that may take a request, with what each would have to do.

use std::collections::BTreeMap;

use kinference_protocol::v1;

use super::ask::{Ask, Prompted};
use super::cached::{self, Cached, cached_tokens};
use super::choice::Expectation;
use crate::ledger::Ledger;
use crate::policy::Removal;
use crate::prefix::{Chunks, namespace_seed};
use crate::prompt;
use crate::snapshot::{Snapshot, Target, Worker, WorkerSet};
use crate::trace::{CandidateStanding, CandidateTrace};

/// Where a request may go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'s> {
    Worker(&'s Worker),
    Provider { provider: &'s v1::Provider, offer: &'s v1::ProviderModel },
}

/// A place, and what is expected of it.
#[derive(Debug)]
pub(crate) struct Candidate<'s> {
    pub(crate) place: Place<'s>,
    /// The name that the place serves the model by, as clients and rules have it.
    pub(crate) model: String,
    pub(crate) standing: CandidateStanding,
    pub(crate) cached_tokens: u32,
    pub(crate) uncached_tokens: u32,
    pub(crate) queued_tokens: f32,
    /// Requests that wait, for the objective that minimizes them; the most that can be when they are not known.
    pub(super) waiting: f32,
    pub(crate) running: f32,
    pub(crate) predicted_ttft_ms: f32,
    /// What the choice minimizes: the time to first token, and the delay that others would have of it.
    pub(super) score_ms: f32,
    /// The requirement that forbids it.
    pub(crate) removal: Option<Removal>,
    /// Index into the prompts, one for each set.
    pub(super) prompt: Option<usize>,
}

impl Candidate<'_> {
    pub(super) fn expectation(&self) -> Expectation {
        Expectation {
            cached_tokens: self.cached_tokens,
            uncached_tokens: self.uncached_tokens,
            queued_tokens: self.queued_tokens as u32,
            running: self.running as u32,
            predicted_ttft_ms: self.predicted_ttft_ms,
        }
    }

    /// Price of the prompt and of an answer of [`ANSWER_TOKENS`]; own workers cost nothing more, an unknown price is the
    /// highest.
    pub(super) fn cost(&self) -> f64 {
        let Place::Provider { offer, .. } = self.place else { return 0.0 };
        let (Some(input), Some(output)) = (offer.input_price, offer.output_price) else { return f64::MAX };
        let prompt = f64::from(self.cached_tokens + self.uncached_tokens);
        (prompt * input + ANSWER_TOKENS * output) / 1e6
    }

    pub(super) fn explain(&self, snapshot: &Snapshot, tier: usize) -> CandidateTrace {
        let (worker, name) = match self.place {
            Place::Worker(worker) => (Some(worker.id), snapshot.worker_name(worker)),
            Place::Provider { provider, .. } => (None, provider.name.clone()),
        };
        CandidateTrace {
            worker,
            name,
            model: self.model.clone(),
            tier,
            standing: self.standing,
            removal: self.removal.clone(),
            cached_tokens: self.cached_tokens,
            uncached_tokens: self.uncached_tokens,
            queued_tokens: self.queued_tokens,
            running: self.running,
            predicted_ttft_ms: self.predicted_ttft_ms,
        }
    }
}

/// Tokens of an answer, assumed where its price matters.
const ANSWER_TOKENS: f64 = 256.0;
/// Time to first token of a provider that states none.
const PROVIDER_TTFT_MS: u64 = 1_000;

/// The prompt as one worker set would see it.
#[derive(Debug)]
pub(super) struct SetPrompt {
    pub(super) prompt_tokens: u32,
    pub(super) affinity: u64,
    pub(super) chunks: Vec<u64>,
    target: Target,
    held: BTreeMap<u32, Cached>,
}

/// Candidates, and their prompts.
#[derive(Debug, Default)]
pub(super) struct Gathered<'s> {
    pub(super) candidates: Vec<Candidate<'s>>,
    pub(super) prompts: Vec<SetPrompt>,
}

impl<'s> Gathered<'s> {
    /// The workers of these models.
    pub(super) fn workers(snapshot: &'s Snapshot, ledger: &Ledger, ask: &Ask<'_>, models: &[String]) -> Self {
        let mut gathered = Self::default();
        for model in models {
            for target in snapshot.config.models.get(model).into_iter().flatten() {
                gathered.add_set(snapshot, ledger, ask, model, *target);
            }
        }
        gathered
    }

    /// A fallback tier: its providers that offer one of the models, and the workers of the models that it names.
    pub(super) fn tier(
        snapshot: &'s Snapshot,
        ledger: &Ledger,
        ask: &Ask<'_>,
        models: &[String],
        tier: &v1::Tier,
    ) -> Self {
        let mut gathered = Self::workers(snapshot, ledger, ask, &tier.models);
        let prompt_tokens = match ask.prompted {
            Prompted::Figures { prompt_tokens, .. } => prompt_tokens,
            Prompted::Request { body, .. } => (body.len() / 4) as u32,
        };
        // In the order of preference.
        let named = || models.iter().chain(tier.models.iter().filter(|model| !models.contains(model)));
        for name in &tier.providers {
            let provider = snapshot.config.rules.providers.iter().find(|provider| provider.name == *name);
            let Some(provider) = provider else { continue };
            let standing = match provider.ready {
                false => CandidateStanding::Unready,
                true if ledger.avoids_provider(&provider.cluster, ask.now_ms) => CandidateStanding::Suspect,
                true => CandidateStanding::Usable,
            };
            for offer in named().flat_map(|model| provider.models.iter().filter(move |offer| offer.name == *model)) {
                let expected = if offer.expected_ttft_ms == 0 { PROVIDER_TTFT_MS } else { offer.expected_ttft_ms };
                gathered.candidates.push(Candidate {
                    place: Place::Provider { provider, offer },
                    model: offer.name.clone(),
                    standing,
                    cached_tokens: 0,
                    uncached_tokens: prompt_tokens,
                    queued_tokens: 0.0,
                    waiting: 0.0,
                    running: 0.0,
                    predicted_ttft_ms: expected as f32,
                    score_ms: expected as f32,
                    removal: None,
                    prompt: None,
                });
            }
        }
        gathered
    }

    fn add_set(&mut self, snapshot: &'s Snapshot, ledger: &Ledger, ask: &Ask<'_>, model: &str, target: Target) {
        let Some(set) = snapshot.config.sets.get(&target.set) else { return };
        if self.prompts.iter().any(|prompt| prompt.target == target) {
            return;
        }
        let prompt = look_up(snapshot, ledger, ask, set, model, target);
        for worker in snapshot.workers.values().filter(|worker| worker.set == target.set) {
            let cached_tokens = prompt.held.get(&worker.id).map_or(0, |cached| cached.tokens).min(prompt.prompt_tokens);
            let load = ledger.standing(worker);
            let uncached_tokens = prompt.prompt_tokens - cached_tokens;
            let predicted_ttft_ms = worker.latency.predict(load.queued_tokens, uncached_tokens as f32, load.running);
            // On a worker with a queue, about as many requests as wait now will come before it is empty, and each of them
            // waits for this one's prefill too. Without that, a fleet under pressure copies prefixes to whoever is ahead
            // by one prefill, which makes more work for all and drives other prefixes out of the caches.
            let waiting = ledger.waiting(load.queued_tokens);
            let delay_of_others = worker.latency.ms_per_token * uncached_tokens as f32 * waiting;
            self.candidates.push(Candidate {
                place: Place::Worker(worker),
                model: model.to_owned(),
                standing: standing(worker, ledger, ask.now_ms),
                cached_tokens,
                uncached_tokens,
                queued_tokens: load.queued_tokens,
                // The engine's figure is as old as its last scrape, and knows nothing of what was sent since. Halves of a
                // request are no difference.
                waiting: worker.load.map_or(f32::MAX, |known| known.queued_requests.max(waiting).round()),
                running: load.running,
                predicted_ttft_ms,
                score_ms: predicted_ttft_ms + delay_of_others,
                removal: None,
                prompt: Some(self.prompts.len()),
            });
        }
        self.prompts.push(prompt);
    }
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
    model: &str,
    target: Target,
) -> SetPrompt {
    let (request, body) = match ask.prompted {
        Prompted::Request { request, body } => (request, body),
        Prompted::Figures { prompt_tokens, cached, .. } => {
            let block = set.block_tokens();
            let held = cached.iter().map(|(worker, held)| {
                (*worker, Cached { bytes: 0, tokens: cached_tokens(*held, prompt_tokens, block) })
            });
            return SetPrompt { prompt_tokens, affinity: 0, chunks: Vec::new(), target, held: held.collect() };
        }
    };
    let text = prompt::text(request, body, set, ask.unix_s);
    let adapter = if target.adapter { model } else { "" };
    let salt = request.cache_salt.as_deref().unwrap_or_default();
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
    SetPrompt { prompt_tokens, affinity, chunks: chunks.all().to_vec(), target, held }
}

/// The prefix domain of texts that are only alike to the engine's.
#[must_use]
pub fn routed_domain(prefix_domain: &str) -> String {
    format!("routed:{prefix_domain}")
}
