//! Taking a new configuration: what stays keeps its ids and all that was learned, the rest comes and goes.

use std::collections::{BTreeMap, BTreeSet};

use kinference_api::ObjectKey;
use kinference_api::compile::{FleetSpec, WorkerSetAssets, WorkerSetSpec};
use kinference_routing::signals;

use super::backend::{Backend, OTHER_TENANT, by_events};
use super::set::Set;
use super::worker::{Wanted, Worker, WorkerName, wanted};
use super::{Faults, Fleet, Plan};

impl Fleet {
    pub(super) fn configure(&mut self, result: Result<Plan, Faults>, now: u64) {
        let workers_only = result.as_ref().is_ok_and(|plan| plan.workers_only && self.config.in_force);
        let whole = result.is_err();
        let faults = match result {
            Ok(mut plan) => {
                let faults = std::mem::take(&mut plan.faults);
                self.take_configuration(plan, now);
                faults
            }
            Err(faults) => faults.beside(&self.config.faults.outcomes),
        };
        if !workers_only {
            self.metrics.config_read(faults.problems.len());
        }
        // Pods come and go while a problem stays; once is enough to tell it.
        if !faults.problems.is_empty() && faults.problems != self.config.faults.problems {
            let kept = match self.config.in_force {
                false => "waiting for it to be mended",
                true if whole => "nothing of it takes force, and the last good one stays",
                true => "the last good one stays in force where it has problems",
            };
            tracing::error!("the configuration is not valid; {kept}:\n{}", faults.problems.join("\n"));
        }
        self.config.faults = faults;
        self.config.read = true;
        self.rewired = true;
        self.urgent = true;
        self.config_dirty = true;
    }

