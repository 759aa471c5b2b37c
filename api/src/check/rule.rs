//! What a rule says against itself.

use std::collections::BTreeSet;

use super::Reporter;
use super::bound::Bounded;
use crate::FieldPath;
use crate::kinds::{Locality, Objective, Requirements, Rule, TagCondition, When};

pub(super) fn check(rule: &Rule, place: &FieldPath, to: &mut Reporter<'_>) {
    check_name(&place.key("name"), &rule.name, to);
    if let Some(when) = &rule.when {
        check_when(when, &place.key("when"), to);
    }
    let others = [
        ("candidates", rule.candidates.is_some()),
        ("minimize", rule.minimize.is_some()),
        ("require", rule.require.is_some()),
        ("fallback", !rule.fallback.is_empty()),
        ("onEmpty", rule.on_empty.is_some()),
    ];
    let mut others = others.iter().filter(|(_, given)| *given).map(|(field, _)| *field).peekable();
    if rule.reject.is_some() {
        for field in others {
            to.warn(&place.key(field), "has no effect", "the rule rejects all that it matches");
        }
    } else if others.peek().is_none() {
        let remedy = "state candidates, minimize, require, fallback, onEmpty or reject";
        to.report(place, "the rule does nothing", remedy);
    }
    if rule.ttft_budget.is_some() && rule.minimize != Some(Objective::Cost) {
        to.report(&place.key("ttftBudget"), "has no effect", "it goes with minimize: Cost");
    }
    if let Some(require) = &rule.require {
        check_fallback(rule, require, place, to);
    }
}

/// Names of rules are in headers and metrics.
fn check_name(path: &FieldPath, name: &str, to: &mut Reporter<'_>) {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if !name.is_empty() && (name.len() > 63 || !name.bytes().all(is_plain)) {
        to.report(path, format!("`{name}` is not a rule's name"), "at most 63 letters, digits, `-`, `_` and `.`");
    }
}

fn check_when(when: &When, place: &FieldPath, to: &mut Reporter<'_>) {
    for (field, globs) in [("tenants", &when.tenants), ("models", &when.models)] {
        let Some(globs) = globs else { continue };
        let place = place.key(field);
        if globs.is_empty() {
            to.report(&place, "the rule can never match: an empty list has no match", "leave it out to mean any");
        }
        to.names(&place, None, globs.iter().map(String::as_str));
        for (index, glob) in globs.iter().enumerate() {
            check_glob(&place.index(index), glob, to);
        }
    }
    if let Some(tags) = &when.tags {
        check_tags(tags, &place.key("tags"), to);
    }
    let pools = when.pools.as_deref().unwrap_or_default();
    for (index, condition) in pools.iter().enumerate() {
        let bound = Bounded::from(condition);
        let same = pools.iter().take(index).filter(|other| {
            (&other.name, other.signal, other.over, other.aggregate)
                == (&condition.name, condition.signal, condition.over, condition.aggregate)
        });
        if same.map(Bounded::from).any(|other| excludes(&bound, &other) || excludes(&other, &bound)) {
            let message = "the rule can never match: this excludes an earlier condition on the same pool";
            to.report(&place.key("pools").index(index), message, "all conditions of `when` must hold together");
        }
    }
}

/// True when nothing is both within the upper limit of one and the lower one of the other.
fn excludes(upper: &Bounded, lower: &Bounded) -> bool {
    let Some(at_least) = lower.at_least else { return false };
    upper.max.is_some_and(|max| max < at_least) || upper.below.is_some_and(|below| below <= at_least)
}

/// Warns of what other kinds of patterns have; here only `*` is special.
pub(super) fn check_glob(path: &FieldPath, glob: &str, to: &mut Reporter<'_>) {
    if glob.contains(".*") || glob.contains(['?', '[', ']', '^', '$', '|', '(', ')', '{', '}']) {
        to.warn(path, format!("`{glob}` looks like another kind of pattern"), "only `*` is special, for any text");
    }
}

fn check_tags(tags: &TagCondition, place: &FieldPath, to: &mut Reporter<'_>) {
    for (field, names) in [("all", &tags.all), ("any", &tags.any), ("none", &tags.none)] {
        to.names(&place.key(field), None, names.iter().map(String::as_str));
    }
    let none: BTreeSet<&String> = tags.none.iter().collect();
    for (index, tag) in tags.all.iter().enumerate().filter(|(_, tag)| none.contains(tag)) {
        let message = format!("the rule can never match: `{tag}` must be there and must not");
        to.report(&place.key("all").index(index), message, "remove it from `all` or from `none`");
    }
    if !tags.any.is_empty() && tags.any.iter().all(|tag| none.contains(tag)) {
        let message = "the rule can never match: every tag of `any` is in `none`";
        to.report(&place.key("any"), message, "remove one from `none`");
    }
}

/// Fallbacks that the rule's own requirements always remove.
fn check_fallback(rule: &Rule, require: &Requirements, place: &FieldPath, to: &mut Reporter<'_>) {
    for (number, tier) in rule.fallback.iter().enumerate() {
        let place = place.key("fallback").index(number);
        for (index, name) in tier.providers.iter().enumerate() {
            let path = place.key("providers").index(index);
            if require.locality == Some(Locality::Local) {
                let message = format!("`{name}` can never be used: the rule requires locality Local");
                to.report(&path, message, "move the fallback to a rule of its own, or drop one of the two");
            } else if require.providers.as_ref().is_some_and(|allowed| !allowed.contains(name)) {
                let message = format!("`{name}` can never be used: it is not of the rule's require.providers");
                to.report(&path, message, "add it there, or drop the fallback");
            }
        }
        if require.locality == Some(Locality::External) && !tier.models.is_empty() {
            let message = "these can never be used: the rule requires locality External, and models are on workers";
            to.report(&place.key("models"), message, "name providers instead");
        }
    }
}
