//! The decision: where a request goes.
//!
//! `request -> matching rules -> candidates, requirements, fallback tiers -> predicted time to first token -> choice`

mod ask;
mod cached;
mod candidates;
mod choice;
mod rank;

use kinference_protocol::v1;

use crate::ledger::Ledger;
use crate::policy::{Verdict, forbidden};
use crate::snapshot::Snapshot;
use crate::trace::{CandidateStanding, Trace};

pub use ask::{Ask, Caller, Prompted};
pub use cached::{Cached, cached_tokens};
pub use candidates::routed_domain;
pub(crate) use candidates::{Candidate, Place};
pub use choice::{Choice, Decision, Destination, Expectation, PLACES, ProviderRoute, Rejection, Stop};

use candidates::Gathered;

/// Decides where a request goes. Always an answer or a rejection.
#[must_use]
pub fn decide(snapshot: &Snapshot, ledger: &Ledger, ask: &Ask<'_>) -> Decision {
    let mut trace = ask.explain.then(|| Trace {
        model: ask.prompted.model().to_owned(),
        tenant: ask.caller.tenant.to_owned(),
        tags: ask.caller.tags.iter().map(|tag| (*tag).to_owned()).collect(),
        stale: ask.stale,
        ..Trace::default()
    });
    let verdict = Verdict::of(snapshot, &ask.caller, ask.prompted.model(), ask.stale, trace.as_mut());
    let result = Deciding { snapshot, ledger, ask, verdict }.settle(trace.as_mut());
    if let (Some(trace), Ok(choice)) = (&mut trace, &result) {
        trace.rule = choice.rule.clone();
        match &choice.first.destination {
            Destination::Worker(_) => trace.chosen = choice.workers(),
            Destination::Provider(route) => {
                trace.provider = Some(route.name.clone());
                trace.then = choice.next.iter().map(|stop| stop_name(snapshot, stop)).collect();
            }
        }
    }
    Decision { result, trace }
}

/// The candidates themselves, or a fallback tier of a rule.
struct Tier<'s> {
    rule: Option<&'s str>,
    gathered: Gathered<'s>,
}

struct Deciding<'s, 'a> {
    snapshot: &'s Snapshot,
    ledger: &'a Ledger,
    ask: &'a Ask<'a>,
    verdict: Verdict<'s>,
}

