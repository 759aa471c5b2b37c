//! Windowed signals of workers and pools, as filters have them.

use super::*;

const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";

/// In their order: queued max 2 s, queued newest, usage average 1 s; and a pool's queued min 2 s.
const RULES: &str = "
  - name: load
    require:
      workers:
      - {signal: QueuedRequests, max: '2', over: 2s, aggregate: Max}
      - {signal: QueuedRequests, max: '9'}
      - {signal: KvCacheUsage, below: '0.9', over: 1s, aggregate: Average}
  - name: pool
    when: {pools: [{name: pool-main, signal: RunningRequests, atLeast: '8', over: 2s, aggregate: Min}]}
    reject: {status: 429}
";

fn world() -> World {
    World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "") + &policy("house", RULES)))
}

fn figures(running: f64, queued: f64, usage: f64) -> EngineMetrics {
    let mut page = page(running, queued);
    page.ranks.get_mut(&0).unwrap().kv_usage = Some(usage);
    page
}

/// Values of a worker, by what they are.
fn signals(world: &World, name: &str) -> [Option<f32>; 4] {
    in_order(world, &world.worker("default/qwen", name).signals)
}

fn pool(world: &World) -> [Option<f32>; 4] {
    let id = world.snapshot().config.rules.pools[0].id;
    in_order(world, &world.snapshot().pools[&id])
}

/// Queued max 2 s, queued newest, usage average 1 s, running min 2 s.
fn in_order(world: &World, values: &[f32]) -> [Option<f32>; 4] {
    use v1::{Aggregate, Signal};
    let signals = &world.snapshot().config.rules.signals;
    assert_eq!(signals.len(), values.len());
    let wanted = [
        (Signal::QueuedRequests, 2000, Aggregate::Max),
        (Signal::QueuedRequests, 0, Aggregate::Last),
        (Signal::KvCacheUsage, 1000, Aggregate::Average),
        (Signal::RunningRequests, 2000, Aggregate::Min),
    ];
    wanted.map(|(signal, over_ms, aggregate)| {
        let wanted = v1::WindowedSignal { signal: signal.into(), over_ms, aggregate: aggregate.into() };
        let at = signals.iter().position(|signal| *signal == wanted).unwrap();
        (!values[at].is_nan()).then_some(values[at])
    })
}

#[test]
fn windows_are_exact_at_their_edges() {
    let mut world = world();
    assert_eq!(signals(&world, "a"), [None; 4]);
    assert_eq!(pool(&world), [None; 4]);
    world.now = 10_000;
    world.scrape("default/qwen", A, Ok(figures(3.0, 7.0, 0.2)));
    let peak = world.now;
    assert_eq!(peak, 10_001);
    for _ in 0..7 {
        world.pass(240);
        world.scrape("default/qwen", A, Ok(figures(5.0, 1.0, 0.4)));
    }
    world.pass(200);
    assert_eq!(signals(&world, "a"), [Some(7.0), Some(1.0), Some(0.4), Some(3.0)]);
    // The last tick at which the peak is inside of 2 s, and the first at which it is not.
    world.fleet.urgent = true;
    world.now = peak + 2000 - 20;
    world.tick();
    assert_eq!(world.now, peak + 2000);
    assert_eq!((signals(&world, "a")[0], signals(&world, "a")[3]), (Some(7.0), Some(3.0)));
    world.fleet.urgent = true;
    world.now = peak + 2001 - 20;
    world.tick();
    assert_eq!((signals(&world, "a")[0], signals(&world, "a")[3]), (Some(1.0), Some(5.0)));
    world.assert_current();
}

#[test]
fn averages_are_of_the_samples_within() {
    let mut world = world();
    for usage in [0.9, 0.1, 0.2, 0.3] {
        world.scrape("default/qwen", A, Ok(figures(0.0, 0.0, usage)));
        world.pass(380);
    }
    // 0.9 is 1.5 s old, 0.1 is 1.1 s old.
    assert_eq!(signals(&world, "a")[2], Some(0.25));
}

