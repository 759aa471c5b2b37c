//! Requirements of matching rules, held against one place.

use kinference_protocol::v1;

use super::glob;
use super::rules::{Rules, describe, holds};
use super::verdict::Verdict;
use crate::decide::{Ask, Candidate, Place};
use crate::snapshot::Snapshot;

/// Why a place may not take a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The rule whose requirement it is; empty for what the tenant may not use.
    pub rule: String,
    /// What does not hold.
    pub reason: String,
    /// It is a load requirement, which yields with `onEmpty: Continue`.
    pub load: bool,
}

/// The first requirement that forbids a place; a hard one before a load one. A stale snapshot says nothing of load: then
/// only hard ones count, so that the loss of the control service fails no request.
#[must_use]
pub(crate) fn forbidden(
    snapshot: &Snapshot,
    verdict: &Verdict<'_>,
    ask: &Ask<'_>,
    candidate: &Candidate<'_>,
) -> Option<Removal> {
    let rules = &snapshot.config.rules;
    let (tenant, requested) = (ask.caller.tenant, ask.prompted.model());
    if let Some(reason) = not_for_tenant(snapshot, verdict, tenant, requested, &candidate.model) {
        return Some(Removal { rule: String::new(), reason, load: false });
    }
    let requirements = || verdict.matching.iter().filter_map(|rule| Some((rule, rule.require.as_ref()?)));
    for (rule, require) in requirements() {
        if let Some(reason) = hard(rules, require, &candidate.place) {
            return Some(Removal { rule: rule.name.clone(), reason, load: false });
        }
    }
    if ask.stale {
        return None;
    }
    for (rule, require) in requirements() {
        if let Some(reason) = load(rules, require, candidate) {
            return Some(Removal { rule: rule.name.clone(), reason, load: true });
        }
    }
    None
}

/// A tenant with settings of its own may use the models that they list. An alias that is listed brings along the models
/// that it stands for, and no others: not those of a name that somebody made up, nor those that another rule falls back to.
fn not_for_tenant(
    snapshot: &Snapshot,
    verdict: &Verdict<'_>,
    tenant: &str,
    requested: &str,
    model: &str,
) -> Option<String> {
    let settings = snapshot.config.rules.tenant(tenant)?;
    let by_alias = || {
        !snapshot.config.models.contains_key(requested)
            && glob::any(&settings.models, requested)
            && verdict.behind(requested).any(|behind| behind == model)
    };
    if glob::any(&settings.models, model) || by_alias() {
        return None;
    }
    Some(format!("tenant {tenant:?} may use only {:?}", settings.models))
}

fn hard(rules: &Rules, require: &v1::Requirements, place: &Place<'_>) -> Option<String> {
    match (require.locality.map(|_| require.locality()), place) {
        (Some(v1::Locality::Local), Place::Provider { .. }) => return Some("locality must be Local".to_owned()),
        (Some(v1::Locality::External), Place::Worker(_)) => return Some("locality must be External".to_owned()),
        _ => {}
    }
    match place {
        Place::Provider { provider, .. } => {
            let allowed = require.providers.as_ref()?;
            (!allowed.names.contains(&provider.name))
                .then(|| format!("only the providers {:?} are allowed", allowed.names))
        }
        Place::Worker(worker) => {
            let allowed = &require.pools.as_ref()?.ids;
            let inside =
                rules.pools.iter().any(|pool| allowed.contains(&pool.id) && pool.worker_sets.contains(&worker.set));
            let names = || allowed.iter().map(|id| rules.pool_name(*id)).collect::<Vec<_>>();
            (!inside).then(|| format!("only the pools {:?} are allowed", names()))
        }
    }
}

/// Load requirements are about workers; providers have no signals and are not touched.
fn load(rules: &Rules, require: &v1::Requirements, candidate: &Candidate<'_>) -> Option<String> {
    let Place::Worker(worker) = candidate.place else { return None };
    require.workers.iter().find_map(|bound| {
        let signal = rules.signals.get(bound.signal as usize)?;
        let value = match signal.signal() {
            v1::Signal::PredictedTtft => Some(f64::from(candidate.predicted_ttft_ms)),
            _ => worker.signals.get(bound.signal as usize).map(|value| f64::from(*value)),
        };
        (!holds(bound, value)).then(|| describe(rules, bound, value))
    })
}
