//! What becomes of a request, in the words of policy tests.

use kinference_api::policy_test::{Expectation, names_rule};
use kinference_routing::trace::{CandidateTrace, Trace};
use kinference_routing::{Choice, Destination, Rejection};

/// What becomes of a request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) place: Place,
    /// The rule that decided, as `<policy>/<rule>`.
    pub(crate) rule: Option<String>,
    /// How it came about; None when no rule was asked.
    pub(crate) trace: Option<Trace>,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Worker {
        /// `<worker set>/<worker>`
        name: String,
        set: String,
        model: String,
        predicted_ttft_ms: f32,
    },
    Provider {
        name: String,
        model: String,
        predicted_ttft_ms: f32,
    },
    Rejected {
        status: u16,
        retry_after_s: Option<u64>,
        message: String,
    },
}

impl Outcome {
    /// A request without tenant, where every request must have one.
    pub(crate) fn unidentified() -> Outcome {
        let message = "The request has no tenant.".to_string();
        Outcome { place: Place::Rejected { status: 401, retry_after_s: None, message }, rule: None, trace: None }
    }

    pub(crate) fn of(result: Result<Choice, Rejection>, trace: Trace) -> Outcome {
        let rule = match &result {
            Ok(choice) => choice.rule.clone(),
            Err(Rejection::Rule { rule, .. }) => Some(rule.clone()),
            Err(_) => None,
        };
        let place = match result {
            Ok(choice) => {
                let chosen = trace.candidates.iter().find(|candidate| is_chosen(&trace, candidate));
                let name = chosen.map(|candidate| short(&candidate.name).to_string()).unwrap_or_default();
                let model = chosen.map(|candidate| candidate.model.clone()).unwrap_or_default();
                let predicted_ttft_ms = choice.first.expected.predicted_ttft_ms;
                match choice.first.destination {
                    Destination::Worker(_) => {
                        let set = name.split('/').next().unwrap_or_default().to_string();
                        Place::Worker { name, set, model, predicted_ttft_ms }
                    }
                    Destination::Provider(_) => Place::Provider { name, model, predicted_ttft_ms },
                }
            }
            Err(rejection) => Place::Rejected {
                status: rejection.status(),
                retry_after_s: rejection.retry_after_s(),
                message: rejection.to_string(),
            },
        };
        Outcome { place, rule, trace: Some(trace) }
    }

    /// Everything that is expected and is not so, one a line; empty when all is as expected.
    pub(crate) fn unmet(&self, expect: &Expectation) -> Vec<String> {
        let mut unmet: Vec<String> =
            self.parts(expect).into_iter().filter(|(_, holds)| !holds).map(|(part, _)| part).collect();
        if let Some(not) = &expect.not {
            let held = self.parts(not).into_iter().filter(|(_, holds)| *holds);
            unmet.extend(held.map(|(part, _)| format!("not {part}")));
            if let Some(again) = &not.not {
                unmet.extend(self.unmet(again));
            }
        }
        unmet
    }

    /// What is expected, and whether it is so.
    fn parts(&self, expect: &Expectation) -> Vec<(String, bool)> {
        let (worker, set, provider, model) = match &self.place {
            Place::Worker { name, set, model, .. } => (Some(name), Some(set), None, Some(model)),
            Place::Provider { name, model, .. } => (None, None, Some(name), Some(model)),
            Place::Rejected { .. } => (None, None, None, None),
        };
        let mut parts = Vec::new();
        for (what, expected, is) in [
            ("worker", &expect.worker, worker),
            ("workerSet", &expect.worker_set, set),
            ("provider", &expect.provider, provider),
            ("model", &expect.model, model),
        ] {
            parts.extend(expected.as_ref().map(|expected| (format!("{what} {expected}"), is == Some(expected))));
        }
        if let Some(rule) = &expect.rule {
            let decided = self.rule.as_ref().is_some_and(|name| names_rule(rule, name));
            parts.push((format!("rule {rule}"), decided));
        }
        if let Some(expected) = expect.rejected {
            let rejected = match &self.place {
                Place::Rejected { status, retry_after_s, .. } => Some((*status, retry_after_s.unwrap_or_default())),
                _ => None,
            };
            if expected.status.is_none() && expected.retry_after.is_none() {
                parts.push(("rejected".into(), rejected.is_some()));
            }
            if let Some(status) = expected.status {
                parts.push((format!("rejected with status {status}"), rejected.is_some_and(|(is, _)| is == status)));
            }
            if let Some(period) = expected.retry_after {
                let same = rejected.is_some_and(|(_, seconds)| seconds * 1000 == period.as_millis());
                parts.push((format!("rejected with retryAfter {period}"), same));
            }
        }
        parts
    }

    /// The outcome in a few words.
    pub(crate) fn summary(&self) -> String {
        let place = match &self.place {
            Place::Worker { name, model, .. } => format!("worker {name}, model {model}"),
            Place::Provider { name, model, .. } => format!("provider {name}, model {model}"),
            Place::Rejected { status, retry_after_s, message } => {
                let later = retry_after_s.map(|seconds| format!(", retryAfter {seconds}s")).unwrap_or_default();
                format!("rejected with status {status}{later}: {message}")
            }
        };
        match (&self.rule, &self.place) {
            (Some(rule), Place::Rejected { .. }) => format!("{place} (rule {rule})"),
            (Some(rule), _) => format!("{place}, rule {rule}"),
            (None, _) => place,
        }
    }
}

/// The candidate that a trace's decision chose.
pub(crate) fn is_chosen(trace: &Trace, candidate: &CandidateTrace) -> bool {
    match candidate.worker {
        Some(id) => trace.chosen.first() == Some(&id),
        None => {
            let may = candidate.removal.as_ref().is_none_or(|removal| removal.load);
            may && trace.provider.as_ref() == Some(&candidate.name)
        }
    }
}

/// A worker's name without its namespace; a provider's as it is.
pub(crate) fn short(name: &str) -> &str {
    match name.split_once('/') {
        Some((_, rest)) if rest.contains('/') => rest,
        _ => name,
    }
}
