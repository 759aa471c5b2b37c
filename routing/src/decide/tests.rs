use kinference_protocol::v1;

use super::*;
use crate::openai::{Endpoint, parse};
use crate::prefix::{Chunks, namespace_seed};
use crate::snapshot::Replica;

const CHUNK: usize = 64;

/// Worker sets `(id, model)` with workers `(id, set)`, all ready and idle.
struct World {
    sets: Vec<v1::WorkerSet>,
    workers: Vec<v1::Worker>,
    prefix: v1::Prefix,
}

impl World {
    fn new(sets: &[(u32, &str)], workers: &[(u32, u32)]) -> Self {
        let set = |(id, model): &(u32, &str)| v1::WorkerSet {
            id: *id,
            name: format!("default/{model}"),
            model: (*model).to_owned(),
            prefix_mode: v1::PrefixMode::Events.into(),
            prefix_domain: format!("set-{id}"),
            bytes_per_token: 4.0,
            block_tokens: 16,
            routed_ttl_ms: 60_000,
            ..v1::WorkerSet::default()
        };
        let worker = |(id, set): &(u32, u32)| v1::Worker {
            id: *id,
            worker_set: *set,
            name: format!("w{id}"),
            address: format!("10.0.0.{id}:8000"),
            state: v1::WorkerState::Ready.into(),
            load: Some(v1::Load { known: true, ..v1::Load::default() }),
            ..v1::Worker::default()
        };
        Self {
            sets: sets.iter().map(set).collect(),
            workers: workers.iter().map(worker).collect(),
            prefix: v1::Prefix::default(),
        }
    }

    /// The workers with these ids hold the first `chunks` chunks of `text`.
    fn holds(mut self, set: u32, ids: &[u32], text: &str, chunks: usize) -> Self {
        let seed = namespace_seed(&format!("set-{set}"), "", "");
        let mut hashes = Chunks::new(text.as_bytes(), CHUNK as u32, seed);
        let hashes: Vec<u64> = hashes.all().iter().take(chunks).copied().collect();
        let mask = ids.iter().fold(0, |mask, id| mask | 1u64 << (id % 64));
        self.prefix.pages.push(v1::PrefixPage {
            page: ids[0] / 64,
            workers: vec![mask; hashes.len()],
            tokens: vec![16; hashes.len()],
            hashes,
        });
        self
    }

    fn change(mut self, id: u32, change: impl Fn(&mut v1::Worker)) -> Self {
        self.workers.iter_mut().filter(|worker| worker.id == id).for_each(change);
        self
    }

    fn replica(&self) -> Replica {
        self.replica_with(|_| {})
    }

    fn replica_with(&self, change: impl Fn(&mut v1::Config)) -> Replica {
        let backend = v1::Backend { chunk_bytes: CHUNK as u32, index_max_bytes: 1 << 20, ..v1::Backend::default() };
        let worker_sets = self.sets.clone();
        let mut config = v1::Config { backend: Some(backend), worker_sets, ..v1::Config::default() };
        change(&mut config);
        let sections = v1::Sections {
            config: Some(config),
            workers: Some(v1::Workers { upsert: self.workers.clone(), ..v1::Workers::default() }),
            prefix: Some(self.prefix.clone()),
        };
        let part = v1::SnapshotPart { epoch: 1, sequence: 1, part: 0, last: true, sections: Some(sections) };
        let mut replica = Replica::default();
        replica.apply(v1::ControlMessage { message: Some(v1::control_message::Message::Snapshot(part)) }).unwrap();
        replica
    }

    /// A decision with a changed configuration.
    fn ask_rules(&self, ledger: &Ledger, prompt: &str, change: impl Fn(&mut v1::Config)) -> Decision {
        let body = serde_json::json!({"model": "m", "prompt": prompt}).to_string();
        let request = parse(Endpoint::Completions, body.as_bytes()).unwrap();
        decide(self.replica_with(change).current().unwrap(), ledger, &asked(&request, &body))
    }

    fn decide(&self, ledger: &Ledger, model: &str, prompt: &str) -> Decision {
        self.ask(ledger, model, prompt, |_| {})
    }

    fn ask(&self, ledger: &Ledger, model: &str, prompt: &str, change: impl Fn(&mut Ask<'_>)) -> Decision {
        let body = serde_json::json!({"model": model, "prompt": prompt}).to_string();
        let request = parse(Endpoint::Completions, body.as_bytes()).unwrap();
        let mut ask = Ask { explain: true, ..asked(&request, &body) };
        change(&mut ask);
        decide(self.replica().current().unwrap(), ledger, &ask)
    }
}

fn prompt(name: &str, bytes: usize) -> String {
    (0..).map(|i| format!("{name} {i} ")).flat_map(|word| word.chars().collect::<Vec<_>>()).take(bytes).collect()
}

fn first(decision: &Decision) -> u32 {
    decision.result.as_ref().unwrap().workers()[0]
}

fn asked<'a>(request: &'a crate::openai::Request<'a>, body: &'a str) -> Ask<'a> {
    Ask {
        prompted: Prompted::Request { request, body: body.as_bytes() },
        caller: Caller::default(),
        now_ms: 1000,
        unix_s: 0,
        stale: false,
        explain: false,
    }
}

