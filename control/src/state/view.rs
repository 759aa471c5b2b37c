//! What filters are told of workers and pools: states, load, and the signals that rules look at.

use std::collections::{BTreeMap, BTreeSet};

use kinference_api::ObjectKey;
use kinference_protocol::v1::{self, Signal, WindowedSignal, WorkerState};
use kinference_routing::signals::of_pool;

use super::set::Set;
use super::traffic::Traffic;
use super::worker::Worker;

/// The workers of a gateway backend, and the states of its pools.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) workers: Vec<v1::Worker>,
    pub(super) pools: Vec<v1::PoolState>,
}

/// Reads what is to be told from the fleet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Viewer<'f> {
    pub(super) sets: &'f BTreeMap<ObjectKey, Set>,
    pub(super) workers: &'f BTreeMap<u32, Worker>,
    pub(super) traffic: &'f Traffic,
    /// Proxies whose filters report.
    pub(super) proxies: u32,
    pub(super) now: u64,
}

impl Viewer<'_> {
    /// What filters of this configuration are to know. A worker or pool has a value for each of its signals.
    pub(super) fn view(&self, config: &v1::Config) -> View {
        let signals = &config.signals;
        let ids: BTreeSet<u32> = config.worker_sets.iter().map(|set| set.id).collect();
        let members = self.workers.values().filter(|worker| ids.contains(&worker.set_id));
        let mut workers: Vec<v1::Worker> = members
            .map(|worker| v1::Worker { signals: self.signals(worker, signals), ..self.worker(worker) })
            .collect();
        // Without signals there is nothing to say of a pool.
        let pools = config.pools.iter().filter(|_| !signals.is_empty());
        let mut pools: Vec<v1::PoolState> = pools
            .map(|pool| {
                let ready = workers.iter().filter(|worker| worker.state() == WorkerState::Ready);
                let ready = ready.filter(|worker| pool.worker_sets.contains(&worker.worker_set));
                let values = of_pool(ready.map(|worker| worker.signals.as_slice()), signals.len());
                v1::PoolState { id: pool.id, signals: values }
            })
            .collect();
        // Pools are made of what was measured, so rounding comes last.
        workers.iter_mut().for_each(|worker| round(&mut worker.signals, signals));
        pools.iter_mut().for_each(|pool| round(&mut pool.signals, signals));
        View { workers, pools }
    }

    /// A worker without its signals.
    pub(super) fn worker(&self, worker: &Worker) -> v1::Worker {
        let model = self.sets.get(&worker.wanted.name.set).map(|set| set.learner.model()).unwrap_or_default();
        let totals = self.traffic.totals(worker.serial);
        worker.wire(totals, self.proxies, model, self.interval(worker), self.now)
    }

    /// The present values of signals over the ready workers of some sets, rounded.
    pub(super) fn pool(&self, sets: &[ObjectKey], signals: &[WindowedSignal]) -> Vec<f32> {
        let ready = self.members(sets).filter(|worker| worker.health.state(self.now) == WorkerState::Ready);
        let values: Vec<Vec<f32>> = ready.map(|worker| self.signals(worker, signals)).collect();
        let mut values = of_pool(values.iter().map(Vec::as_slice), signals.len());
        round(&mut values, signals);
        values
    }

    /// The workers of some sets.
    pub(super) fn members(&self, sets: &[ObjectKey]) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|worker| sets.contains(&worker.wanted.name.set))
    }

    fn signals(&self, worker: &Worker, signals: &[WindowedSignal]) -> Vec<f32> {
        worker.signals(signals, self.interval(worker), self.now)
    }

    fn interval(&self, worker: &Worker) -> u64 {
        self.sets.get(&worker.wanted.name.set).map_or(0, |set| set.spec.metrics_interval.as_millis() as u64)
    }
}

/// To hundredths of a request and thousandths of a cache: smaller changes are not worth telling.
fn round(values: &mut [f32], signals: &[WindowedSignal]) {
    for (value, signal) in values.iter_mut().zip(signals) {
        let parts = match signal.signal() {
            Signal::KvCacheUsage => 1000.0,
            Signal::QueuedRequests | Signal::RunningRequests | Signal::PredictedTtft => 100.0,
        };
        // A missing value stays NaN.
        *value = ((f64::from(*value) * parts).round() / parts) as f32;
    }
}

/// True when two lists of signals say the same; what is missing in both is the same.
pub(super) fn same_signals(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
}

/// True when filters need not be told of a worker again.
pub(super) fn same_worker(a: &v1::Worker, b: &v1::Worker) -> bool {
    // Whole, so that a field that is added cannot be left out.
    let v1::Worker { id, worker_set, name, address, state, data_parallel_rank, load, latency, signals } = a;
    *id == b.id
        && *worker_set == b.worker_set
        && *name == b.name
        && *address == b.address
        && *state == b.state
        && *data_parallel_rank == b.data_parallel_rank
        && *load == b.load
        && *latency == b.latency
        && same_signals(signals, &b.signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_bounds_as_people_write_them_and_what_is_missing() {
        let signals = [Signal::KvCacheUsage, Signal::QueuedRequests, Signal::RunningRequests]
            .map(|signal| WindowedSignal { signal: signal.into(), ..Default::default() });
        let mut values = [0.700_04, 1.996_4, f32::NAN];
        round(&mut values, &signals);
        assert_eq!(values[..2], [0.7, 2.0]);
        assert!(values[2].is_nan());
        assert!(same_signals(&values, &values));
        assert!(!same_signals(&values, &[0.7, 2.0, 0.0]));
        assert!(!same_signals(&values, &values[..2]));
    }
}
