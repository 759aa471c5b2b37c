//! What the decision was made on: load and signals of the workers that were looked at, and of the pools.

use std::collections::BTreeSet;

use kinference_protocol::v1::WorkerState;
use kinference_routing::signals;
use kinference_routing::snapshot::{Snapshot, Worker};
use kinference_routing::trace::Trace;
use serde_json::{Map, Value, json};

use crate::outcome::short;
use crate::paint::Paint;
use crate::table::lay_out;

/// Tables of the workers and the pools, each after an empty line; none of what there is none of.
pub(super) fn tables(snapshot: &Snapshot, trace: Option<&Trace>, paint: Paint) -> String {
    let style = |column: Option<usize>, cell: &str| match (column, cell) {
        (None, title) => paint.dim(title),
        (Some(1), "ready") => paint.green(cell),
        (Some(1), "unready") => paint.red(cell),
        (Some(_), "?") | (Some(1), "unknown") => paint.yellow(cell),
        (Some(_), _) => cell.to_string(),
    };
    let names: Vec<String> = snapshot.config.rules.signals.iter().map(signals::name).collect();
    let names = || names.iter().map(String::as_str);
    let mut text = String::new();
    let rows: Vec<Vec<String>> = looked_at(snapshot, trace).map(|worker| row(snapshot, worker)).collect();
    if !rows.is_empty() {
        let header: Vec<&str> = ["WORKER", "STATE", "QUEUED", "RUNNING", "KV", "IN FLIGHT", "PREFILL TOKENS"]
            .into_iter()
            .chain(names())
            .collect();
        text.push('\n');
        text.push_str(&lay_out("", &header, &rows, style));
    }
    let pools = &snapshot.config.rules.pools;
    if !pools.is_empty() && names().next().is_some() {
        let header: Vec<&str> = std::iter::once("POOL").chain(names()).collect();
        let rows: Vec<Vec<String>> = pools
            .iter()
            .map(|pool| {
                let values = snapshot.pools.get(&pool.id).map(Vec::as_slice).unwrap_or_default();
                std::iter::once(pool.name.clone()).chain(values.iter().map(|value| figure(*value))).collect()
            })
            .collect();
        text.push('\n');
        text.push_str(&lay_out("", &header, &rows, style));
    }
    text
}

/// The workers that were looked at, for programs.
pub(super) fn workers(snapshot: &Snapshot, trace: Option<&Trace>) -> Vec<Value> {
    let value = |worker: &Worker| {
        let load = worker.load.map(|load| {
            json!({
                "queuedRequests": load.queued_requests,
                "runningRequests": load.running_requests,
                "kvCacheUsage": load.kv_cache_usage,
                "inFlight": load.in_flight,
                "pendingPrefillTokens": load.pending_prefill_tokens,
            })
        });
        json!({
            "name": name(snapshot, worker),
            "address": worker.address,
            "state": state(worker),
            "load": load,
            "signals": by_name(snapshot, &worker.signals),
        })
    };
    looked_at(snapshot, trace).map(value).collect()
}

/// The pools' signals, for programs.
pub(super) fn pools(snapshot: &Snapshot) -> Vec<Value> {
    let values = |id: &u32| snapshot.pools.get(id).map(Vec::as_slice).unwrap_or_default();
    let pools = snapshot.config.rules.pools.iter();
    pools.map(|pool| json!({"name": pool.name, "signals": by_name(snapshot, values(&pool.id))})).collect()
}

fn by_name(snapshot: &Snapshot, values: &[f32]) -> Map<String, Value> {
    let names = snapshot.config.rules.signals.iter().map(signals::name);
    names.zip(values).map(|(name, value)| (name, json!(value.is_finite().then_some(value)))).collect()
}

fn looked_at<'s>(snapshot: &'s Snapshot, trace: Option<&Trace>) -> impl Iterator<Item = &'s Worker> {
    let ids: BTreeSet<u32> =
        trace.iter().flat_map(|trace| &trace.candidates).filter_map(|candidate| candidate.worker).collect();
    ids.into_iter().filter_map(|id| snapshot.workers.get(&id))
}

fn row(snapshot: &Snapshot, worker: &Worker) -> Vec<String> {
    let known =
        |read: fn(&kinference_protocol::v1::Load) -> String| worker.load.as_ref().map_or_else(|| "?".to_string(), read);
    let mut row = vec![
        name(snapshot, worker),
        state(worker).to_string(),
        known(|load| figure(load.queued_requests)),
        known(|load| figure(load.running_requests)),
        known(|load| format!("{:.0} %", load.kv_cache_usage * 100.0)),
        known(|load| load.in_flight.to_string()),
        known(|load| load.pending_prefill_tokens.to_string()),
    ];
    row.extend(worker.signals.iter().map(|value| figure(*value)));
    row
}

fn name(snapshot: &Snapshot, worker: &Worker) -> String {
    let set = snapshot.config.sets.get(&worker.set).map_or("", |set| set.wire.name.as_str());
    short(&format!("{set}/{}", worker.name)).to_string()
}

fn state(worker: &Worker) -> &'static str {
    match worker.state {
        WorkerState::Ready => "ready",
        WorkerState::Unready => "unready",
        WorkerState::Unknown => "unknown",
    }
}

/// A figure to hundredths, without needless decimals; "?" for a missing one.
fn figure(value: f32) -> String {
    if !value.is_finite() {
        return "?".into();
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