#[test]
fn what_the_engine_does_not_say_or_said_too_long_ago_is_missing() {
    let mut world = world();
    world.scrape("default/qwen", A, Ok(figures(1.0, 2.0, 0.5)));
    world.pass(200);
    let mut partial = figures(1.0, 2.0, 0.5);
    partial.ranks.get_mut(&0).unwrap().kv_usage = None;
    world.scrape("default/qwen", A, Ok(partial));
    world.pass(100);
    assert_eq!(signals(&world, "a"), [Some(2.0), Some(2.0), None, Some(1.0)]);
    world.pass(1500);
    assert_eq!(signals(&world, "a"), [None; 4], "too old, though the window reaches back to it");
    assert_eq!(pool(&world), [None; 4]);
    world.scrape("default/qwen", A, Ok(figures(0.0, 0.0, 0.1)));
    world.pass(100);
    assert_eq!(signals(&world, "a")[0], Some(2.0), "the history stayed");
    world.scrape("default/qwen", A, Err(ScrapeError::Refused));
    world.tick();
    assert_eq!(signals(&world, "a"), [None; 4], "a worker that is gone");
    world.assert_current();
}

#[test]
fn a_worker_that_comes_and_goes_starts_without_history() {
    let all = set("qwen", "a b", "") + &backend("main", "qwen", "") + &policy("house", RULES);
    let mut world = World::with(&all);
    world.scrape("default/qwen", A, Ok(figures(3.0, 7.0, 0.2)));
    world.scrape("default/qwen", B, Ok(figures(1.0, 1.0, 0.4)));
    world.pass(100);
    assert_eq!(pool(&world), [Some(4.0), Some(4.0), Some(0.3), Some(2.0)]);
    world.configure(&all.replace("{name: a, address: 10.0.0.1, port: 8000}, ", ""));
    assert_eq!(pool(&world), [Some(1.0), Some(1.0), Some(0.4), Some(1.0)]);
    world.configure(&all);
    assert_eq!(signals(&world, "a"), [None; 4]);
    world.scrape("default/qwen", A, Ok(figures(0.0, 0.0, 0.0)));
    world.pass(100);
    assert_eq!(signals(&world, "a"), [Some(0.0), Some(0.0), Some(0.0), Some(0.0)]);
    // A restarted process has no past either.
    world.scrape("default/qwen", B, Ok(EngineMetrics { started: Some(1_800_000_000.0), ..figures(0.0, 0.0, 0.1) }));
    world.pass(100);
    assert_eq!(signals(&world, "b"), [Some(0.0), Some(0.0), Some(0.1), Some(0.0)]);
    world.assert_current();
}

#[test]
fn pools_count_their_ready_workers_only() {
    let mut world = world();
    world.scrape("default/qwen", A, Ok(figures(3.0, 7.0, 0.2)));
    world.pass(100);
    assert_eq!(pool(&world), [Some(7.0), Some(7.0), Some(0.2), Some(3.0)], "b is unknown");
    let mut asleep = figures(0.0, 0.0, 0.0);
    asleep.ranks.get_mut(&0).unwrap().awake = Some(false);
    world.scrape("default/qwen", B, Ok(asleep));
    world.pass(100);
    assert_eq!(pool(&world)[0], Some(7.0), "b sleeps");
    let status = world.fleet.status(world.now);
    let pool = &status.backends[BACKEND].pools["default/pool-main"];
    assert_eq!((pool.workers.total, pool.workers.ready), (2, 1));
    assert_eq!((pool.queued_requests, pool.running_requests, pool.kv_cache_usage), (Some(7.0), Some(3.0), Some(0.2)));
    let max = pool.signals.iter().find(|signal| signal.aggregate == "Max").unwrap();
    assert_eq!((max.signal, max.over.as_deref(), max.value), ("QueuedRequests", Some("2s"), Some(7.0)));
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["backends"][BACKEND]["pools"]["default/pool-main"]["workers"]["ready"], 1);
}

#[test]
fn what_did_not_change_is_not_told_again() {
    let mut world = world();
    world.scrape("default/qwen", A, Ok(figures(1.0, 2.0, 0.5)));
    world.pass(1000);
    let pushes: usize = (0..5)
        .map(|_| {
            world.scrape("default/qwen", A, Ok(figures(1.0, 2.0, 0.5)));
            (0..10).map(|_| world.tick().len()).sum::<usize>()
        })
        .sum();
    assert_eq!(pushes, 0, "missing signals of b are no news, nor are the same figures of a");
    let sequence = world.replica.position().1;
    world.scrape("default/qwen", A, Ok(figures(4.0, 2.0, 0.5)));
    world.pass(400);
    assert_eq!(world.replica.position().1, sequence + 1);
}

