//! A gateway backend in a state that someone made up, for requests to be decided in: the routing core of the filter, on
//! the configuration that the control service would send it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use kinference_api::compile::{self, FleetSpec, WorkerSetAssets, WorkerSetSpec, WorkersSpec};
use kinference_api::policy_test::{DEFAULT_PROMPT_TOKENS, TestRequest, TestState, WorkerState};
use kinference_api::{ObjectKey, Resources};
use kinference_protocol::v1;
use kinference_routing::decide::{Ask, Caller, Prompted};
use kinference_routing::ledger::Ledger;
use kinference_routing::prefix::PAGE_WORKERS;
use kinference_routing::signals::{self, History, Sample};
use kinference_routing::snapshot::{Replica, Snapshot};
use kinference_routing::ttft::LatencyModel;
use kinference_routing::{Decision, decide};

use crate::outcome::Outcome;

/// Now, on the scene's clock: far enough from its start for any history.
const NOW_MS: u64 = 1 << 50;
/// The worker of a set with a selector of which no state names one.
const ONLY_WORKER: &str = "worker";
/// The tenant of requests without one, where that is allowed.
const ANONYMOUS: &str = "anonymous";

/// A gateway backend in a state.
pub(crate) struct Scene {
    config: v1::Config,
    replica: Replica,
    /// Tokens of the prompt that workers hold, by worker id.
    cached: BTreeMap<u32, u32>,
    /// Names that a state may use.
    names: BTreeSet<String>,
}

/// A worker of the scene.
struct Actor {
    set: u32,
    /// Within its set.
    name: String,
    address: String,
    rank: Option<u32>,
    state: WorkerState,
}

impl Scene {
    /// The backend in these states, of which later ones replace parts of earlier ones.
    pub(crate) fn new(resources: &Resources, backend: &ObjectKey, states: &[&TestState]) -> Result<Scene> {
        let mut fleet = compile::fleet(resources, backend)?;
        for provider in fleet.providers.iter_mut().map(|provider| &mut provider.wire) {
            let stated = states.iter().rev().filter_map(|state| state.providers.get(&provider.name)?.ready);
            provider.ready = stated.into_iter().next().unwrap_or(true);
        }
        let assets = fleet.worker_sets.iter().map(|set| (set.key.clone(), WorkerSetAssets::default())).collect();
        let config = compile::config(&fleet, &assets)?;
        let mut workers = Vec::new();
        let mut cached = BTreeMap::new();
        let mut names: BTreeSet<String> = fleet.providers.iter().map(|provider| provider.wire.name.clone()).collect();
        let mut page = 0;
        for set in &fleet.worker_sets {
            let actors = actors(set, states);
            for (position, actor) in (0..).zip(&actors) {
                let id = page * PAGE_WORKERS + position;
                cached.insert(id, actor.state.cached_prefix_tokens.unwrap_or_default());
                workers.push(worker(id, actor, &fleet));
                let name = format!("{}/{}", set.key.name, actor.name);
                names.extend(actor.rank.and_then(|_| Some(name.rsplit_once('/')?.0.to_string())));
                names.insert(name);
            }
            page += u32::try_from(actors.len()).unwrap_or(u32::MAX).div_ceil(PAGE_WORKERS).max(1);
        }
        let pools = pool_states(&config, &workers);
        let sections = v1::Sections {
            config: Some(config.clone()),
            workers: Some(v1::Workers { upsert: workers, removed: Vec::new(), pools }),
            prefix: None,
        };
        let part = v1::SnapshotPart { epoch: 1, sequence: 1, part: 0, last: true, sections: Some(sections) };
        let mut replica = Replica::default();
        replica
            .apply(v1::ControlMessage { message: Some(v1::control_message::Message::Snapshot(part)) })
            .with_context(|| format!("the filter would refuse the configuration of {backend}"))?;
        Ok(Scene { config, replica, cached, names })
    }

    /// Workers and providers that a state names and the backend does not have.
    pub(crate) fn unknown(&self, state: &TestState) -> Vec<String> {
        let named = state.workers.keys().chain(state.providers.keys());
        named.filter(|name| !self.names.contains(*name)).map(|name| format!("`{name}`")).collect()
    }

    /// What becomes of a request.
    pub(crate) fn play(&self, request: &TestRequest) -> Outcome {
        let deny = self.config.tenancy.as_ref().is_some_and(|tenancy| tenancy.deny_unidentified);
        let tenant = match request.tenant.as_deref() {
            // Where every request must have a tenant, one that a test does not name is one of no consequence.
            None if deny => Some(""),
            None => tenant(deny, ""),
            Some(name) => tenant(deny, name),
        };
        let Some(tenant) = tenant else { return Outcome::unidentified() };
        let prompt_tokens = request.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS);
        let prompted = Prompted::Figures { model: &request.model, prompt_tokens, cached: &self.cached };
        match self.replica.current() {
            Some(snapshot) => outcome(snapshot, prompted, tenant, &request.tags, 0),
            None => Outcome::unidentified(),
        }
    }
}

/// The tenant that filters take a request to be of; none when they refuse it.
pub(crate) fn tenant(deny_unidentified: bool, name: &str) -> Option<&str> {
    match name {
        "" if deny_unidentified => None,
        "" => Some(ANONYMOUS),
        name => Some(name),
    }
}