impl<'s> Deciding<'s, '_> {
    fn settle(&self, trace: Option<&mut Trace>) -> Result<Choice, Rejection> {
        let requested = self.ask.prompted.model();
        if let Some((rule, answer)) = self.verdict.reject {
            return Err(Rejection::rule(rule, answer, requested));
        }
        if !self.snapshot.knows(requested) && !self.verdict.redirects() {
            return Err(Rejection::UnknownModel(requested.to_owned()));
        }
        let tiers = self.tiers();
        if let Some(trace) = trace {
            for (number, tier) in tiers.iter().enumerate() {
                let explained =
                    tier.gathered.candidates.iter().map(|candidate| candidate.explain(self.snapshot, number));
                trace.candidates.extend(explained);
            }
        }
        let allowed = |candidate: &Candidate<'_>| candidate.removal.is_none();
        if let Some(choice) = self.first(&tiers, allowed, None) {
            return Ok(choice);
        }
        self.nothing_left(&tiers)?;
        // Load requirements yield here, hard ones never.
        let only_load = |candidate: &Candidate<'_>| candidate.removal.as_ref().is_none_or(|removal| removal.load);
        self.first(&tiers, only_load, self.verdict.on_empty.map(|(rule, _)| rule)).ok_or_else(|| self.exhausted(&tiers))
    }

    /// The candidates and all fallback tiers, each with what the requirements say of it.
    fn tiers(&self) -> Vec<Tier<'s>> {
        let requested = self.ask.prompted.model();
        let own = [requested.to_owned()];
        let models = self.verdict.candidates.map_or(&own[..], |(_, models)| models);
        let candidates = Gathered::workers(self.snapshot, self.ledger, self.ask, models);
        let mut tiers = vec![Tier { rule: None, gathered: candidates }];
        for (rule, tier) in &self.verdict.tiers {
            let gathered = Gathered::tier(self.snapshot, self.ledger, self.ask, models, tier);
            tiers.push(Tier { rule: Some(rule), gathered });
        }
        for candidate in tiers.iter_mut().flat_map(|tier| &mut tier.gathered.candidates) {
            candidate.removal = forbidden(self.snapshot, &self.verdict, self.ask, candidate);
        }
        tiers
    }

    /// The choice from the first tier that has a healthy place, or else from the first that has any.
    fn first(&self, tiers: &[Tier<'s>], keep: impl Fn(&Candidate<'_>) -> bool, rule: Option<&str>) -> Option<Choice> {
        let healthy =
            |candidate: &Candidate<'_>| candidate.standing <= CandidateStanding::LoadUnknown && keep(candidate);
        let usable = |tier: &Tier<'s>| tier.gathered.candidates.iter().any(healthy);
        let choose = |number: usize, tier: &Tier<'s>| {
            let mut places = Vec::with_capacity(PLACES);
            rank::append(&mut places, &tier.gathered, &self.verdict, self.ask.stale, &keep);
            if places.first().is_some_and(|best| matches!(best.place, Place::Provider { .. })) {
                for later in tiers.iter().skip(number + 1) {
                    rank::append(&mut places, &later.gathered, &self.verdict, self.ask.stale, &healthy);
                }
            }
            choice::of(self.snapshot, &tier.gathered, &places, self.decisive(tiers, tier, rule))
        };
        let mut numbered = tiers.iter().enumerate();
        let first = numbered.clone().find(|(_, tier)| usable(tier));
        first
            .and_then(|(number, tier)| choose(number, tier))
            .or_else(|| numbered.find_map(|(number, tier)| choose(number, tier)))
    }

    /// The rule that a choice owes most to: that of the tier, of `onEmpty`, of the candidates, the first that removed a
    /// place, or that of the objective.
    fn decisive(&self, tiers: &[Tier<'_>], tier: &Tier<'_>, on_empty: Option<&str>) -> Option<String> {
        let stated = self.verdict.candidates.map(|(rule, _)| rule);
        let minimize = self.verdict.minimize_rule;
        let rule = tier.rule.or(on_empty).or(stated).or_else(|| removing(tiers)).or(minimize);
        rule.map(str::to_owned)
    }

    /// The rejection that `onEmpty` asks for, when it asks for one.
    fn nothing_left(&self, tiers: &[Tier<'_>]) -> Result<(), Rejection> {
        let requested = self.ask.prompted.model();
        match self.verdict.on_empty {
            Some((rule, on_empty)) if on_empty.action() == v1::OnEmptyAction::Reject => {
                let answer = on_empty.answer.clone().unwrap_or(v1::Answer { status: 503, ..v1::Answer::default() });
                // A tenant that may not use the model learns that, whatever rules say of load.
                if only_tenant(tiers) {
                    Err(self.exhausted(tiers))
                } else {
                    Err(Rejection::rule(rule, &answer, requested))
                }
            }
            _ => Ok(()),
        }
    }

    fn exhausted(&self, tiers: &[Tier<'_>]) -> Rejection {
        let requested = self.ask.prompted.model().to_owned();
        if only_tenant(tiers) {
            return Rejection::Forbidden(requested);
        }
        match removing(tiers) {
            Some(rule) => Rejection::rule(rule, &v1::Answer { status: 503, ..v1::Answer::default() }, &requested),
            None => Rejection::NoWorkers(requested),
        }
    }
}

fn stop_name(snapshot: &Snapshot, stop: &Stop) -> String {
    match &stop.destination {
        Destination::Provider(route) => route.name.clone(),
        Destination::Worker(id) => {
            snapshot.workers.get(id).map(|worker| snapshot.worker_name(worker)).unwrap_or_default()
        }
    }
}

/// There are places, and the tenant may use none of them.
fn only_tenant(tiers: &[Tier<'_>]) -> bool {
    let mut removals =
        tiers.iter().flat_map(|tier| &tier.gathered.candidates).map(|candidate| &candidate.removal).peekable();
    removals.peek().is_some() && removals.all(|removal| removal.as_ref().is_some_and(|removal| removal.rule.is_empty()))
}

/// The first rule that removed a place.
fn removing<'t>(tiers: &'t [Tier<'_>]) -> Option<&'t str> {
    let removals =
        tiers.iter().flat_map(|tier| &tier.gathered.candidates).filter_map(|candidate| candidate.removal.as_ref());
    removals.map(|removal| removal.rule.as_str()).find(|rule| !rule.is_empty())
}

#[cfg(test)]
mod tests;
