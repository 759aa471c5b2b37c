//! Checks of `InferencePolicy`.

use super::bound::{self, Of};
use super::{Reporter, rule};
use crate::kinds::{InferencePolicySpec, OnEmptyAction, Rule};
use crate::{FieldPath, Kind, Resource, Resources, limits};

pub(super) fn check(policy: &Resource<InferencePolicySpec>, resources: &Resources, to: &mut Reporter<'_>) {
    if let Some(backends) = &policy.spec.gateway_backends {
        let place = FieldPath::spec("gatewayBackends");
        if backends.is_empty() {
            to.report(&place, "the policy is for no gateway backend", "leave it out to mean all");
        }
        to.references(&place, backends, Kind::GatewayBackend, &resources.backends);
    }
    to.priority(&FieldPath::spec("priority"), policy.spec.priority);
    let rules = FieldPath::spec("rules");
    if policy.spec.rules.is_empty() {
        to.warn(&rules, "the policy has no rule", "");
    }
    to.names(&rules, Some("name"), policy.spec.rules.iter().map(|rule| rule.name.as_str()));
    for (index, rule) in policy.spec.rules.iter().enumerate() {
        check_rule(rule, &rules.index(index), resources, to);
        rule::check(rule, &rules.index(index), to);
    }
}

fn check_rule(rule: &Rule, place: &FieldPath, resources: &Resources, to: &mut Reporter<'_>) {
    for (index, condition) in rule.when.iter().flat_map(|when| &when.pools).flatten().enumerate() {
        let place = place.key("when").key("pools").index(index);
        check_pool_name(&place.key("name"), &condition.name, resources, to);
        bound::check(&place, &condition.into(), Of::Pool, to);
    }
    if let Some(candidates) = &rule.candidates {
        let place = place.key("candidates").key("models");
        if candidates.models.is_empty() {
            to.report(&place, "no candidate", "list at least one model");
        }
        to.names(&place, None, candidates.models.iter().map(String::as_str));
    }
    if let Some(budget) = rule.ttft_budget {
        to.not_zero(&place.key("ttftBudget"), budget);
    }
    if let Some(require) = &rule.require {
        let place = place.key("require");
        for (index, requirement) in require.workers.iter().enumerate() {
            bound::check(&place.key("workers").index(index), &requirement.into(), Of::Worker, to);
        }
        for (index, name) in require.providers.iter().flatten().enumerate() {
            check_provider_name(&place.key("providers").index(index), name, resources, to);
        }
        for (index, name) in require.pools.iter().flatten().enumerate() {
            check_pool_name(&place.key("pools").index(index), name, resources, to);
        }
    }
    for (index, tier) in rule.fallback.iter().enumerate() {
        let place = place.key("fallback").index(index);
        if tier.models.is_empty() && tier.providers.is_empty() {
            to.report(&place, "an empty tier", "name providers or models");
        }
        for (index, name) in tier.providers.iter().enumerate() {
            check_provider_name(&place.key("providers").index(index), name, resources, to);
        }
    }
    if let Some(on_empty) = &rule.on_empty {
        let place = place.key("onEmpty");
        check_status(&place, on_empty.status, to);
        let says_more = on_empty.status.is_some() || on_empty.retry_after.is_some() || on_empty.message.is_some();
        if on_empty.action == OnEmptyAction::Continue && says_more {
            let message = "status, retryAfter and message are for rejections";
            to.report(&place, message, "remove them, or write action: Reject");
        }
    }
    if let Some(reject) = &rule.reject {
        check_status(&place.key("reject"), Some(reject.status), to);
    }
}

fn check_status(place: &FieldPath, status: Option<u16>, to: &mut Reporter<'_>) {
    if let Some(status) = status {
        let (least, most) = limits::REJECTION_STATUS;
        to.within(&place.key("status"), status, least, most);
    }
}

fn check_pool_name(path: &FieldPath, name: &str, resources: &Resources, to: &mut Reporter<'_>) {
    if !resources.pools.contains_key(&to.key.sibling(name)) {
        to.missing(path, Kind::InferencePool, name, resources.pools.keys());
    }
}

fn check_provider_name(path: &FieldPath, name: &str, resources: &Resources, to: &mut Reporter<'_>) {
    if !resources.providers.contains_key(&to.key.sibling(name)) {
        to.missing(path, Kind::InferenceProvider, name, resources.providers.keys());
    }
}
