use kinference_protocol::v1::PrefixMode;
use kinference_routing::prefix::{Chunks, namespace_seed, place};
use proptest::prelude::*;

use super::*;
use crate::events::ResetReason;

fn world() -> World {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    world.ready("default/qwen", "10.0.0.1:8000");
    world.ready("default/qwen", "10.0.0.2:8000");
    world.tick();
    world
}

fn mode(world: &World) -> PrefixMode {
    world.snapshot().config.sets.values().next().unwrap().wire.prefix_mode()
}

/// Chunks of the prompt of `stored(seed, blocks)` that a worker is said to hold.
fn held(world: &World, worker: &str, seed: u64, blocks: usize) -> usize {
    let KvEvent::Stored(event) = stored(seed, blocks) else { panic!() };
    let text = tokenizer().tokens.as_ref().unwrap().concatenate(&event.token_ids).unwrap();
    let snapshot = world.snapshot();
    let domain = &snapshot.config.sets.values().next().unwrap().wire.prefix_domain;
    let mut chunks = Chunks::new(&text, snapshot.config.backend.chunk_bytes, namespace_seed(domain, "", ""));
    let (page, bit) = place(world.worker("default/qwen", worker).id);
    let all = chunks.all().to_vec();
    all.iter().take_while(|hash| snapshot.index.get(page, **hash).is_some_and(|entry| entry.workers & bit != 0)).count()
}

#[test]
fn events_are_followed_and_used_only_once_the_prompt_text_is_proven_equal() {
    let mut world = world();
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    world.pass(200);
    assert_eq!(mode(&world), PrefixMode::Routed);
    assert_eq!(world.snapshot().index.chunks(), 0);
    assert_eq!(world.answer_checks(&Verdict::NoAnswer("connection refused".into())), 2);
    world.tick();
    assert_eq!(mode(&world), PrefixMode::Routed);
    world.pass(3000);
    assert_eq!(world.answer_checks(&EQUAL), 2);
    world.tick();
    assert_eq!((mode(&world), world.epochs), (PrefixMode::Events, 2));
    assert!(held(&world, "a", 1, 8) > 3, "what was told before counts");
    assert_eq!(held(&world, "b", 1, 8), 0);
    world.events("default/qwen", "b", vec![stored(1, 4)]);
    world.tick();
    assert!(held(&world, "b", 1, 8) > 1);
    assert_eq!(world.epochs, 2);
    world.assert_current();
}

#[test]
fn the_word_of_a_worker_goes_with_it() {
    let mut world = world();
    let different = Verdict::Different("probe \"tools\": the texts differ from byte 7 on".into());
    let (a, b) = ("10.0.0.1:8000".parse().unwrap(), "10.0.0.2:8000".parse().unwrap());
    for check in world.fleet.checks(world.now) {
        let verdict = if check.address == a { EQUAL } else { different.clone() };
        let Check { set, address, generation, .. } = check;
        assert!(address == a || address == b);
        world.input(Input::Checked { set, address, generation, verdict });
    }
    world.tick();
    assert_eq!(mode(&world), PrefixMode::Routed);
    // "b", which disagreed, is removed; "c" takes its place and was not asked yet.
    world.configure(&(set("qwen", "a c=8001", "") + &backend("main", "qwen", "")));
    assert_eq!(mode(&world), PrefixMode::Events);
    // So is "a". What was found holds until one of the others answers.
    world.configure(&(set("qwen", "d=8002 c=8001", "") + &backend("main", "qwen", "")));
    assert_eq!(mode(&world), PrefixMode::Events);
    world.ready("default/qwen", "10.0.0.1:8002");
    world.tick();
    assert_eq!(world.answer_checks(&different), 1);
    world.tick();
    assert_eq!(mode(&world), PrefixMode::Routed);
    world.assert_current();
}

