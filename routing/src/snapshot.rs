//! What the control service said: configuration, workers, prefixes; and how its messages are applied.

mod config;
mod replica;

use std::collections::{BTreeMap, BTreeSet};

use kinference_protocol::v1;

use crate::policy::glob;
use crate::prefix::PrefixIndex;
use crate::ttft::LatencyModel;

pub use config::{Config, Target, WorkerSet};
pub use replica::{ApplyError, Changes, Outcome, Replica};

/// One consistent state.
#[derive(Debug)]
pub struct Snapshot {
    /// Identifies the control service's run and grid.
    pub epoch: u64,
    /// Counts the changes within the epoch.
    pub sequence: u64,
    /// What is configured.
    pub config: Config,
    /// Workers by id.
    pub workers: BTreeMap<u32, Worker>,
    /// Who holds which prefixes.
    pub index: PrefixIndex,
    /// Values of the configured signals by pool, in their order; NaN for missing ones.
    pub pools: BTreeMap<u32, Vec<f32>>,
}

impl Snapshot {
    /// Somebody serves the model: a worker set or a provider.
    #[must_use]
    pub fn knows(&self, model: &str) -> bool {
        let offers = |provider: &v1::Provider| provider.models.iter().any(|offer| offer.name == model);
        self.config.models.contains_key(model) || self.config.rules.providers.iter().any(offers)
    }

    /// The name that people know a worker by: "namespace/set/worker".
    #[must_use]
    pub fn worker_name(&self, worker: &Worker) -> String {
        let set = self.config.sets.get(&worker.set).map_or("", |set| set.wire.name.as_str());
        format!("{set}/{}", worker.name)
    }

    /// Models and aliases that a tenant may ask for, in order. An alias is a name, in the condition of a rule that states
    /// candidates, that no worker serves itself; a tenant may ask for it that may use it, or a model that it stands for. A
    /// model that only providers offer counts where a rule falls back to them.
    #[must_use]
    pub fn models_of(&self, tenant: &str) -> Vec<&str> {
        let rules = &self.config.rules;
        let for_tenant = |rule: &&v1::Rule| {
            rule.when.as_ref().is_none_or(|when| when.tenants.is_empty() || glob::any(&when.tenants, tenant))
        };
        let allowed = |name: &&String| rules.tenant(tenant).is_none_or(|settings| glob::any(&settings.models, name));
        let aliases = rules.list.iter().filter(for_tenant).flat_map(|rule| {
            let reachable = rule.candidates.iter().any(|model| allowed(&model));
            let names = rule.when.iter().flat_map(|when| &when.models).filter(|name| !name.contains('*'));
            names.filter(move |name| !rule.candidates.is_empty() && (reachable || allowed(name)))
        });
        let outside = rules.list.iter().filter(for_tenant).flat_map(|rule| self.offered_by_fallbacks(rule));
        let names = self.config.models.keys().chain(outside).filter(allowed).chain(aliases).map(String::as_str);
        names.collect::<BTreeSet<&str>>().into_iter().collect()
    }

    /// Models that the providers of a rule's tiers offer, and that the rule is for.
    fn offered_by_fallbacks<'s>(&'s self, rule: &'s v1::Rule) -> impl Iterator<Item = &'s String> {
        let is_for = |model: &&String| {
            rule.when.as_ref().is_none_or(|when| when.models.is_empty() || glob::any(&when.models, model))
        };
        let named = |name: &'s String| self.config.rules.providers.iter().find(move |provider| provider.name == *name);
        let providers = rule.fallback.iter().flat_map(|tier| &tier.providers).filter_map(named);
        providers.flat_map(|provider| &provider.models).map(|offer| &offer.name).filter(is_for)
    }

    /// Value of a signal of a pool; `None` when it is missing.
    #[must_use]
    pub fn pool_signal(&self, pool: u32, signal: u32) -> Option<f64> {
        let value = *self.pools.get(&pool)?.get(signal as usize)?;
        (!value.is_nan()).then(|| f64::from(value))
    }
}

/// One worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Id, and place in the prefix index.
    pub id: u32,
    /// Id of its worker set.
    pub set: u32,
    /// Name within its set.
    pub name: String,
    /// `ip:port`, as the proxy knows its host.
    pub address: String,
    /// What is known of its health.
    pub state: v1::WorkerState,
    /// Rank to ask for.
    pub rank: Option<u32>,
    /// What it has to do; `None` when that is not known.
    pub load: Option<v1::Load>,
    /// How its time to first token is predicted.
    pub latency: LatencyModel,
    /// Values of the configured signals, in their order; NaN for missing ones.
    pub signals: Vec<f32>,
}

impl From<&v1::Worker> for Worker {
    fn from(wire: &v1::Worker) -> Self {
        Self {
            id: wire.id,
            set: wire.worker_set,
            name: wire.name.clone(),
            address: wire.address.clone(),
            state: wire.state(),
            rank: wire.data_parallel_rank,
            load: wire.load.filter(|load| load.known),
            latency: wire.latency.as_ref().map(LatencyModel::from).unwrap_or_default(),
            signals: wire.signals.clone(),
        }
    }
}
