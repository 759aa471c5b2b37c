//! The policies of a gateway backend to rules, and what rules refer to.

use kinference_protocol::v1;

use super::{PoolSpec, ProviderSpec};
use crate::kinds::{
    Aggregate, FallbackTier, GatewayBackendSpec, InferencePolicySpec, Locality, Objective, OnEmpty, OnEmptyAction,
    PoolCondition, Reject, Requirements, Rule, Signal, Unidentified, When, WorkerRequirement,
};
use crate::units::{Decimal, Period};
use crate::{ObjectKey, Resource, Resources};

/// HTTP status of a rejection by `onEmpty` that states none.
const ON_EMPTY_STATUS: u32 = 503;

/// Rules, and the signals that they look at.
#[derive(Default)]
pub(super) struct Policies {
    pub(super) rules: Vec<v1::Rule>,
    pub(super) signals: Vec<v1::WindowedSignal>,
}

/// The policies that are for a gateway backend, in their order: by priority, highest first, then by name.
pub fn policies_of<'r>(resources: &'r Resources, backend: &ObjectKey) -> Vec<&'r Resource<InferencePolicySpec>> {
    let is_for = |policy: &&Resource<InferencePolicySpec>| {
        let named = policy.spec.gateway_backends.as_ref();
        policy.key.namespace == backend.namespace
            && named.is_none_or(|names| names.iter().any(|reference| reference.name == backend.name))
    };
    let mut policies: Vec<_> = resources.policies.values().filter(is_for).collect();
    policies.sort_by(|a, b| b.spec.priority.cmp(&a.spec.priority).then_with(|| a.key.cmp(&b.key)));
    policies
}

/// What there is in a backend, for its rules to refer to.
struct Compiler<'r> {
    pools: &'r [PoolSpec],
    providers: &'r [ProviderSpec],
    signals: Vec<v1::WindowedSignal>,
}

/// The rules of `backend`, which has these pools and providers.
pub(super) fn compile(
    resources: &Resources,
    backend: &ObjectKey,
    pools: &[PoolSpec],
    providers: &[ProviderSpec],
) -> Policies {
    let mut compiler = Compiler { pools, providers, signals: Vec::new() };
    let mut rules = Vec::new();
    for policy in policies_of(resources, backend) {
        let of_policy = policy.spec.rules.iter();
        rules.extend(of_policy.filter_map(|rule| compiler.rule(&format!("{}/{}", policy.key.name, rule.name), rule)));
    }
    Policies { rules, signals: compiler.signals }
}