#[test]
fn the_longest_cached_prefix_wins_among_idle_workers() {
    let text = prompt("a", 6400);
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1), (70, 1)]).holds(1, &[1, 2], &text, 40).holds(
        1,
        &[70],
        &text,
        90,
    );
    let decision = world.decide(&Ledger::default(), "m", &text);
    let choice = decision.result.as_ref().unwrap();
    assert_eq!(choice.workers()[0], 70);
    assert_eq!((choice.first.expected.cached_tokens, choice.prompt_tokens), (1440, 1600));
    assert_eq!(choice.workers().len(), 3);
    let trace = decision.trace.unwrap();
    assert_eq!(
        trace.candidates.iter().map(|candidate| candidate.cached_tokens).collect::<Vec<_>>(),
        [0, 640, 640, 1440]
    );
    assert_eq!(trace.chosen, choice.workers());
}

#[test]
fn a_hole_in_a_chain_ends_it() {
    let text = prompt("a", 640);
    let mut world = World::new(&[(1, "m")], &[(0, 1)]).holds(1, &[0], &text, 10);
    world.prefix.pages[0].workers[3] = 0;
    let choice = world.decide(&Ledger::default(), "m", &text).result.unwrap();
    assert_eq!(choice.first.expected.cached_tokens, 48);
}

#[test]
fn a_wholly_cached_prompt_still_computes_its_last_block() {
    let text = prompt("a", 640);
    let world = World::new(&[(1, "m")], &[(0, 1)]).holds(1, &[0], &text, 10);
    let choice = world.decide(&Ledger::default(), "m", &text).result.unwrap();
    assert_eq!(
        (choice.prompt_tokens, choice.first.expected.cached_tokens, choice.first.expected.uncached_tokens),
        (160, 144, 16)
    );
}

#[test]
fn affinity_is_bounded_by_load() {
    let text = prompt("hot", 6400);
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1)]).holds(1, &[0], &text, 100);
    let mut ledger = Ledger::default();
    assert_eq!(first(&world.decide(&ledger, "m", &text)), 0);
    // 1,600 tokens to compute on the idle worker against 5,000 that are queued on the one with the prefix.
    let _busy = ledger.sent(0, 5000);
    assert_eq!(first(&world.decide(&ledger, "m", &text)), 1);
}

#[test]
fn under_pressure_a_prefix_is_not_copied_to_whoever_is_a_little_ahead() {
    let text = prompt("shared", 6400);
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1)]).holds(1, &[0], &text, 100);
    let mut ledger = Ledger::default();
    let mut queue = |worker: u32, tokens: u32| (0..tokens / 500).map(|_| ledger.sent(worker, 500)).collect::<Vec<_>>();
    // 20,000 tokens wait where the prefix is, 16,000 where its 1,600 tokens would have to be computed.
    let (_held, _other) = (queue(0, 20_000), queue(1, 16_000));
    assert_eq!(first(&world.decide(&ledger, "m", &text)), 0);
}

#[test]
fn a_burst_neither_herds_nor_scatters() {
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1), (3, 1)]);
    let mut ledger = Ledger::default();
    let mut counts = [0; 4];
    let mut tickets = Vec::new();
    for i in 0..40 {
        let choice = world.decide(&ledger, "m", &prompt(&format!("p{i}"), 4000)).result.unwrap();
        counts[choice.workers()[0] as usize] += 1;
        tickets.push(ledger.sent(choice.workers()[0], choice.first.expected.uncached_tokens));
    }
    assert_eq!(counts, [10; 4]);

    let shared = prompt("shared", 40_000);
    let mut ledger = Ledger::default();
    let mut workers = std::collections::BTreeSet::new();
    for i in 0..20 {
        let choice = world.decide(&ledger, "m", &format!("{shared}{i}")).result.unwrap();
        workers.insert(choice.workers()[0]);
        ledger.prefix_sent(choice.workers()[0], &choice.chunks, 1000 + choice.believe_ms);
        tickets.push(ledger.sent(choice.workers()[0], choice.first.expected.uncached_tokens));
    }
    assert!(workers.len() <= 2, "a shared prefix went to {workers:?}");
}

#[test]
fn new_prefixes_meet_the_same_worker_everywhere_and_spread() {
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1), (3, 1)]);
    let chosen: Vec<u32> =
        (0..200).map(|i| first(&world.decide(&Ledger::default(), "m", &prompt(&format!("p{i}"), 3000)))).collect();
    let again: Vec<u32> =
        (0..200).map(|i| first(&world.decide(&Ledger::default(), "m", &prompt(&format!("p{i}"), 3000)))).collect();
    assert_eq!(chosen, again);
    for worker in 0..4 {
        let share = chosen.iter().filter(|id| **id == worker).count();
        assert!((25..=75).contains(&share), "worker {worker} got {share} of 200");
    }
}

