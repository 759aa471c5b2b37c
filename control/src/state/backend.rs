//! One gateway backend: its prefix index, what its filters were told last, and what they must be told next.
//!
//! The index holds each worker twice: under its own id what was learned from routing, and under a hidden one what its
//! events say. Which of the two filters see depends on the set's mode, so that events are followed while it is not yet
//! known whether they may be used, and nothing that was learned from one is ever mixed with the other.

use std::collections::BTreeMap;

use bytes::Bytes;
use kinference_api::ObjectKey;
use kinference_api::compile::FleetSpec;
use kinference_protocol::v1::{self, PrefixMode};
use kinference_routing::prefix::{PAGE_WORKERS, place};

use super::view::{View, same_signals, same_worker};
use super::wire::{self, Full};
use crate::index::{Change, PrefixStore};

/// Ids of workers and sets in the index, as their events say.
const HIDDEN: u32 = 1 << 30;
/// All tenants that the configuration does not name.
pub(super) const OTHER_TENANT: &str = "other";
const HIDDEN_PAGE: u32 = HIDDEN / PAGE_WORKERS;

/// The id under which the index holds what the events of a worker or set say.
pub(super) fn by_events(id: u32) -> u32 {
    id | HIDDEN
}

/// What the edges are to send.
#[derive(Debug, Clone, PartialEq)]
pub enum Push {
    /// A new epoch began: everything before is void, and every filter needs a full snapshot.
    Epoch {
        /// The gateway backend.
        backend: ObjectKey,
        /// The epoch.
        epoch: u64,
        /// Its first sequence.
        sequence: u64,
    },
    /// The delta that leads to the next sequence.
    Delta {
        /// The gateway backend.
        backend: ObjectKey,
        /// The encoded message.
        message: Bytes,
        /// True when it carries a configuration.
        config: bool,
    },
}

/// What filters were told last.
#[derive(Debug, Clone, Default)]
struct Told {
    config: v1::Config,
    workers: BTreeMap<u32, v1::Worker>,
    /// Signals of pools, by the pool's id.
    pools: BTreeMap<u32, Vec<f32>>,
    /// Pages of which filters see the events.
    event_pages: BTreeMap<u32, bool>,
}

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) fleet: FleetSpec,
    pub(super) store: PrefixStore,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    told: Option<Told>,
}

impl Backend {
    /// `epoch` is the one before its first.
    pub(super) fn new(fleet: FleetSpec, epoch: u64) -> Self {
        let store = PrefixStore::new(fleet.settings.chunk_bytes, store_budget(&fleet));
        Self { fleet, store, epoch, sequence: 0, told: None }
    }

    /// True when an index of this specification is another one.
    pub(super) fn needs_other_index(&self, fleet: &FleetSpec) -> bool {
        fleet.settings.chunk_bytes != self.fleet.settings.chunk_bytes
            || store_budget(fleet) != store_budget(&self.fleet)
    }

    /// Starts over with an empty index; filters keep what they have until the next epoch.
    pub(super) fn renew_index(&mut self) {
        self.store = PrefixStore::new(self.fleet.settings.chunk_bytes, store_budget(&self.fleet));
        self.told = None;
    }

    /// What filters must be told now. `config` is absent when it cannot have changed. `view` says what is
    /// to be known of workers and pools, and is called when it is time (`due`) to tell it, or when a new epoch or other
    /// signals need it.
    pub(super) fn advance(
        &mut self,
        config: Option<v1::Config>,
        due: bool,
        view: impl FnOnce(&v1::Config) -> View,
    ) -> Vec<Push> {
        let change = self.store.take_delta();
        let mut config = match (config, &self.told) {
            (None, Some(told)) if change == Change::Full => Some(told.config.clone()),
            (None, None) => return Vec::new(),
            (config, _) => config,
        };
        if let Some(backend) = config.as_mut().and_then(|config| config.backend.as_mut()) {
            backend.chunk_bytes = self.store.chunk_bytes();
        }
        let told = match (&mut self.told, config.take()) {
            (Some(told), Some(now)) if change == Change::Full || !same_meaning(&told.config, &now) => {
                let view = view(&now);
                return vec![self.start_epoch(now, view)];
            }
            (None, Some(now)) => {
                let view = view(&now);
                return vec![self.start_epoch(now, view)];
            }
            (Some(told), now) => {
                config = now.filter(|now| *now != told.config);
                told
            }
            (None, None) => return Vec::new(),
        };
        let mut other_signals = false;
        if let Some(now) = &config {
            other_signals = now.signals != told.config.signals || now.pools != told.config.pools;
            told.config.clone_from(now);
        }
        let workers = if due || other_signals { worker_changes(told, view(&told.config)) } else { None };
        let prefix = match change {
            Change::Delta(prefix) => visible(prefix, &told.event_pages),
            Change::Nothing | Change::Full => None,
        };
        if config.is_none() && workers.is_none() && prefix.is_none() {
            return Vec::new();
        }
        let sections = wire::split(config, workers, prefix);
        if other_signals && sections.len() > 1 {
            // Between two deltas a filter would take one signal for another.
            return vec![self.next_epoch()];
        }
        let pushes = sections.into_iter().map(|sections| {
            self.sequence += 1;
            let config = sections.config.is_some();
            let message = wire::delta(self.epoch, self.sequence, sections);
            Push::Delta { backend: self.fleet.backend.clone(), message, config }
        });
        pushes.collect()
    }