    fn take_configuration(&mut self, mut plan: Plan, now: u64) {
        let workers_only = plan.workers_only && self.config.in_force;
        self.config.policies = std::mem::take(&mut plan.policies);
        let warnings = std::mem::take(&mut plan.warnings);
        if warnings != self.config.warnings {
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        self.config.warnings = warnings;
        self.take_plan(plan, now);
        self.config.in_force = true;
        let (backends, workers, policies) = (self.backends.len(), self.workers.len(), self.config.policies.len());
        if workers_only {
            tracing::debug!(backends, workers, policies, "workers changed");
        } else {
            self.config.loads += 1;
            tracing::info!(backends, workers, policies, "configuration in force");
        }
    }

    fn take_plan(&mut self, plan: Plan, now: u64) {
        let specs: BTreeMap<ObjectKey, WorkerSetSpec> = plan
            .fleets
            .iter()
            .flat_map(|fleet| &fleet.worker_sets)
            .map(|spec| (spec.key.clone(), spec.clone()))
            .collect();
        let reread = self.take_sets(&specs, &plan);
        let wanted = specs.values().flat_map(wanted).map(|wanted| (wanted.name.clone(), wanted)).collect();
        self.remove_workers(&wanted);
        self.keep_ms = plan.fleets.iter().map(|fleet| signals::longest(&fleet.signals)).max().unwrap_or_default();
        let mut fleets = plan.fleets;
        self.take_providers(&mut fleets, &plan.credentials);
        self.take_backends(fleets.into_iter().map(|fleet| (fleet.backend.clone(), fleet)).collect());
        self.add_workers(wanted);
        self.fill_indexes(&reread);
        for worker in self.workers.values_mut() {
            super::fleet::settle(worker, now);
        }
    }

    /// Returns the ids of sets whose tokenizer, template or model changed.
    fn take_sets(&mut self, specs: &BTreeMap<ObjectKey, WorkerSetSpec>, plan: &Plan) -> BTreeSet<u32> {
        let metrics = &self.metrics;
        self.sets.retain(|key, _| {
            let kept = specs.contains_key(key);
            if !kept {
                metrics.forget_set(key);
            }
            kept
        });
        let mut changed = BTreeSet::new();
        for (key, spec) in specs {
            let no_model = || Err("the tokenizer was not read".to_owned());
            let model = plan.models.get(key).cloned().unwrap_or_else(no_model);
            match self.sets.get_mut(key) {
                Some(set) => {
                    if set.update(spec.clone(), model) {
                        changed.insert(set.id);
                        let members = self.workers.values_mut().filter(|worker| worker.wanted.name.set == *key);
                        members.for_each(|worker| worker.checked.reset());
                    }
                }
                None => {
                    let id = self.places.set(key);
                    let set = Set::new(id, WorkerSetSpec { id, ..spec.clone() }, model);
                    for remark in set.remarks() {
                        tracing::warn!(worker_set = %key, "{remark}");
                    }
                    self.sets.insert(key.clone(), set);
                }
            }
        }
        changed
    }

    /// Removes workers that are no longer listed, and those whose address or events changed: they are others.
    fn remove_workers(&mut self, wanted: &BTreeMap<WorkerName, Wanted>) {
        let gone = self.workers.values().filter(|worker| wanted.get(&worker.wanted.name) != Some(&worker.wanted));
        let mut sets = BTreeSet::new();
        for id in gone.map(|worker| worker.id).collect::<Vec<_>>() {
            if let Some(worker) = self.workers.remove(&id) {
                sets.insert(worker.wanted.name.set.clone());
                self.ids.remove(&worker.wanted.name);
                self.subscribed.remove(&worker.subscription);
                self.metrics.forget_worker(&worker.wanted.name);
            }
            self.places.release(id);
            for backend in self.backends.values_mut() {
                backend.store.remove_worker(id);
                backend.store.remove_worker(by_events(id));
            }
        }
        // Who disagreed about the prompt's text may be gone.
        sets.iter().for_each(|set| self.judge(set));
    }

    fn take_backends(&mut self, mut fleets: BTreeMap<ObjectKey, FleetSpec>) {
        for fleet in fleets.values_mut() {
            for spec in &mut fleet.worker_sets {
                spec.id = self.places.set(&spec.key);
            }
        }
        let metrics = self.metrics.clone();
        self.backends.retain(|key, backend| {
            let kept = fleets.contains_key(key);
            if !kept {
                metrics.forget_backend(key);
                let tenants = backend.fleet.tenancy.tenants.iter().map(|tenant| tenant.name.as_str());
                tenants.chain([OTHER_TENANT]).for_each(|tenant| metrics.forget_tenant(key, tenant));
            }
            kept
        });
        for (key, fleet) in fleets {
            match self.backends.get_mut(&key) {
                Some(backend) => {
                    for tenant in &backend.fleet.tenancy.tenants {
                        if !fleet.tenancy.tenants.iter().any(|kept| kept.name == tenant.name) {
                            metrics.forget_tenant(&key, &tenant.name);
                        }
                    }
                    let renew = backend.needs_other_index(&fleet);
                    let sets = |fleet: &FleetSpec| fleet.worker_sets.iter().map(|set| set.id).collect::<BTreeSet<_>>();
                    for id in sets(&backend.fleet).difference(&sets(&fleet)) {
                        backend.store.remove_domain(*id);
                        backend.store.remove_domain(by_events(*id));
                    }
                    backend.fleet = fleet;
                    if renew {
                        backend.renew_index();
                    }
                }
                None => {
                    let epoch = self.fresh_epoch();
                    self.backends.insert(key, Backend::new(fleet, epoch));
                }
            }
        }
    }

    fn add_workers(&mut self, wanted: BTreeMap<WorkerName, Wanted>) {
        for (name, wanted) in wanted {
            if self.ids.contains_key(&name) {
                continue;
            }
            let set_id = self.places.set(&name.set);
            let id = self.places.take(set_id);
            self.ids.insert(name, id);
            self.workers.insert(id, Worker::new(id, set_id, self.next_serial, wanted));
            self.next_serial += 1;
        }
    }

    /// Brings every backend's index up to its sets and workers. A worker that is new to an index, or whose tokens mean
    /// something else now, has its events followed anew from the beginning.
    fn fill_indexes(&mut self, reread: &BTreeSet<u32>) {
        let mut anew: BTreeSet<u32> = self.workers.values().filter(|w| w.subscription == 0).map(|w| w.id).collect();
        for backend in self.backends.values_mut() {
            for spec in &backend.fleet.worker_sets {
                let Some(set) = self.sets.get(&spec.key) else { continue };
                let domain = spec.key.to_string();
                let ttl = WorkerSetAssets::default().routed_ttl.as_millis() as u64;
                backend.store.add_domain(set.id, &domain, None, ttl);
                backend.store.add_domain(by_events(set.id), &domain, set.tokens(), ttl);
                for worker in self.workers.values().filter(|worker| worker.set_id == set.id) {
                    // Both fail only for a worker that is there already.
                    let _ = backend.store.add_worker(worker.id, set.id);
                    let new = backend.store.add_worker(by_events(worker.id), by_events(set.id)).is_ok();
                    if new || reread.contains(&set.id) {
                        anew.insert(worker.id);
                    }
                }
            }
        }
        for id in anew {
            self.follow_anew(id);
        }
    }

    /// Forgets what a worker's events said, and has them followed from the beginning.
    pub(super) fn follow_anew(&mut self, id: u32) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        for backend in self.backends.values_mut() {
            // Fails only where the backend does not have the worker.
            let _ = backend.store.clear(by_events(id));
        }
        self.subscribed.remove(&worker.subscription);
        worker.subscription = self.next_subscription;
        self.next_subscription += 1;
        self.subscribed.insert(worker.subscription, id);
        self.rewired = true;
    }
}
