//! Why a decision came out as it did, for `kinfctl explain` and for people.

use std::fmt;

/// Everything that a decision looked at. Holds no prompt text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// Model that was asked for.
    pub model: String,
    /// The snapshot was too old to trust its prefixes and loads.
    pub stale: bool,
    /// The rule that chose the candidates.
    pub rule: Option<String>,
    /// Every worker that was looked at.
    pub candidates: Vec<CandidateTrace>,
    /// What was chosen: worker ids, best first.
    pub chosen: Vec<u32>,
}

/// One worker as the decision saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateTrace {
    /// Id of the worker.
    pub worker: u32,
    /// "set/worker"
    pub name: String,
    /// Why it was left out, or put last.
    pub standing: CandidateStanding,
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
        writeln!(
            f,
            "model {}{}",
            self.model,
            if self.stale { " (stale snapshot: prefixes and loads ignored)" } else { "" }
        )?;
        if let Some(rule) = &self.rule {
            writeln!(f, "candidates by rule {rule}")?;
        }
        for candidate in &self.candidates {
            let mark = if self.chosen.first() == Some(&candidate.worker) { "*" } else { " " };
            writeln!(
                f,
                "{mark} {:<24} {:<12} cached {:>7} uncached {:>7} queued {:>8.0} running {:>5.0} ttft {:>8.1} ms",
                candidate.name,
                format!("{:?}", candidate.standing),
                candidate.cached_tokens,
                candidate.uncached_tokens,
                candidate.queued_tokens,
                candidate.running,
                candidate.predicted_ttft_ms,
            )?;
        }
        Ok(())
    }
}
