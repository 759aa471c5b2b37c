//! `InferencePolicy`.

use kinference_api::ObjectKey;
use kinference_api::kinds::InferencePolicyStatus;
use serde_json::{Map, Value};

use super::figures;
use super::finding::{Finding, Said, finding, list, no, yes};
use super::reasons::{self, types};
use crate::state::{Outcome, PolicyStatus, Standing, Status};

pub(super) fn assess(status: &Status, key: &ObjectKey, outcome: &Outcome) -> (Vec<Finding>, Map<String, Value>) {
    let policy = status.policies.get(&key.to_string());
    let conditions =
        vec![finding(types::ACCEPTED, accepted(outcome)), finding(types::IN_FORCE, in_force(policy, outcome))];
    let last_good = outcome.last_good.as_deref().cloned();
    (conditions, figures(InferencePolicyStatus { last_good, ..InferencePolicyStatus::default() }))
}

fn accepted(outcome: &Outcome) -> Said {
    if !outcome.problems.is_empty() {
        let used = outcome.standing == Standing::InForce;
        return no(if used { reasons::REFERENCE_MISSING } else { reasons::INVALID }, list(&outcome.problems));
    }
    if !outcome.warnings.is_empty() {
        return yes(reasons::VALID_WITH_WARNINGS, list(&outcome.warnings));
    }
    yes(reasons::VALID, "the policy is valid")
}

fn in_force(policy: Option<&PolicyStatus>, outcome: &Outcome) -> Said {
    let why = match &outcome.held {
        Some(held) => held.clone(),
        None => "this version is not valid".to_owned(),
    };
    match outcome.standing {
        Standing::LastGood => {
            return no(
                reasons::LAST_GOOD_IN_FORCE,
                format!("{why}; the last good version of the policy stays in force"),
            );
        }
        Standing::NotInForce if outcome.held.is_some() => return no(reasons::HELD, why),
        Standing::NotInForce if !outcome.problems.is_empty() => {
            return no(reasons::INVALID, "the policy is not valid, and there is no earlier version that was");
        }
        Standing::NotInForce | Standing::InForce => {}
    }
    match policy {
        Some(policy) if !policy.backends.is_empty() => {
            let (rules, backends) = (policy.rules.len(), policy.backends.join(", "));
            yes(
                reasons::RULES_IN_FORCE,
                format!("{rules} {} in force in {backends}", if rules == 1 { "rule" } else { "rules" }),
            )
        }
        _ => no(
            reasons::NO_GATEWAY_BACKEND,
            "no GatewayBackend of its namespace takes the policy; check spec.gatewayBackends",
        ),
    }
}
