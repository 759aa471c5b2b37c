//! `GatewayBackend`.

use kinference_api::ObjectKey;
use kinference_api::kinds::{FilterCounts, GatewayBackendStatus, PrefixIndexStatus};
use serde_json::{Map, Value};

use super::figures;
use super::finding::{Finding, Said, finding, in_spite_of, kept_out, no, unknown, yes};
use super::reasons::{self, types};
use super::round::two_digits;
use super::worker_set::{ready_of, to_u32};
use crate::state::{BackendStatus, FilterStatus, IndexStatus, Outcome, Status};

pub(super) fn assess(status: &Status, key: &ObjectKey, outcome: &Outcome) -> (Vec<Finding>, Map<String, Value>) {
    let name = key.to_string();
    let backend = status.backends.get(&name);
    let filters: Vec<&FilterStatus> = status.filters.iter().filter(|filter| filter.backend == name).collect();
    let not_told = || unknown(reasons::NOT_USED, "no version of it is in force");
    let conditions = vec![
        finding(types::READY, kept_out(outcome).unwrap_or_else(|| in_spite_of(outcome, ready(status, backend)))),
        finding(
            types::PREFIX_INDEX_WITHIN_BUDGET,
            backend.map_or_else(not_told, |backend| within_budget(&backend.prefix_index)),
        ),
        finding(types::FILTERS_CURRENT, backend.map_or_else(not_told, |backend| current(backend, &filters))),
    ];
    let largest = filters.iter().map(|filter| filter.index_bytes).max().unwrap_or_default();
    let counted = GatewayBackendStatus {
        filters: backend.map(counts).unwrap_or_default(),
        prefix_index: backend.map(|backend| index(backend, largest)).unwrap_or_default(),
        ..Default::default()
    };
    (conditions, figures(counted))
}

fn counts(backend: &BackendStatus) -> FilterCounts {
    FilterCounts { connected: to_u32(backend.filters_connected), current: to_u32(backend.filters_current) }
}

fn index(backend: &BackendStatus, largest: u64) -> PrefixIndexStatus {
    // Filters say what they hold when they take a snapshot; before that the index as it would be there.
    let bytes = if largest > 0 { largest } else { backend.prefix_index.bytes };
    PrefixIndexStatus { bytes: two_digits(bytes), chunk_bytes: backend.prefix_index.chunk_bytes }
}

fn ready(status: &Status, backend: Option<&BackendStatus>) -> Said {
    let Some(backend) = backend else { return no(reasons::NOT_USED, "it is not in force yet") };
    let sets = backend.worker_sets.iter().filter_map(|set| status.worker_sets.get(set));
    let states: Vec<&str> = sets.flat_map(|set| set.workers.values()).map(|worker| worker.state).collect();
    let ready = states.iter().filter(|state| **state == "ready").count();
    let nobody = "its pools have no worker; the conditions of its worker sets say why";
    ready_of(states.len() as u64, ready as u64, nobody, || "; the conditions of its worker sets say why".into())
}

fn within_budget(index: &IndexStatus) -> Said {
    if index.chunk_bytes > index.wanted_chunk_bytes {
        let (wanted, now, budget) = (index.wanted_chunk_bytes, index.chunk_bytes, index.max_bytes);
        let message = format!(
            "at chunks of {wanted} bytes the index would take more than {budget} bytes in each filter, so chunks of \
             {now} bytes are used; raise spec.prefixIndex.maxBytes or spec.prefixIndex.chunkBytes"
        );
        return no(reasons::GRID_COARSENED, message);
    }
    yes(reasons::WITHIN_BUDGET, format!("chunks of {} bytes, as asked for", index.chunk_bytes))
}

fn current(backend: &BackendStatus, filters: &[&FilterStatus]) -> Said {
    let (connected, current) = (backend.filters_connected, backend.filters_current);
    if connected == 0 {
        let message = "no filter is connected; check the filter's address of the control service and gateway backend";
        return unknown(reasons::NO_FILTER_CONNECTED, message);
    }
    if connected == current {
        return yes(reasons::CURRENT, format!("connected filters: {connected}, all hold the newest snapshot"));
    }
    let behind = connected - current;
    let refused = filters.iter().filter(|filter| filter.epoch != backend.epoch);
    match refused.filter_map(|filter| filter.last_rejection.as_ref()).next() {
        Some(why) => no(
            reasons::SNAPSHOT_REFUSED,
            format!(
                "{behind} of {connected} connected filters refused the newest snapshot and route on the one before: {why}"
            ),
        ),
        None => no(
            reasons::CATCHING_UP,
            format!("{behind} of {connected} connected filters do not hold the newest snapshot yet"),
        ),
    }
}