/// What a filter that did nothing else lately makes of a request. `unix_s` is for templates that write the date.
pub(crate) fn outcome(
    snapshot: &Snapshot,
    prompted: Prompted<'_>,
    tenant: &str,
    tags: &[String],
    unix_s: u64,
) -> Outcome {
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let ask =
        Ask { prompted, caller: Caller { tenant, tags: &tags }, now_ms: NOW_MS, unix_s, stale: false, explain: true };
    let Decision { result, trace } = decide(snapshot, &Ledger::default(), &ask);
    Outcome::of(result, trace.unwrap_or_default())
}

/// The workers of a set: those of its list, or those that the states name.
fn actors(set: &WorkerSetSpec, states: &[&TestState]) -> Vec<Actor> {
    let ranks = set.data_parallel_size;
    let listed: Vec<(String, String)> = match &set.workers {
        WorkersSpec::Static(list) => {
            list.iter().map(|worker| (worker.name.clone(), worker.http_address().to_string())).collect()
        }
        WorkersSpec::Selector { .. } => {
            let of_set = |name: &String| Some(name.strip_prefix(&set.key.name)?.strip_prefix('/')?.to_string());
            let names = states.iter().flat_map(|state| state.workers.keys()).filter_map(of_set);
            let mut names: BTreeSet<String> =
                names.map(|name| name.split_once('/').map_or(name.clone(), |(name, _)| name.to_string())).collect();
            if names.is_empty() {
                names.insert(ONLY_WORKER.to_string());
            }
            names.into_iter().map(|name| (name.clone(), format!("{}/{name}", set.key))).collect()
        }
    };
    let each = listed.iter().flat_map(|worker| (0..ranks).map(move |rank| (worker, rank)));
    let actors = each.map(|((worker, address), rank)| {
        let several = ranks > 1;
        let own = format!("{}/{worker}", set.key.name);
        let of_rank = format!("{own}/{rank}");
        let mut state = WorkerState::default();
        for stated in states {
            for name in [&own, &of_rank] {
                if let Some(stated) = stated.workers.get(name) {
                    overlay(&mut state, stated);
                }
            }
        }
        Actor {
            set: set.id,
            name: if several { format!("{worker}/{rank}") } else { worker.clone() },
            address: address.clone(),
            rank: several.then_some(rank),
            state,
        }
    });
    actors.collect()
}

fn overlay(state: &mut WorkerState, stated: &WorkerState) {
    state.ready = stated.ready.or(state.ready);
    state.queued_requests = stated.queued_requests.or(state.queued_requests);
    state.running_requests = stated.running_requests.or(state.running_requests);
    state.kv_cache_usage = stated.kv_cache_usage.or(state.kv_cache_usage);
    state.cached_prefix_tokens = stated.cached_prefix_tokens.or(state.cached_prefix_tokens);
    if stated.history.is_some() {
        state.history.clone_from(&stated.history);
    }
}

fn worker(id: u32, actor: &Actor, fleet: &FleetSpec) -> v1::Worker {
    let state = &actor.state;
    let figure = |value: Option<f64>| value.unwrap_or_default();
    v1::Worker {
        id,
        worker_set: actor.set,
        name: actor.name.clone(),
        address: actor.address.clone(),
        state: if state.ready.unwrap_or(true) { v1::WorkerState::Ready } else { v1::WorkerState::Unready }.into(),
        data_parallel_rank: actor.rank,
        load: Some(v1::Load {
            known: true,
            queued_requests: figure(state.queued_requests) as f32,
            running_requests: figure(state.running_requests) as f32,
            kv_cache_usage: figure(state.kv_cache_usage) as f32,
            pending_prefill_tokens: 0,
            in_flight: 0,
            // What a state says of an engine is there without any filter having sent it.
            strangers: (figure(state.queued_requests) + figure(state.running_requests)) as f32,
            ..v1::Load::default()
        }),
        latency: Some(LatencyModel::default().into()),
        signals: history(state, signals::longest(&fleet.signals)).values(&fleet.signals, NOW_MS),
    }
}

/// The worker's figures as they would have been scraped.
fn history(state: &WorkerState, keep_ms: u64) -> History {
    let stated = state.history.clone().unwrap_or_default();
    let mut moments: BTreeMap<u64, Sample> = BTreeMap::new();
    let at = |ago: u64| NOW_MS.saturating_sub(ago);
    for (ago, value) in &stated.queued_requests {
        moments.entry(at(ago.0.as_millis())).or_default().queued_requests = Some(*value);
    }
    for (ago, value) in &stated.running_requests {
        moments.entry(at(ago.0.as_millis())).or_default().running_requests = Some(*value);
    }
    for (ago, value) in &stated.kv_cache_usage {
        moments.entry(at(ago.0.as_millis())).or_default().kv_cache_usage = Some(*value);
    }
    let now = moments.entry(at(0)).or_default();
    let figure = |value: Option<f64>| Some(value.unwrap_or_default());
    now.queued_requests = figure(state.queued_requests);
    now.running_requests = figure(state.running_requests);
    now.kv_cache_usage = figure(state.kv_cache_usage);
    let mut history = History::default();
    moments.iter().for_each(|(at, sample)| history.record(*at, sample, keep_ms));
    history
}

fn pool_states(config: &v1::Config, workers: &[v1::Worker]) -> Vec<v1::PoolState> {
    let state = |pool: &v1::Pool| {
        let ready = workers
            .iter()
            .filter(|worker| worker.state() == v1::WorkerState::Ready && pool.worker_sets.contains(&worker.worker_set));
        let values = ready.map(|worker| worker.signals.as_slice());
        v1::PoolState { id: pool.id, signals: signals::of_pool(values, config.signals.len()) }
    };
    config.pools.iter().map(state).collect()
}

#[cfg(test)]
mod tests;
