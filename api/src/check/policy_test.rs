//! Checks of `PolicyTest`: it tests what is there, and expects what can be.

use std::collections::BTreeSet;

use super::Reporter;
use super::world::World;
use crate::kinds::InferenceWorkerSetSpec;
use crate::policy_test::{Expectation, PolicyTest, SignalHistory, TestState, names_rule};
use crate::source::suggest;
use crate::{FieldPath, Kind, Resource};

pub(super) fn check(test: &PolicyTest, worlds: &[World<'_>], to: &mut Reporter<'_>) {
    let root = FieldPath::root();
    let cases = root.key("cases");
    if test.spec.cases.is_empty() {
        to.report(&cases, "the test has no case", "");
    }
    let mut names = BTreeSet::new();
    for (index, case) in test.spec.cases.iter().enumerate() {
        let place = cases.index(index);
        to.not_empty(&place.key("name"), &case.name);
        if !names.insert(&case.name) {
            to.report(&place.key("name"), format!("`{}` is there twice", case.name), "");
        }
        to.not_empty(&place.key("request").key("model"), &case.request.model);
        check_sense(&case.expect, &place.key("expect"), to);
    }
    let Some(world) = backend(test, worlds, to) else { return };
    check_state(&test.spec.state, world, &root.key("state"), to);
    for (index, case) in test.spec.cases.iter().enumerate() {
        check_state(&case.state, world, &cases.index(index).key("state"), to);
        check_names(&case.expect, world, &cases.index(index).key("expect"), to);
    }
}

/// The backend that is tested.
fn backend<'w, 'r>(test: &PolicyTest, worlds: &'w [World<'r>], to: &mut Reporter<'_>) -> Option<&'w World<'r>> {
    let path = FieldPath::root().key("gatewayBackend");
    let siblings = || worlds.iter().filter(|world| world.backend.key.namespace == test.key.namespace);
    if let Some(name) = &test.spec.gateway_backend {
        let found = siblings().find(|world| world.backend.key.name == *name);
        if found.is_none() {
            to.missing(&path, Kind::GatewayBackend, name, worlds.iter().map(|world| &world.backend.key));
        }
        return found;
    }
    let names: Vec<&str> = siblings().map(|world| world.backend.key.name.as_str()).collect();
    match names.as_slice() {
        [_] => siblings().next(),
        [] => {
            let message = format!("namespace {} has no GatewayBackend to test", test.key.namespace);
            to.report(&path, message, "name its file too");
            None
        }
        several => {
            to.report(&path, "missing", format!("name one of {}", several.join(", ")));
            None
        }
    }
}

/// What no outcome can satisfy.
fn check_sense(expect: &Expectation, place: &FieldPath, to: &mut Reporter<'_>) {
    if expect.is_empty() {
        to.report(place, "nothing is expected", "state worker, workerSet, provider, model, rule, rejected or not");
    }
    let on_worker = expect.worker.is_some() || expect.worker_set.is_some();
    if on_worker && expect.provider.is_some() {
        to.report(place, "a worker and a provider together", "a request goes to one of them");
    }
    if expect.rejected.is_some() && (on_worker || expect.provider.is_some() || expect.model.is_some()) {
        to.report(&place.key("rejected"), "a rejection and a place together", "a rejected request goes nowhere");
    }
    if let Some(status) = expect.rejected.and_then(|rejected| rejected.status) {
        to.within(&place.key("rejected").key("status"), status, 400, 599);
    }
    if let Some(not) = &expect.not {
        check_sense(not, &place.key("not"), to);
    }
}