    fn start_epoch(&mut self, config: v1::Config, view: View) -> Push {
        let modes: BTreeMap<u32, bool> =
            config.worker_sets.iter().map(|set| (set.id, set.prefix_mode() == PrefixMode::Events)).collect();
        let mut told = Told { config, ..Told::default() };
        for worker in view.workers {
            let events = modes.get(&worker.worker_set).copied().unwrap_or_default();
            told.event_pages.insert(place(worker.id).0, events);
            told.workers.insert(worker.id, worker);
        }
        told.pools = view.pools.into_iter().map(|pool| (pool.id, pool.signals)).collect();
        self.told = Some(told);
        self.next_epoch()
    }

    /// Every filter is to get a full snapshot of what is told.
    fn next_epoch(&mut self) -> Push {
        self.epoch += 1;
        self.sequence = 1;
        Push::Epoch { backend: self.fleet.backend.clone(), epoch: self.epoch, sequence: self.sequence }
    }

    /// The rules that filters were told, in their order.
    pub(super) fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.told.iter().flat_map(|told| &told.config.rules).map(|rule| rule.name.as_str())
    }

    /// The tenant as metrics name it: only those of the configuration have names of their own.
    pub(super) fn tenant<'n>(&self, name: &'n str) -> &'n str {
        let known = self.fleet.tenancy.tenants.iter().any(|tenant| tenant.name == name);
        if known { name } else { OTHER_TENANT }
    }

    /// The full snapshot of what filters were told; absent before the first epoch.
    pub(super) fn full(&self) -> Option<Full> {
        self.full_with(v1::Config::clone)
    }

    /// The same for people: without credentials.
    pub(super) fn full_to_show(&self) -> Option<Full> {
        self.full_with(v1::Config::without_credentials)
    }

    fn full_with(&self, config: impl FnOnce(&v1::Config) -> v1::Config) -> Option<Full> {
        let told = self.told.as_ref()?;
        let pools = told.pools.iter().map(|(id, signals)| v1::PoolState { id: *id, signals: signals.clone() });
        let workers = v1::Workers {
            upsert: told.workers.values().cloned().collect(),
            pools: pools.collect(),
            ..Default::default()
        };
        let prefix = self.store.full(wire::PART_BYTES - (64 << 10));
        let prefix = prefix.into_iter().filter_map(|part| visible(part, &told.event_pages));
        let sections = wire::split(Some(config(&told.config)), Some(workers), prefix);
        Some(wire::full(self.epoch, self.sequence, sections))
    }
}

/// Both holdings of a worker count, though filters see one; the other is seldom more than a few entries.
fn store_budget(fleet: &FleetSpec) -> u64 {
    // What filters add for a moment while they apply, and the slack of an estimate.
    fleet.settings.index_max_bytes / 10 * 9
}

/// True when chunks, namespaces and the origin of each set's prefixes mean the same in both. Sets that come or go do not
/// change what the others mean.
fn same_meaning(told: &v1::Config, now: &v1::Config) -> bool {
    let grid =
        |config: &v1::Config| config.backend.as_ref().map(|backend| (backend.chunk_bytes, backend.index_max_bytes));
    let sets: BTreeMap<u32, &v1::WorkerSet> = told.worker_sets.iter().map(|set| (set.id, set)).collect();
    grid(told) == grid(now)
        && now.worker_sets.iter().all(|set| {
            sets.get(&set.id)
                .is_none_or(|before| before.prefix_domain == set.prefix_domain && before.prefix_mode == set.prefix_mode)
        })
}

fn worker_changes(told: &mut Told, view: View) -> Option<v1::Workers> {
    let modes: BTreeMap<u32, bool> =
        told.config.worker_sets.iter().map(|set| (set.id, set.prefix_mode() == PrefixMode::Events)).collect();
    let mut gone = std::mem::take(&mut told.workers);
    let mut changes = v1::Workers::default();
    for worker in view.workers {
        if !gone.remove(&worker.id).is_some_and(|before| same_worker(&before, &worker)) {
            changes.upsert.push(worker.clone());
        }
        let events = modes.get(&worker.worker_set).copied().unwrap_or_default();
        told.event_pages.insert(place(worker.id).0, events);
        told.workers.insert(worker.id, worker);
    }
    changes.removed = gone.into_keys().collect();
    let before = std::mem::take(&mut told.pools);
    for pool in view.pools {
        if !before.get(&pool.id).is_some_and(|before| same_signals(before, &pool.signals)) {
            changes.pools.push(pool.clone());
        }
        told.pools.insert(pool.id, pool.signals);
    }
    (changes != v1::Workers::default()).then_some(changes)
}

/// The part of a prefix section that filters see, under the workers' own ids.
fn visible(mut prefix: v1::Prefix, event_pages: &BTreeMap<u32, bool>) -> Option<v1::Prefix> {
    let own = |page: &mut u32| {
        let hidden = *page >= HIDDEN_PAGE;
        if hidden {
            *page -= HIDDEN_PAGE;
        }
        event_pages.get(page) == Some(&hidden)
    };
    prefix.clears.retain_mut(|clear| own(&mut clear.page));
    prefix.pages.retain_mut(|page| own(&mut page.page));
    (prefix != v1::Prefix::default()).then_some(prefix)
}
