//! `InferenceWorkerSet`.

use kinference_api::ObjectKey;
use kinference_api::kinds::{InferenceWorkerSetStatus, WorkerCounts};
use serde_json::{Map, Value};

use super::figures;
use super::finding::{Finding, Said, finding, in_spite_of, kept_out, no, unknown, yes};
use super::reasons::{self, types};
use super::round::{decimal, two_digits};
use crate::state::{Outcome, SetStatus, Status, WorkerStatus};

/// Workers that a message names; more are counted.
const NAMED: usize = 5;

pub(super) fn assess(status: &Status, key: &ObjectKey, outcome: &Outcome) -> (Vec<Finding>, Map<String, Value>) {
    let set = status.worker_sets.get(&key.to_string());
    let no_use =
        || unknown(reasons::NOT_USED, "workers are followed once a GatewayBackend has a pool with this worker set");
    let conditions = vec![
        finding(types::READY, kept_out(outcome).unwrap_or_else(|| in_spite_of(outcome, ready(set)))),
        finding(types::TOKENIZER_LOADED, set.map_or_else(no_use, tokenizer)),
        finding(types::PROMPT_FIDELITY, set.map_or_else(no_use, fidelity)),
        finding(types::EVENTS_HEALTHY, set.map_or_else(no_use, events)),
    ];
    let counted = InferenceWorkerSetStatus {
        workers: set.map(counts).unwrap_or_default(),
        bytes_per_token: set.and_then(|set| decimal(set.measured_bytes_per_token?, 1)),
        cached_tokens: two_digits(set.map_or(0, |set| set.workers.values().map(|worker| worker.cached_tokens).sum())),
        ..Default::default()
    };
    (conditions, figures(counted))
}

fn counts(set: &SetStatus) -> WorkerCounts {
    let ready = set.workers.values().filter(|worker| is_ready(worker)).count();
    WorkerCounts { total: to_u32(set.workers.len()), ready: to_u32(ready) }
}

fn is_ready(worker: &WorkerStatus) -> bool {
    worker.state == "ready"
}

pub(super) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// `Ready`, of so many workers; `why` says what is wrong when none is.
pub(super) fn ready_of(total: u64, ready: u64, nobody: &str, why: impl FnOnce() -> String) -> Said {
    match (total, ready) {
        (0, _) => no(reasons::NO_WORKERS, nobody),
        (total, 0) => no(reasons::NO_WORKER_READY, format!("none of {total} workers is ready{}", why())),
        (total, ready) if ready < total => {
            yes(reasons::SOME_WORKERS_READY, format!("{ready} of {total} workers are ready"))
        }
        (1, _) => yes(reasons::ALL_WORKERS_READY, "the only worker is ready"),
        (total, _) => yes(reasons::ALL_WORKERS_READY, format!("all {total} workers are ready")),
    }
}

fn ready(set: Option<&SetStatus>) -> Said {
    let Some(set) = set else {
        let message = "no GatewayBackend has a pool with this worker set; add it to an InferencePool of one";
        return no(reasons::NOT_USED, message);
    };
    let counts = counts(set);
    let nobody =
        "there is no worker; spec.workers.selector must match Pods that are ready, spec.workers.static list some";
    ready_of(counts.total.into(), counts.ready.into(), nobody, || {
        let problem = |worker: &WorkerStatus| worker.metrics_problem.clone().unwrap_or_else(|| worker.state.to_owned());
        format!(": {}", named(set.workers.iter().map(|(name, worker)| format!("{name}: {}", problem(worker)))))
    })
}

fn tokenizer(set: &SetStatus) -> Said {
    match &set.tokenizer_problem {
        None => yes(reasons::LOADED, "the tokenizer was read"),
        Some(why) => no(
            reasons::TOKENIZER_UNUSABLE,
            format!("{why}; until that is mended prefixes are learned from where requests were sent"),
        ),
    }
}

fn fidelity(set: &SetStatus) -> Said {
    let why = || set.routed_because.clone().unwrap_or_default();
    match set.prompt_fidelity {
        Some(true) => yes(reasons::TEXT_EQUAL, "the filter's prompt text equals the engine's"),
        Some(false) => no(
            reasons::TEXT_DIFFERS,
            format!(
                "{}; prefixes are learned from where requests were sent. Check spec.model against what the engine runs",
                why()
            ),
        ),
        None => unknown(reasons::NOT_CHECKED, why()),
    }
}

fn events(set: &SetStatus) -> Said {
    if !set.kv_events {
        let message = "the worker set has no spec.kvEvents; prefixes are learned from where requests were sent";
        return unknown(reasons::NOT_CONFIGURED, message);
    }
    // What is not ready has no events to be healthy about.
    let followed = set.workers.iter().filter(|(_, worker)| is_ready(worker));
    let ready = || followed.clone().filter_map(|(name, worker)| Some((name, worker.events.as_ref()?)));
    if ready().next().is_none() {
        return unknown(reasons::NO_WORKER_READY, "events are followed once a worker is ready");
    }
    let away = ready().filter(|(_, events)| !events.connected).map(|(name, events)| match &events.last_problem {
        Some(problem) => format!("{name}: {problem}"),
        None => format!("{name}: not connected"),
    });
    let away = named(away);
    if !away.is_empty() {
        return no(
            reasons::NOT_CONNECTED,
            format!("{away}. Check the ports of spec.kvEvents and the engine's --kv-events-config"),
        );
    }
    let behind = named(ready().filter(|(_, events)| !events.current).map(|(name, _)| name.clone()));
    if !behind.is_empty() {
        return no(reasons::CATCHING_UP, format!("not all that was told is taken in yet: {behind}"));
    }
    yes(reasons::CURRENT, "all that the workers told is taken in")
}

/// A few, and the number of the others.
fn named(all: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let text = all.join("; ");
    if more > 0 { format!("{text}; and {more} more") } else { text }
}