#[test]
fn other_signals_come_with_the_configuration_that_asks_for_them() {
    let base = set("qwen", "a b", "") + &backend("main", "qwen", "");
    let mut world = World::with(&(base.clone() + &policy("house", RULES)));
    world.scrape("default/qwen", A, Ok(figures(3.0, 7.0, 0.2)));
    world.pass(200);
    let other = "
  - name: running
    require: {workers: [{signal: RunningRequests, max: '4'}]}
";
    let sequence = world.replica.position().1;
    world.configure(&(base.clone() + &policy("house", other)));
    assert_eq!(world.replica.position().1, sequence + 1, "one delta");
    assert_eq!(world.worker("default/qwen", "a").signals, [3.0]);
    assert!(world.worker("default/qwen", "b").signals[0].is_nan());
    assert_eq!(world.snapshot().pools.values().next().unwrap(), &[3.0]);
    world.assert_current();
    world.configure(&base);
    assert!(world.worker("default/qwen", "a").signals.is_empty(), "no rule costs nothing");
    world.configure(&(base + &policy("house", other)));
    assert_eq!(world.worker("default/qwen", "a").signals, [3.0]);
    assert_eq!(world.epochs, 1);
    world.assert_current();
}

#[test]
fn other_signals_that_do_not_fit_into_one_delta_begin_an_epoch() {
    let long = format!("chatTemplate: \"{{{{ messages[0].content }}}}{}\"", "x".repeat(1 << 20));
    let sets = set("qwen", "a b", "")
        .replace("tokenizer: {path: /models/qwen}}", &format!("tokenizer: {{path: /models/qwen}}, {long}}}"));
    let base = sets + &backend("main", "qwen", "");
    let mut world = World::with(&(base.clone() + &policy("house", RULES)));
    world.scrape("default/qwen", A, Ok(figures(3.0, 7.0, 0.2)));
    world.pass(200);
    assert_eq!((world.epochs, signals(&world, "a")[0]), (1, Some(7.0)));
    let other = "
  - name: running
    require: {workers: [{signal: RunningRequests, max: '4'}]}
";
    world.configure(&(base + &policy("house", other)));
    assert_eq!(world.epochs, 2, "no filter sees the new rules with the old values");
    assert_eq!(world.worker("default/qwen", "a").signals, [3.0]);
    world.assert_current();
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    /// Whatever workers do: a filter that followed has what one that connects now is given, and every value is the one
    /// that the samples of the window give.
    #[test]
    fn filters_have_what_the_samples_say(steps in proptest::collection::vec((0u8..4, 1u64..40, 0u32..50), 1..60)) {
        let mut world = world();
        let mut samples: Vec<(u64, f32)> = Vec::new();
        for (what, ticks, figure) in steps {
            match what {
                0 => world.scrape("default/qwen", B, Ok(figures(f64::from(figure), 1.0, 0.1))),
                1 => world.scrape("default/qwen", A, Err(ScrapeError::Timeout)),
                _ => {
                    world.scrape("default/qwen", A, Ok(figures(0.0, f64::from(figure), 0.1)));
                    // A scrape in the tests ends 1 ms after it began, and arrives then.
                    samples.push((world.now, figure as f32));
                }
            }
            world.pass(ticks * 20);
        }
        world.fleet.urgent = true;
        world.tick();
        let seen = signals(&world, "a");
        let inside = samples.iter().filter(|(at, _)| at + 2000 >= world.now).map(|(_, value)| *value);
        if let [max, Some(last), ..] = seen {
            proptest::prop_assert_eq!(max, inside.reduce(f32::max));
            proptest::prop_assert_eq!(last, samples.last().unwrap().1);
        } else {
            proptest::prop_assert!(!world.worker("default/qwen", "a").load.is_some_and(|load| load.known));
        }
        world.assert_current();
    }
}