fn check_names(expect: &Expectation, world: &World<'_>, place: &FieldPath, to: &mut Reporter<'_>) {
    if let Some(worker) = &expect.worker {
        check_worker(worker, world, &place.key("worker"), to);
    }
    if let Some(set) = &expect.worker_set {
        find_set(set, world, &place.key("workerSet"), to);
    }
    if let Some(provider) = &expect.provider {
        check_provider(provider, world, &place.key("provider"), to);
    }
    if let Some(rule) = &expect.rule {
        let names: Vec<String> = world.rules.iter().map(|placed| placed.name()).collect();
        if !names.iter().any(|name| names_rule(rule, name)) {
            let short: Vec<String> = world.rules.iter().map(|placed| placed.rule.name.clone()).collect();
            to.report(&place.key("rule"), format!("there is no rule `{rule}`"), suggest::remedy(rule, &short));
        }
    }
    if let Some(not) = &expect.not {
        check_names(not, world, &place.key("not"), to);
    }
}

fn check_state(state: &TestState, world: &World<'_>, place: &FieldPath, to: &mut Reporter<'_>) {
    for (name, worker) in &state.workers {
        let place = place.key("workers").key(name);
        check_worker(name, world, &place, to);
        let nothing = SignalHistory::default();
        let history = worker.history.as_ref().unwrap_or(&nothing);
        for (field, now, before, most) in [
            ("queuedRequests", worker.queued_requests, &history.queued_requests, f64::INFINITY),
            ("runningRequests", worker.running_requests, &history.running_requests, f64::INFINITY),
            ("kvCacheUsage", worker.kv_cache_usage, &history.kv_cache_usage, 1.0),
        ] {
            let is_bad = |value: f64| !value.is_finite() || value < 0.0 || value > most;
            let remedy = if most.is_finite() { "0 to 1" } else { "0 or more" };
            if let Some(value) = now.filter(|value| is_bad(*value)) {
                to.report(&place.key(field), format!("{value} is out of range"), remedy);
            }
            for (index, (_, value)) in before.iter().enumerate().filter(|(_, (_, value))| is_bad(*value)) {
                let path = place.key("history").key(field).index(index).index(1);
                to.report(&path, format!("{value} is out of range"), remedy);
            }
        }
    }
    for name in state.providers.keys() {
        check_provider(name, world, &place.key("providers").key(name), to);
    }
}

fn find_set<'r>(
    name: &str,
    world: &World<'r>,
    path: &FieldPath,
    to: &mut Reporter<'_>,
) -> Option<&'r Resource<InferenceWorkerSetSpec>> {
    let found = world.sets.get(name).copied();
    if found.is_none() {
        let known: Vec<String> = world.sets.keys().map(|name| (*name).to_string()).collect();
        let message = format!("GatewayBackend {} has no worker set `{name}`", world.backend.key.name);
        to.report(path, message, suggest::remedy(name, &known));
    }
    found
}

fn check_worker(name: &str, world: &World<'_>, path: &FieldPath, to: &mut Reporter<'_>) {
    let (set, worker) = name.split_once('/').unwrap_or((name, ""));
    let Some(set) = find_set(set, world, path, to) else { return };
    if worker.is_empty() {
        return to.report(path, format!("`{name}` is no worker"), "write <worker set>/<worker>");
    }
    let Some(list) = &set.spec.workers.static_workers else { return };
    let ranks = set.spec.workers.data_parallel_size;
    let (worker, rank) = worker.split_once('/').map_or((worker, None), |(worker, rank)| (worker, Some(rank)));
    if !list.iter().any(|known| known.name == worker) {
        let known: Vec<String> = list.iter().map(|known| known.name.clone()).collect();
        let message = format!("worker set `{}` has no worker `{worker}`", set.key.name);
        to.report(path, message, suggest::remedy(worker, &known));
    } else if let Some(rank) = rank
        && !rank.parse::<u32>().is_ok_and(|rank| rank < ranks)
    {
        to.report(path, format!("`{worker}` has no rank `{rank}`"), format!("it has {ranks}, from 0"));
    }
}

fn check_provider(name: &str, world: &World<'_>, path: &FieldPath, to: &mut Reporter<'_>) {
    if !world.providers.contains_key(name) {
        let known: Vec<String> = world.providers.keys().map(|name| (*name).to_string()).collect();
        let message = format!("GatewayBackend {} has no provider `{name}`", world.backend.key.name);
        to.report(path, message, suggest::remedy(name, &known));
    }
}
