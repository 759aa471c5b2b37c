//! A process that answers under the address of another: nothing of what that one held may be claimed.

use super::*;

const A: &str = "10.0.0.1:8000";

fn world() -> World {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    world.ready("default/qwen", A);
    world.ready("default/qwen", "10.0.0.2:8000");
    world.tick();
    world.answer_checks(&EQUAL);
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    world.events("default/qwen", "b", vec![stored(2, 8)]);
    world.tick();
    world
}

/// The page of a process that started at another time, and computed other amounts.
fn process(started: Option<f64>, prompt_tokens: f64) -> EngineMetrics {
    let mut page = page(0.0, 0.0);
    page.started = started;
    page.ranks.get_mut(&0).unwrap().prompt_tokens = Some(prompt_tokens);
    page
}

/// Chunks that a worker is said to hold.
fn chunks(world: &World, name: &str) -> usize {
    let (page, bit) = kinference_routing::prefix::place(world.worker("default/qwen", name).id);
    let status = &world.fleet.status(world.now).worker_sets["default/qwen"];
    let index = &world.snapshot().index;
    // Both workers hold other prompts, so what the index has beside the other's is the worker's own.
    assert_eq!(status.prefix_mode, "events");
    let KvEvent::Stored(event) = stored(if name == "a" { 1 } else { 2 }, 8) else { panic!() };
    let text = tokenizer().tokens.as_ref().unwrap().concatenate(&event.token_ids).unwrap();
    let domain = &world.snapshot().config.sets.values().next().unwrap().wire.prefix_domain;
    let seed = kinference_routing::prefix::namespace_seed(domain, "", "");
    let mut chunks = kinference_routing::prefix::Chunks::new(&text, 16, seed);
    chunks.all().iter().filter(|hash| index.get(page, **hash).is_some_and(|entry| entry.workers & bit != 0)).count()
}

fn restarts(world: &World, name: &str) -> u64 {
    world.fleet.status(world.now).worker_sets["default/qwen"].workers[name].events.as_ref().unwrap().restarts
}

fn subscription(world: &World, name: &str) -> u32 {
    world.fleet.subscriptions().iter().find(|s| s.worker.name == name).unwrap().id
}

#[test]
fn a_process_that_started_later_holds_nothing_and_its_events_are_read_from_the_beginning() {
    let mut world = world();
    let held = chunks(&world, "a");
    assert!(held > 3);
    let (old, others) = (subscription(&world, "a"), subscription(&world, "b"));
    world.fleet.take_rewired();
    // So fast that no read failed: the worker was ready all the time.
    world.scrape("default/qwen", A, Ok(process(Some(1_700_000_060.0), 0.0)));
    world.tick();
    assert_eq!((chunks(&world, "a"), restarts(&world, "a")), (0, 1));
    assert_eq!(world.worker("default/qwen", "a").state, v1::WorkerState::Ready);
    assert!(chunks(&world, "b") > 3, "the others keep theirs");
    assert!(world.fleet.take_rewired(), "the feed is to be started anew");
    assert_ne!(subscription(&world, "a"), old);
    assert_eq!(subscription(&world, "b"), others);
    assert_eq!(world.fleet.checks(world.now).len(), 1, "it may run another version");
    // What the old process said may still be in the queue.
    let late = FeedKind::Events { events: vec![stored(1, 8)], skipped: Default::default() };
    world.input(Input::Feed(FeedMessage { worker_id: old, kind: late, sequence: None, engine_time: 0.0 }));
    world.tick();
    assert_eq!(chunks(&world, "a"), 0);
    // The replay.
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    world.tick();
    assert_eq!(chunks(&world, "a"), held);
    world.scrape("default/qwen", A, Ok(process(Some(1_700_000_060.0), 0.0)));
    world.tick();
    assert_eq!((chunks(&world, "a"), restarts(&world, "a")), (held, 1), "once");
    world.assert_current();
}

#[test]
fn a_counter_that_falls_tells_where_the_page_has_no_start() {
    let mut world = world();
    world.scrape("default/qwen", A, Ok(process(None, 400.0)));
    world.scrape("default/qwen", A, Ok(process(None, 400.0)));
    world.tick();
    assert!(chunks(&world, "a") > 3);
    world.scrape("default/qwen", A, Ok(process(None, 399.0)));
    world.tick();
    assert_eq!((chunks(&world, "a"), restarts(&world, "a")), (0, 1));
    world.assert_current();
}

#[test]
fn a_refused_connection_leaves_it_to_the_process_that_answers_next() {
    // The same process: its start says so.
    let mut world = world();
    world.scrape("default/qwen", A, Err(ScrapeError::Refused));
    world.tick();
    world.ready("default/qwen", A);
    world.tick();
    assert!(chunks(&world, "a") > 3);
    assert_eq!(restarts(&world, "a"), 0);
    // Nothing says so: what it held is forgotten in the delta that makes it ready again.
    world.scrape("default/qwen", A, Err(ScrapeError::Refused));
    world.tick();
    let sequence = world.replica.position().1;
    world.scrape("default/qwen", A, Ok(process(None, 100.0)));
    world.tick();
    assert_eq!(world.replica.position().1, sequence + 1);
    assert_eq!(world.worker("default/qwen", "a").state, v1::WorkerState::Ready);
    assert_eq!((chunks(&world, "a"), restarts(&world, "a")), (0, 1));
    world.assert_current();
}

#[test]
fn what_the_event_stream_noticed_first_is_not_forgotten_twice() {
    let mut world = world();
    world.feed("default/qwen", "a", FeedKind::Reset { reason: crate::events::ResetReason::Restarted });
    world.events("default/qwen", "a", vec![stored(1, 8)]);
    let before = subscription(&world, "a");
    world.scrape("default/qwen", A, Ok(process(Some(1_700_000_060.0), 0.0)));
    world.tick();
    assert!(chunks(&world, "a") > 3);
    assert_eq!((restarts(&world, "a"), subscription(&world, "a")), (1, before));
    world.scrape("default/qwen", A, Ok(process(Some(1_700_000_090.0), 0.0)));
    world.tick();
    assert_eq!((chunks(&world, "a"), restarts(&world, "a")), (0, 2));
}

#[test]
fn what_was_learned_from_routing_is_forgotten_too() {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    world.ready("default/qwen", A);
    world.tick();
    world.connect(1);
    let a = world.worker("default/qwen", "a").id;
    let started = v1::Started { chunks: vec![5, 6, 7], ..Default::default() };
    world.report(1, 1, a, v1::report::Event::Started(started));
    world.tick();
    assert_eq!(world.snapshot().index.chunks(), 3);
    world.scrape("default/qwen", A, Ok(process(Some(1_700_000_060.0), 0.0)));
    world.tick();
    assert_eq!(world.snapshot().index.chunks(), 0);
    world.assert_current();
}
