//! The rules that match a request, and what they choose between them.

use kinference_protocol::v1;

use super::rules::mismatch;
use crate::decide::Caller;
use crate::snapshot::Snapshot;
use crate::trace::{RuleTrace, Trace};

/// The matching rules of a request, and what they choose between them.
#[derive(Debug)]
pub struct Verdict<'s> {
    /// Rules that match, in order.
    pub matching: Vec<&'s v1::Rule>,
    /// The first of them that rejects, by name, and its answer.
    pub reject: Option<(&'s str, &'s v1::Answer)>,
    /// Models that may answer, and the rule that says so; `None`: the requested one.
    pub candidates: Option<(&'s str, &'s [String])>,
    /// What the choice minimizes.
    pub minimize: v1::Objective,
    /// The rule that says so.
    pub minimize_rule: Option<&'s str>,
    /// Bound on the predicted time to first token when cost is minimized, in milliseconds.
    pub ttft_budget_ms: f32,
    /// What happens when nothing is left, and the rule that says so.
    pub on_empty: Option<(&'s str, &'s v1::OnEmpty)>,
    /// Fallback tiers of all matching rules, in order.
    pub tiers: Vec<(&'s str, &'s v1::Tier)>,
}

/// Default bound on the predicted time to first token when cost is minimized.
const TTFT_BUDGET_MS: f32 = 2000.0;

impl<'s> Verdict<'s> {
    /// Matches the rules against a request as it came, and notes in the trace which of them do. Of a `stale` snapshot the
    /// state of pools is not known.
    #[must_use]
    pub fn of(
        snapshot: &'s Snapshot,
        caller: &Caller<'_>,
        model: &str,
        stale: bool,
        mut trace: Option<&mut Trace>,
    ) -> Self {
        let rules = &snapshot.config.rules;
        let mut verdict = Self {
            matching: Vec::new(),
            reject: None,
            candidates: None,
            minimize: v1::Objective::MinimizeTtft,
            minimize_rule: None,
            ttft_budget_ms: TTFT_BUDGET_MS,
            on_empty: None,
            tiers: Vec::new(),
        };
        for rule in &rules.list {
            let signal = |pool: u32, signal: u32| if stale { None } else { snapshot.pool_signal(pool, signal) };
            let why_not = mismatch(rules, rule.when.as_ref(), caller, model, signal);
            if let Some(trace) = trace.as_deref_mut() {
                trace.rules.push(RuleTrace { name: rule.name.clone(), mismatch: why_not.clone() });
            }
            if why_not.is_none() {
                verdict.matched(rule);
            }
        }
        verdict
    }

    /// A matching rule leads from the requested name elsewhere, so that it is known although nobody may serve it. One that
    /// is for whatever was asked for leads from no name.
    #[must_use]
    pub fn redirects(&self) -> bool {
        self.redirecting().next().is_some()
    }

    /// The models that `alias` stands for, as far as it is an alias: matching rules name it, not by a glob, and state
    /// candidates; they may state models to fall back to besides.
    pub fn behind(&self, alias: &str) -> impl Iterator<Item = &'s String> {
        let named = self.redirecting().filter(move |(when, _)| when.models.iter().any(|model| model == alias));
        named.flat_map(|(_, rule)| rule.candidates.iter().chain(rule.fallback.iter().flat_map(|tier| &tier.models)))
    }

    fn redirecting(&self) -> impl Iterator<Item = (&'s v1::When, &'s v1::Rule)> {
        let stating = self.matching.iter().filter(|rule| !rule.candidates.is_empty());
        stating.filter_map(|rule| Some((rule.when.as_ref().filter(|when| !when.models.is_empty())?, *rule)))
    }

    fn matched(&mut self, rule: &'s v1::Rule) {
        let name = rule.name.as_str();
        self.matching.push(rule);
        self.reject = self.reject.or(rule.reject.as_ref().map(|answer| (name, answer)));
        self.on_empty = self.on_empty.or(rule.on_empty.as_ref().map(|on_empty| (name, on_empty)));
        if self.candidates.is_none() && !rule.candidates.is_empty() {
            self.candidates = Some((name, &rule.candidates));
        }
        if self.minimize_rule.is_none() && rule.minimize.is_some() {
            self.minimize = rule.minimize();
            self.minimize_rule = Some(name);
            if rule.ttft_budget_ms > 0 {
                self.ttft_budget_ms = rule.ttft_budget_ms as f32;
            }
        }
        self.tiers.extend(rule.fallback.iter().map(|tier| (name, tier)));
    }
}
