//! Rules as the filter runs them: checked once when a configuration arrives, so that evaluation cannot fail.

use std::collections::BTreeSet;

use kinference_protocol::v1;

use super::glob;
use crate::decide::Caller;
use crate::signals;
use crate::snapshot::ApplyError;

/// The rules in force, and what they refer to.
#[derive(Debug, Default)]
pub struct Rules {
    /// In their order.
    pub list: Vec<v1::Rule>,
    /// Signals that bounds refer to.
    pub signals: Vec<v1::WindowedSignal>,
    /// Pools that conditions refer to.
    pub pools: Vec<v1::Pool>,
    /// Providers that tiers refer to.
    pub providers: Vec<v1::Provider>,
    /// Who may use what.
    pub tenancy: v1::Tenancy,
}

impl Rules {
    /// Takes the rules out of a configuration.
    ///
    /// # Errors
    /// When a rule refers to something that is not there, or its answer is not an HTTP error.
    pub fn compile(config: &v1::Config) -> Result<Self, ApplyError> {
        let pools: BTreeSet<u32> = config.pools.iter().map(|pool| pool.id).collect();
        let providers: BTreeSet<&str> = config.providers.iter().map(|provider| provider.name.as_str()).collect();
        let bound = |bound: &v1::Bound| {
            let known = (bound.signal as usize) < config.signals.len();
            let figure = ApplyError::Figure { field: "config.rules.signal", value: u64::from(bound.signal) };
            if bound.bound.is_none() {
                return Err(ApplyError::Missing("config.rules.bound"));
            }
            if known { Ok(()) } else { Err(figure) }
        };
        let pool = |id: u32| {
            let known = pools.contains(&id);
            if known { Ok(()) } else { Err(ApplyError::Figure { field: "config.rules.pool", value: u64::from(id) }) }
        };
        let answer = |answer: &v1::Answer| {
            let sound = (400..600).contains(&answer.status);
            let figure = ApplyError::Figure { field: "config.rules.status", value: u64::from(answer.status) };
            if sound { Ok(()) } else { Err(figure) }
        };
        for rule in &config.rules {
            for condition in rule.when.iter().flat_map(|when| &when.pools) {
                pool(condition.pool)?;
                bound(condition.bound.as_ref().ok_or(ApplyError::Missing("config.rules.when.pools.bound"))?)?;
            }
            if let Some(require) = &rule.require {
                require.workers.iter().try_for_each(bound)?;
                require.pools.iter().flat_map(|pools| &pools.ids).copied().try_for_each(pool)?;
            }
            rule.reject.iter().try_for_each(answer)?;
            rule.on_empty.iter().filter_map(|on_empty| on_empty.answer.as_ref()).try_for_each(answer)?;
            for name in rule.fallback.iter().flat_map(|tier| &tier.providers) {
                if !providers.contains(name.as_str()) {
                    return Err(ApplyError::Missing("config.rules.fallback.providers"));
                }
            }
        }
        Ok(Self {
            list: config.rules.clone(),
            signals: config.signals.clone(),
            pools: config.pools.clone(),
            providers: config.providers.clone(),
            tenancy: config.tenancy.clone().unwrap_or_default(),
        })
    }

    /// The tenant's settings, when it has some of its own.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Option<&v1::Tenant> {
        self.tenancy.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// Name of a pool.
    #[must_use]
    pub fn pool_name(&self, id: u32) -> &str {
        self.pools.iter().find(|pool| pool.id == id).map_or("", |pool| &pool.name)
    }
}

/// Why a rule does not match, or `None` when it does.
pub(super) fn mismatch(
    rules: &Rules,
    when: Option<&v1::When>,
    caller: &Caller<'_>,
    model: &str,
    pool_signal: impl Fn(u32, u32) -> Option<f64>,
) -> Option<String> {
    let when = when?;
    let tenant = caller.tenant;
    if !when.tenants.is_empty() && !glob::any(&when.tenants, tenant) {
        return Some(format!("tenant {tenant:?} is not of {:?}", when.tenants));
    }
    if !when.models.is_empty() && !glob::any(&when.models, model) {
        return Some(format!("model {model:?} is not of {:?}", when.models));
    }
    let has = |tag: &String| caller.tags.contains(&tag.as_str());
    if let Some(missing) = when.tags_all.iter().find(|tag| !has(tag)) {
        return Some(format!("tag {missing:?} is missing"));
    }
    if !when.tags_any.is_empty() && !when.tags_any.iter().any(has) {
        return Some(format!("none of the tags {:?}", when.tags_any));
    }
    if let Some(present) = when.tags_none.iter().find(|tag| has(tag)) {
        return Some(format!("tag {present:?} is present"));
    }
    for condition in &when.pools {
        let Some(bound) = &condition.bound else { continue };
        let value = pool_signal(condition.pool, bound.signal);
        if !holds(bound, value) {
            let name = rules.pool_name(condition.pool);
            return Some(format!("pool {name}: {}", describe(rules, bound, value)));
        }
    }
    None
}

/// Whether a bound holds. A missing signal fails it.
pub(super) fn holds(bound: &v1::Bound, value: Option<f64>) -> bool {
    use v1::bound::Bound::{AtLeast, Below, Max};
    // Signals travel in single precision: 0.9 must be at least "0.9".
    let Some(value) = value.map(|value| value as f32).filter(|value| !value.is_nan()) else { return false };
    match bound.bound {
        Some(Max(limit)) => value <= limit as f32,
        Some(Below(limit)) => value < limit as f32,
        Some(AtLeast(limit)) => value >= limit as f32,
        None => false,
    }
}

/// A bound against its value, in words: `KvCacheUsage 0.95 is not below 0.7`.
pub(super) fn describe(rules: &Rules, bound: &v1::Bound, value: Option<f64>) -> String {
    use v1::bound::Bound::{AtLeast, Below, Max};
    let name = rules.signals.get(bound.signal as usize).map(signals::name).unwrap_or_default();
    let limit = match bound.bound {
        Some(Max(limit)) => format!("at most {limit}"),
        Some(Below(limit)) => format!("below {limit}"),
        Some(AtLeast(limit)) => format!("at least {limit}"),
        None => "bounded".to_owned(),
    };
    match value.filter(|value| !value.is_nan()) {
        Some(value) => {
            let shown = value as f32;
            format!("{name} {shown} is {}{limit}", if holds(bound, Some(value)) { "" } else { "not " })
        }
        None => format!("{name} is missing, and must be {limit}"),
    }
}