#[test]
fn a_worker_with_another_text_puts_the_set_in_routed_mode() {
    let mut world = world();
    world.answer_checks(&EQUAL);
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    world.tick();
    assert!(held(&world, "a", 1, 8) > 0);
    // "b" comes back with another version.
    world.scrape("default/qwen", "10.0.0.2:8000", Err(ScrapeError::Refused));
    world.tick();
    world.ready("default/qwen", "10.0.0.2:8000");
    assert_eq!(world.answer_checks(&Verdict::Different("probe \"tools\": the texts differ from byte 7 on".into())), 1);
    world.tick();
    assert_eq!(mode(&world), PrefixMode::Routed);
    assert_eq!(world.snapshot().index.chunks(), 0);
    world.pass(1000);
    let status = world.fleet.status(world.now);
    let status = &status.worker_sets["default/qwen"];
    assert_eq!((status.prefix_mode, status.prompt_fidelity), ("routed", Some(false)));
    assert!(status.routed_because.as_ref().unwrap().contains("byte 7"));
    assert!(world.fleet.metrics.text().contains(r#"kinference_prompt_fidelity{worker_set="default/qwen"} 0"#));
    world.assert_current();
}

#[test]
fn what_a_reset_or_a_removal_takes_is_taken_from_filters() {
    let mut world = world();
    world.answer_checks(&EQUAL);
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    world.events("default/qwen", "b", vec![stored(1, 8), stored(2, 8)]);
    world.tick();
    let all = held(&world, "b", 1, 8);
    world.feed("default/qwen", "a", FeedKind::Reset { reason: ResetReason::Restarted });
    world.tick();
    assert_eq!((held(&world, "a", 1, 8), held(&world, "b", 1, 8)), (0, all));
    world.events("default/qwen", "b", vec![KvEvent::Removed { hashes: vec![20_004] }]);
    world.tick();
    assert!((1..all).contains(&held(&world, "b", 1, 8)));
    world.configure(&(set("qwen", "a x", "") + &backend("main", "qwen", "")));
    assert_eq!(world.snapshot().index.chunks(), 0);
    let status = world.fleet.status(world.now);
    assert_eq!(status.worker_sets["default/qwen"].workers["a"].events.as_ref().unwrap().restarts, 1);
    world.assert_current();
}

#[test]
fn messages_of_an_old_subscription_are_void() {
    let mut world = world();
    world.answer_checks(&EQUAL);
    let old = world.fleet.subscriptions()[0].id;
    world.configure(&(set("qwen", "a=8001 b", "") + &backend("main", "qwen", "")));
    let kind = FeedKind::Events { events: vec![stored(1, 8)], skipped: Default::default() };
    world.input(Input::Feed(FeedMessage { worker_id: old, kind, sequence: None, engine_time: 0.0 }));
    world.tick();
    assert_eq!(world.snapshot().index.chunks(), 0);
}

#[test]
fn routed_prefixes_are_learned_from_filters_of_the_present_epoch_and_expire() {
    let mut world = world();
    world.connect(1);
    let a = world.worker("default/qwen", "a").id;
    let sent = |chunks: Vec<u64>| v1::report::Event::Started(v1::Started { chunks, ..Default::default() });
    world.report(1, 1, a, sent(vec![5, 6, 7]));
    world.tick();
    assert_eq!(world.snapshot().index.chunks(), 3);
    let stale = v1::Applied { epoch: 3, ..Default::default() };
    world.input(Input::Applied { stream: 1, applied: stale });
    world.report(1, 2, a, sent(vec![8]));
    world.tick();
    assert_eq!(world.snapshot().index.chunks(), 3, "the chunks of another epoch mean nothing");
    world.assert_current();
    world.pass(121_000);
    assert_eq!(world.snapshot().index.chunks(), 0);
    world.assert_current();
}

#[test]
fn the_grid_coarsens_before_the_budget_is_passed() {
    let tight = backend("main", "qwen", "").replace("maxBytes: 1Mi", "maxBytes: 64Ki");
    let mut world = World::with(&(set("qwen", "a", "") + &tight));
    world.ready("default/qwen", "10.0.0.1:8000");
    world.answer_checks(&EQUAL);
    world.tick();
    for seed in 0..150 {
        world.events("default/qwen", "a", vec![stored(seed, 30)]);
        world.tick();
    }
    let grid = world.snapshot().config.backend.chunk_bytes;
    assert!(grid > 16, "{grid}");
    assert!(world.snapshot().index.bytes() <= 64 << 10);
    assert!(held(&world, "a", 149, 30) > 0);
    let status = world.fleet.status(world.now);
    let index = &status.backends[BACKEND].prefix_index;
    assert_eq!((index.chunk_bytes, index.wanted_chunk_bytes), (grid, 16));
    world.assert_current();
}

#[test]
fn bytes_per_token_are_told_when_they_change_by_much_and_without_a_new_epoch() {
    let mut world = world();
    world.answer_checks(&EQUAL);
    world.tick();
    let told = |world: &World| world.snapshot().config.sets.values().next().unwrap().bytes_per_token();
    assert_eq!(told(&world), 4.0);
    world.events("default/qwen", "a", vec![stored(1, 20)]);
    world.pass(1200);
    let measured = told(&world);
    assert!(measured < 3.0, "{measured}");
    let epochs = world.epochs;
    let sequence = world.replica.position().1;
    world.events("default/qwen", "a", vec![stored(1, 20)]);
    world.pass(1200);
    assert_eq!(told(&world), measured);
    assert_eq!(world.epochs, epochs);
    assert!(world.replica.position().1 <= sequence + 12);
    world.assert_current();
}

#[derive(Debug, Clone)]
enum Act {
    Store(bool, u64, usize),
    Remove(bool, u64, u64),
    Reset(bool),
    Verdict(bool),
    Config(u8),
    Learn(bool, u64),
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (any::<bool>(), 0..6u64, 1..6usize).prop_map(|(a, seed, blocks)| Act::Store(a, seed, blocks)),
        (any::<bool>(), 0..6u64, 0..6u64).prop_map(|(a, seed, block)| Act::Remove(a, seed, block)),
        any::<bool>().prop_map(Act::Reset),
        any::<bool>().prop_map(Act::Verdict),
        (0..3u8).prop_map(Act::Config),
        (any::<bool>(), 1..50u64).prop_map(|(a, hash)| Act::Learn(a, hash)),
        Just(Act::Tick),
        Just(Act::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens in whatever order: every delta applies, and the filter that followed them all holds what one
    /// that connects now is given.
    #[test]
    fn following_deltas_gives_the_full_snapshot(acts in proptest::collection::vec(act(), 1..80)) {
        let mut world = world();
        world.connect(1);
        for act in acts {
            let name = |first: bool| if first { "a" } else { "b" };
            match act {
                Act::Store(a, seed, blocks) => world.events("default/qwen", name(a), vec![stored(seed, blocks)]),
                Act::Remove(a, seed, block) => {
                    let removed = KvEvent::Removed { hashes: vec![(seed + 1) * 10_000 + block] };
                    world.events("default/qwen", name(a), vec![removed]);
                }
                Act::Reset(a) => world.feed("default/qwen", name(a), FeedKind::Reset { reason: ResetReason::Restarted }),
                Act::Verdict(equal) => {
                    let verdict = if equal { EQUAL } else { Verdict::Different("x".into()) };
                    for address in ["10.0.0.1:8000", "10.0.0.2:8000"] {
                        world.scrape("default/qwen", address, Err(ScrapeError::Refused));
                        world.ready("default/qwen", address);
                    }
                    world.answer_checks(&verdict);
                }
                Act::Config(which) => {
                    let sets = ["a b", "a b c", "a=9000 b"][which as usize];
                    world.configure(&(set("qwen", sets, "") + &backend("main", "qwen", "")));
                }
                Act::Learn(a, hash) => {
                    let id = world.worker("default/qwen", name(a)).id;
                    world.report(1, hash, id, v1::report::Event::Started(v1::Started { chunks: vec![hash], ..Default::default() }));
                    let (epoch, sequence) = world.replica.position();
                    world.input(Input::Applied { stream: 1, applied: v1::Applied { epoch, sequence, ..Default::default() } });
                }
                Act::Tick => { world.tick(); }
            }
        }
        world.assert_current();
    }
}
