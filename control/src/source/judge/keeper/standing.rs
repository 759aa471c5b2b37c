//! Which version of each resource is in force.

use std::sync::Arc;

use kinference_api::{Kind, ObjectKey, Resource, Resources};

use super::super::ids;
use super::{Choice, Choices, Told};
use crate::state::{Outcomes, Standing};

/// Tells it to the outcomes; `now` are the resources as they were read, `force` the ones in force without policies.
/// What is `told` of a policy stays its last good version until another takes that place.
pub(super) fn tell(now: &Resources, force: &Resources, choices: &Choices, told: &Told, outcomes: &mut Outcomes) {
    for id in ids(now) {
        outcomes.entry(id).or_default();
    }
    for ((kind, key), outcome) in outcomes {
        outcome.standing = match kind {
            Kind::GatewayBackend => {
                let refused = choices.get(key).and_then(|choice| choice.refused);
                refused.unwrap_or_else(|| of(now.backends.get(key), force.backends.get(key)))
            }
            Kind::InferencePool => of(now.pools.get(key), force.pools.get(key)),
            Kind::InferenceProvider => of(now.providers.get(key), force.providers.get(key)),
            Kind::InferenceWorkerSet => of(now.worker_sets.get(key), force.worker_sets.get(key)),
            Kind::InferencePolicy => {
                let concerned = choices.iter().filter(|(_, choice)| {
                    choice.now.contains_key(key) || choice.used.contains_key(key) || choice.wrong.contains(key)
                });
                let concerned: Vec<(&ObjectKey, &Choice)> = concerned.collect();
                let standing = of_policy(key, &concerned, outcome.problems.is_empty());
                if standing != Standing::InForce && outcome.problems.is_empty() {
                    outcome.held = held(&concerned);
                }
                if standing == Standing::LastGood {
                    let used = concerned.iter().filter(|(_, choice)| of_choice(key, choice) == Standing::LastGood);
                    let policy = used.filter_map(|(_, choice)| choice.used.get(key)).next();
                    outcome.last_good = policy.map(|policy| Arc::new(policy.spec.clone()));
                }
                if outcome.last_good.is_none() {
                    outcome.last_good = told.last_good(key);
                }
                standing
            }
        };
    }
}

fn of<S: PartialEq>(now: Option<&Resource<S>>, force: Option<&Resource<S>>) -> Standing {
    match (now, force) {
        (_, None) => Standing::NotInForce,
        (Some(now), Some(force)) if now.spec == force.spec && now.labels == force.labels => Standing::InForce,
        (_, Some(_)) => Standing::LastGood,
    }
}

fn of_choice(policy: &ObjectKey, choice: &Choice) -> Standing {
    of(choice.now.get(policy), choice.used.get(policy))
}

/// One that is for no gateway backend is as much in force as it can be.
fn of_policy(key: &ObjectKey, concerned: &[(&ObjectKey, &Choice)], good: bool) -> Standing {
    let standings = || concerned.iter().map(|(_, choice)| of_choice(key, choice));
    if standings().all(|standing| standing == Standing::InForce) && (good || !concerned.is_empty()) {
        Standing::InForce
    } else if standings().any(|standing| standing != Standing::NotInForce) {
        Standing::LastGood
    } else {
        Standing::NotInForce
    }
}

fn held(concerned: &[(&ObjectKey, &Choice)]) -> Option<String> {
    let (backend, choice) = concerned.iter().find(|(_, choice)| !choice.wrong.is_empty())?;
    let wrong: Vec<&str> = choice.wrong.iter().map(|policy| policy.name.as_str()).collect();
    let (name, wrong) = (&backend.name, wrong.join(", "));
    Some(format!("GatewayBackend {name} keeps its last good policies until these are mended: {wrong}"))
}
