//! Why a decision came out as it did, for `kinfctl explain` and for people.

use std::fmt;

use crate::policy::Removal;

/// Everything that a decision looked at. Holds no prompt text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// Model that was asked for.
    pub model: String,
    /// Who asked; empty for nobody known.
    pub tenant: String,
    /// Tags of the request.
    pub tags: Vec<String>,
    /// The snapshot was too old to trust its prefixes and loads.
    pub stale: bool,
    /// Every rule in force, in order.
    pub rules: Vec<RuleTrace>,
    /// Every place that was looked at.
    pub candidates: Vec<CandidateTrace>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// What was chosen: worker ids, best first.
    pub chosen: Vec<u32>,
    /// What was chosen, when it is a provider.
    pub provider: Option<String>,
    /// Where the request goes, in order, when that provider fails: names as in `candidates`.
    pub then: Vec<String>,
}

/// One rule as the decision saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleTrace {
    /// "policy/rule"
    pub name: String,
    /// Why it does not match; `None` when it does.
    pub mismatch: Option<String>,
}

/// One place as the decision saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateTrace {
    /// Id of the worker; `None` for a provider.
    pub worker: Option<u32>,
    /// "set/worker", or the provider's name.
    pub name: String,
    /// The model that it would answer with.
    pub model: String,
    /// 0 for the candidates themselves, then the fallback tiers in order.
    pub tier: usize,
    /// Why it was left out, or put last.
    pub standing: CandidateStanding,
    /// The requirement that forbids it.
    pub removal: Option<Removal>,
    /// Prompt tokens believed to be cached there.
    pub cached_tokens: u32,
    /// Prompt tokens that it would have to compute.
    pub uncached_tokens: u32,
    /// Prefill tokens before them.
    pub queued_tokens: f32,
    /// Requests that run or wait there.
    pub running: f32,
    /// Predicted time to first token in milliseconds.
    pub predicted_ttft_ms: f32,
}

/// How far a worker may be considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateStanding {
    /// It is healthy and its load is known.
    Usable,
    /// Its load is not known: used when no worker is usable.
    LoadUnknown,
    /// It never answered or failed to connect lately: used when nothing else is left.
    Suspect,
    /// It refuses work: never used.
    Unready,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenant = if self.tenant.is_empty() { "nobody" } else { &self.tenant };
        writeln!(f, "model {} for {tenant}, tags [{}]", self.model, self.tags.join(", "))?;
        if self.stale {
            writeln!(f, "the snapshot is stale: prefixes and loads are ignored")?;
        }
        for rule in &self.rules {
            match &rule.mismatch {
                None => writeln!(f, "  rule {} matches", rule.name)?,
                Some(reason) => writeln!(f, "  rule {} does not match: {reason}", rule.name)?,
            }
        }
        for candidate in &self.candidates {
            let chosen = match candidate.worker {
                Some(id) => self.chosen.first() == Some(&id) && candidate.removal.is_none(),
                None => self.provider.as_ref() == Some(&candidate.name),
            };
            write!(
                f,
                "{} {:<24} {:<20} tier {} {:<11} cached {:>7} uncached {:>7} queued {:>7.0} running {:>4.0} ttft {:>8.1} ms",
                if chosen { "*" } else { " " },
                candidate.name,
                candidate.model,
                candidate.tier,
                format!("{:?}", candidate.standing),
                candidate.cached_tokens,
                candidate.uncached_tokens,
                candidate.queued_tokens,
                candidate.running,
                candidate.predicted_ttft_ms,
            )?;
            match &candidate.removal {
                None => writeln!(f)?,
                Some(removal) if removal.rule.is_empty() => writeln!(f, "  removed: {}", removal.reason)?,
                Some(removal) => writeln!(f, "  removed by {}: {}", removal.rule, removal.reason)?,
            }
        }
        if !self.then.is_empty() {
            writeln!(f, "when the provider fails: {}", self.then.join(", "))?;
        }
        match &self.rule {
            Some(rule) => writeln!(f, "decided by rule {rule}"),
            None => Ok(()),
        }
    }
}
