//! `InferencePool`.

use kinference_api::ObjectKey;
use kinference_api::kinds::{InferencePoolStatus, WorkerCounts};
use serde_json::{Map, Value};

use super::figures;
use super::finding::{Finding, Said, finding, in_spite_of, kept_out, no};
use super::reasons::{self, types};
use super::round::decimal;
use super::worker_set::{ready_of, to_u32};
use crate::state::{Outcome, PoolStatus, Status};

pub(super) fn assess(status: &Status, key: &ObjectKey, outcome: &Outcome) -> (Vec<Finding>, Map<String, Value>) {
    let name = key.to_string();
    // Whatever gateway backends share it, it is the same.
    let pool = status.backends.values().find_map(|backend| backend.pools.get(&name));
    let conditions =
        vec![finding(types::READY, kept_out(outcome).unwrap_or_else(|| in_spite_of(outcome, ready(pool))))];
    let counted = InferencePoolStatus {
        workers: pool.map(counts).unwrap_or_default(),
        queued_requests: pool.and_then(|pool| decimal(pool.queued_requests?, 1)),
        kv_cache_usage: pool.and_then(|pool| decimal(pool.kv_cache_usage?, 2)),
        ..Default::default()
    };
    (conditions, figures(counted))
}

fn counts(pool: &PoolStatus) -> WorkerCounts {
    WorkerCounts { total: to_u32(pool.workers.total), ready: to_u32(pool.workers.ready) }
}

fn ready(pool: Option<&PoolStatus>) -> Said {
    let Some(pool) = pool else {
        return no(reasons::NOT_USED, "no GatewayBackend lists this pool; add it to spec.pools of one");
    };
    let nobody = "its worker sets have no worker; their own conditions say why";
    ready_of(pool.workers.total as u64, pool.workers.ready as u64, nobody, || {
        format!(": see {}", pool.worker_sets.join(", "))
    })
}