impl Compiler<'_> {
    /// `None` for a rule that asks for the state of a pool that the backend does not have: a signal that is missing.
    fn rule(&mut self, name: &str, rule: &Rule) -> Option<v1::Rule> {
        Some(v1::Rule {
            name: name.to_string(),
            when: match &rule.when {
                Some(when) => Some(self.when(when)?),
                None => None,
            },
            candidates: rule.candidates.as_ref().map(|candidates| candidates.models.clone()).unwrap_or_default(),
            minimize: rule.minimize.map(|objective| objective_of(objective).into()),
            ttft_budget_ms: rule.ttft_budget.map_or(0, Period::as_millis),
            require: rule.require.as_ref().map(|require| self.requirements(require)),
            fallback: rule.fallback.iter().map(|tier| self.tier(tier)).collect(),
            on_empty: rule.on_empty.as_ref().map(on_empty),
            reject: rule.reject.as_ref().map(reject),
        })
    }

    fn when(&mut self, when: &When) -> Option<v1::When> {
        let tags = when.tags.clone().unwrap_or_default();
        let pools = when.pools.iter().flatten().map(|condition| self.pool_bound(condition));
        Some(v1::When {
            pools: pools.collect::<Option<_>>()?,
            tenants: when.tenants.clone().unwrap_or_default(),
            models: when.models.clone().unwrap_or_default(),
            tags_all: tags.all,
            tags_any: tags.any,
            tags_none: tags.none,
        })
    }

    fn pool(&self, name: &str) -> Option<u32> {
        (0..).zip(self.pools).find(|(_, pool)| pool.key.name == name).map(|(id, _)| id)
    }

    fn pool_bound(&mut self, condition: &PoolCondition) -> Option<v1::PoolBound> {
        let pool = self.pool(&condition.name)?;
        let limits = [condition.max, condition.below, condition.at_least];
        let bound = self.bound(condition.signal, condition.over, condition.aggregate, limits);
        Some(v1::PoolBound { pool, bound: Some(bound) })
    }

    fn requirements(&mut self, require: &Requirements) -> v1::Requirements {
        let bound = |this: &mut Self, worker: &WorkerRequirement| {
            this.bound(worker.signal, worker.over, worker.aggregate, [worker.max, worker.below, worker.at_least])
        };
        let pools = |names: &Vec<String>| v1::IdList { ids: names.iter().filter_map(|name| self.pool(name)).collect() };
        v1::Requirements {
            pools: require.pools.as_ref().map(pools),
            workers: require.workers.iter().map(|worker| bound(self, worker)).collect(),
            locality: require.locality.map(|locality| match locality {
                Locality::Local => v1::Locality::Local.into(),
                Locality::External => v1::Locality::External.into(),
            }),
            // One that does not exist allows nothing; without the list, all would be allowed.
            providers: require.providers.as_ref().map(|names| v1::NameList { names: names.clone() }),
        }
    }

    fn bound(
        &mut self,
        signal: Signal,
        over: Option<Period>,
        aggregate: Aggregate,
        [max, below, at_least]: [Option<Decimal>; 3],
    ) -> v1::Bound {
        use v1::bound::Bound;
        let limit = max.map(|limit| Bound::Max(limit.get()));
        let limit = limit.or(below.map(|limit| Bound::Below(limit.get())));
        let limit = limit.or(at_least.map(|limit| Bound::AtLeast(limit.get())));
        v1::Bound { signal: self.signal(signal, over, aggregate), bound: limit }
    }

    /// The place of a signal among those that are looked at.
    fn signal(&mut self, signal: Signal, over: Option<Period>, aggregate: Aggregate) -> u32 {
        let over_ms = over.map_or(0, Period::as_millis);
        // Without a window there is one value, whatever is made of it.
        let aggregate = if over_ms == 0 { Aggregate::Last } else { aggregate };
        let wanted = v1::WindowedSignal {
            signal: match signal {
                Signal::QueuedRequests => v1::Signal::QueuedRequests.into(),
                Signal::RunningRequests => v1::Signal::RunningRequests.into(),
                Signal::KvCacheUsage => v1::Signal::KvCacheUsage.into(),
                Signal::PredictedTtft => v1::Signal::PredictedTtft.into(),
            },
            over_ms,
            aggregate: match aggregate {
                Aggregate::Last => v1::Aggregate::Last.into(),
                Aggregate::Average => v1::Aggregate::Average.into(),
                Aggregate::Max => v1::Aggregate::Max.into(),
                Aggregate::Min => v1::Aggregate::Min.into(),
            },
        };
        let place = self.signals.iter().position(|signal| *signal == wanted).unwrap_or_else(|| {
            self.signals.push(wanted);
            self.signals.len() - 1
        });
        place as u32
    }

    /// A tier with those of its providers that the backend has. One that it lists and that does not exist it has not:
    /// filters would refuse a tier with it, and all other rules as well.
    fn tier(&self, tier: &FallbackTier) -> v1::Tier {
        let has = |name: &&String| self.providers.iter().any(|provider| provider.wire.name == **name);
        v1::Tier { providers: tier.providers.iter().filter(has).cloned().collect(), models: tier.models.clone() }
    }
}

fn objective_of(objective: Objective) -> v1::Objective {
    match objective {
        Objective::PredictedTtft => v1::Objective::MinimizeTtft,
        Objective::Cost => v1::Objective::MinimizeCost,
        Objective::QueuedRequests => v1::Objective::MinimizeQueue,
    }
}

fn on_empty(on_empty: &OnEmpty) -> v1::OnEmpty {
    match on_empty.action {
        OnEmptyAction::Continue => v1::OnEmpty { action: v1::OnEmptyAction::Continue.into(), answer: None },
        OnEmptyAction::Reject => {
            let status = on_empty.status.map_or(ON_EMPTY_STATUS, u32::from);
            let answer = answer(status, on_empty.retry_after, on_empty.message.as_deref());
            v1::OnEmpty { action: v1::OnEmptyAction::Reject.into(), answer: Some(answer) }
        }
    }
}

fn reject(reject: &Reject) -> v1::Answer {
    answer(reject.status.into(), reject.retry_after, reject.message.as_deref())
}

/// `retry-after` is in whole seconds; to come back too early helps nobody, so it is rounded up.
fn answer(status: u32, retry_after: Option<Period>, message: Option<&str>) -> v1::Answer {
    let retry_after_s = retry_after.map_or(0, |period| period.as_millis().div_ceil(1000));
    v1::Answer { status, retry_after_s, message: message.unwrap_or_default().to_string() }
}

/// Who sends requests, as far as headers of a trusted front say.
pub(super) fn tenancy(backend: &GatewayBackendSpec) -> v1::Tenancy {
    let tenancy = backend.tenancy.as_ref();
    let header = tenancy.and_then(|tenancy| tenancy.identify.iter().find_map(|identity| identity.header.as_ref()));
    let tenants = tenancy.into_iter().flat_map(|tenancy| &tenancy.tenants);
    v1::Tenancy {
        tenant_header: header.map(|header| header.name.clone()).unwrap_or_default(),
        tags_header: backend.tags.as_ref().and_then(|tags| tags.header.clone()).unwrap_or_default(),
        deny_unidentified: tenancy.is_some_and(|tenancy| tenancy.unidentified == Unidentified::Deny),
        tenants: tenants
            .map(|tenant| v1::Tenant { name: tenant.name.clone(), models: tenant.models.clone() })
            .collect(),
    }
}