#[test]
fn unknown_models_are_refused_and_other_models_never_answer() {
    let world = World::new(&[(1, "m"), (2, "n")], &[(0, 1), (64, 2)]);
    assert_eq!(first(&world.decide(&Ledger::default(), "n", "x")), 64);
    let rejection = world.decide(&Ledger::default(), "zzz", "x").result.unwrap_err();
    assert_eq!((rejection.status(), rejection.code()), (404, "model_not_found"));
    let empty = World::new(&[(1, "m")], &[]);
    let rejection = empty.decide(&Ledger::default(), "m", "x").result.unwrap_err();
    assert_eq!((rejection.status(), rejection.code()), (503, "no_workers"));
}

#[test]
fn no_metrics_is_the_worst_score_and_unready_is_none() {
    let text = prompt("a", 6400);
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1), (3, 1)])
        .holds(1, &[0, 1, 2], &text, 100)
        .change(0, |worker| worker.state = v1::WorkerState::Unknown.into())
        .change(1, |worker| worker.load = Some(v1::Load::default()))
        .change(2, |worker| worker.state = v1::WorkerState::Unready.into())
        .change(3, |worker| worker.load.as_mut().unwrap().strangers = 500.0);
    let choice = world.decide(&Ledger::default(), "m", &text).result.unwrap();
    assert_eq!(choice.workers(), [3, 1, 0]);
    let world = world.change(3, |worker| worker.state = v1::WorkerState::Unready.into());
    assert_eq!(world.decide(&Ledger::default(), "m", &text).result.unwrap().workers(), [1, 0]);
    let mut ledger = Ledger::default();
    ledger.suspect(1, 1000);
    assert!(ledger.is_suspect(1, 1000));
    let world = world.change(3, |worker| worker.state = v1::WorkerState::Ready.into());
    assert_eq!(first(&world.decide(&ledger, "m", &text)), 3);
}

#[test]
fn a_stale_snapshot_hashes_prompts_over_healthy_workers() {
    let text = prompt("a", 6400);
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1)]).holds(1, &[0], &text, 100);
    let stale = |ask: &mut Ask<'_>| ask.stale = true;
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..50 {
        let text = prompt(&format!("q{i}"), 2000);
        let choice = world.ask(&Ledger::default(), "m", &text, stale).result.unwrap();
        assert_eq!(
            choice.workers(),
            world.ask(&Ledger::default(), "m", &(text + " more"), stale).result.unwrap().workers()
        );
        assert_eq!(choice.first.expected.cached_tokens, 0);
        seen.insert(choice.workers()[0]);
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn salts_adapters_and_likenesses_share_nothing() {
    let text = prompt("a", 6400);
    let mut world = World::new(&[(1, "m")], &[(0, 1), (1, 1)]).holds(1, &[0], &text, 100);
    world.sets[0].adapters.push("lora".into());
    assert!(world.decide(&Ledger::default(), "m", &text).result.unwrap().first.expected.cached_tokens > 0);
    assert_eq!(world.decide(&Ledger::default(), "lora", &text).result.unwrap().first.expected.cached_tokens, 0);
    let body = serde_json::json!({"model": "m", "prompt": text, "cache_salt": "s"}).to_string();
    let request = parse(Endpoint::Completions, body.as_bytes()).unwrap();
    let ask = asked(&request, &body);
    let salted = decide(world.replica().current().unwrap(), &Ledger::default(), &ask);
    assert_eq!(salted.result.unwrap().first.expected.cached_tokens, 0);
    assert!(salted.trace.is_none());
    world.sets[0].prefix_mode = v1::PrefixMode::Routed.into();
    let routed = world.decide(&Ledger::default(), "m", &text).result.unwrap();
    assert_eq!((routed.first.expected.cached_tokens, routed.routed, routed.believe_ms), (0, true, 60_000));
}

#[test]
fn alternatives_are_other_addresses_of_the_same_rank() {
    let world = World::new(&[(1, "m")], &[(0, 1), (1, 1), (2, 1), (3, 1)])
        .change(0, |worker| worker.data_parallel_rank = Some(0))
        .change(1, |worker| {
            worker.data_parallel_rank = Some(1);
            worker.address = "10.0.0.0:8000".into();
        })
        .change(2, |worker| worker.data_parallel_rank = Some(0))
        .change(3, |worker| {
            worker.data_parallel_rank = Some(1);
            worker.address = "10.0.0.2:8000".into();
        });
    let workers = world.decide(&Ledger::default(), "m", "x").result.unwrap().workers().to_vec();
    assert!(matches!(workers[..], [0, 2] | [2, 0] | [1, 3] | [3, 1]), "{workers:?}");
}

#[test]
fn a_trace_is_readable() {
    let world = World::new(&[(1, "m")], &[(0, 1)]);
    let trace = world.decide(&Ledger::default(), "m", "secret words").trace.unwrap().to_string();
    assert!(trace.contains("* default/m/w0") && trace.contains("Usable") && !trace.contains("secret"), "{trace}");
}

mod names;
mod policies;
mod pressure;
