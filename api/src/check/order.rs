//! Rules against each other: choices that an earlier rule always makes first, and what another rule always forbids.

use super::Reporter;
use super::cover::covers;
use super::world::{Placed, World};
use crate::kinds::{InferencePolicySpec, Locality, Rule};
use crate::{FieldPath, Resource};

/// A choice that a rule states.
type Choice = (&'static str, fn(&Rule) -> bool);

const CHOICES: [Choice; 3] = [
    ("candidates", |rule| rule.candidates.is_some()),
    ("minimize", |rule| rule.minimize.is_some()),
    ("onEmpty", |rule| rule.on_empty.is_some()),
];

pub(super) fn check(policy: &Resource<InferencePolicySpec>, worlds: &[&World<'_>], to: &mut Reporter<'_>) {
    for (index, rule) in policy.spec.rules.iter().enumerate() {
        let place = FieldPath::spec("rules").index(index);
        // What holds in every backend of the policy.
        let find = |holds: &dyn Fn(&Placed<'_>, bool) -> bool| -> Option<String> {
            let found = worlds.iter().map(|world| other(world, policy, index, holds));
            found.collect::<Option<Vec<_>>>()?.into_iter().next()
        };
        let rejecting = find(&|other, earlier| other.rule.reject.is_some() && (earlier || rule.reject.is_none()));
        if let Some(other) = rejecting {
            let message = format!("never counts: rule `{other}` rejects all that this one matches");
            to.warn(&place, message, "remove it, or narrow the other's `when`");
            continue;
        }
        let stated: Vec<&Choice> = CHOICES.iter().filter(|(_, states)| states(rule)).collect();
        let shadows = stated
            .iter()
            .filter_map(|(field, states)| Some((*field, find(&|other, earlier| earlier && states(other.rule))?)));
        let shadows: Vec<(&str, String)> = shadows.collect();
        let only_chooses = rule.require.is_none() && rule.fallback.is_empty() && rule.reject.is_none();
        match shadows.first() {
            Some((_, other)) if only_chooses && shadows.len() == stated.len() => {
                let message = format!("always shadowed: rule `{other}` comes first and matches all that this one does");
                to.warn(&place, message, "put this rule before it, or narrow the other's `when`");
            }
            _ => {
                for (field, other) in shadows {
                    let message =
                        format!("never counts: rule `{other}` comes first and matches all that this one does");
                    to.warn(&place.key(field), message, "put this rule before it, or narrow the other's `when`");
                }
            }
        }
        for (number, tier) in rule.fallback.iter().enumerate() {
            for (position, name) in tier.providers.iter().enumerate() {
                let forbidding = find(&|other, _| forbids(other.rule, name));
                if let Some(other) = forbidding {
                    let path = place.key("fallback").index(number).key("providers").index(position);
                    let message =
                        format!("`{name}` can never be used: rule `{other}` forbids it for all that this one matches");
                    to.warn(&path, message, "what one rule forbids, no other rule brings back");
                }
            }
        }
    }
}

/// The name of the first other rule of a backend that matches all that this one does, and for which `holds`; `holds` is
/// told whether it comes before this one.
fn other(
    world: &World<'_>,
    policy: &Resource<InferencePolicySpec>,
    index: usize,
    holds: &dyn Fn(&Placed<'_>, bool) -> bool,
) -> Option<String> {
    let own = world.rules.iter().position(|placed| *placed.policy == policy.key && placed.index == index)?;
    let this = world.rules.get(own)?.rule;
    let mut others = world.rules.iter().enumerate().filter(|(place, _)| *place != own);
    let found = others
        .find(|(place, placed)| holds(placed, *place < own) && covers(placed.rule.when.as_ref(), this.when.as_ref()));
    found.map(|(_, placed)| placed.name())
}

fn forbids(rule: &Rule, provider: &String) -> bool {
    let Some(require) = &rule.require else { return false };
    require.locality == Some(Locality::Local)
        || require.providers.as_ref().is_some_and(|allowed| !allowed.contains(provider))
}
