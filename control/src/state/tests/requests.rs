use kinference_protocol::v1::report::Event;

use super::*;

fn world() -> (World, u32) {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    world.ready("default/qwen", "10.0.0.1:8000");
    world.ready("default/qwen", "10.0.0.2:8000");
    world.tick();
    world.connect(1);
    world.connect(2);
    let a = world.worker("default/qwen", "a").id;
    (world, a)
}

fn started(prompt: u32, cached: u32) -> Event {
    Event::Started(v1::Started {
        tenant: "t".into(),
        model: "qwen-model".into(),
        prompt_tokens: prompt,
        cached_tokens: cached,
        predicted_ttft_ms: 100.0,
        ..Default::default()
    })
}

fn first(after_ms: u32) -> Event {
    Event::FirstToken(v1::FirstToken { after_ms, estimated: false })
}

fn finished(after_ms: u32) -> Event {
    Event::Finished(v1::Finished {
        status: 200,
        after_ms,
        prompt_tokens: Some(1000),
        cached_tokens: Some(384),
        completion_tokens: Some(30),
        ..Default::default()
    })
}

fn load(world: &mut World, name: &str) -> (u32, u32) {
    world.ready("default/qwen", "10.0.0.1:8000");
    world.ready("default/qwen", "10.0.0.2:8000");
    world.pass(120);
    let load = world.worker("default/qwen", name).load.unwrap();
    (load.pending_prefill_tokens, load.in_flight)
}

#[test]
fn what_all_filters_have_in_flight_is_told_to_each() {
    let (mut world, a) = world();
    world.report(1, 1, a, started(1000, 400));
    world.report(2, 1, a, started(500, 0));
    assert_eq!(load(&mut world, "a"), (1100, 2));
    assert_eq!(load(&mut world, "b"), (0, 0));
    world.report(1, 1, a, first(90));
    assert_eq!(load(&mut world, "a"), (500, 2));
    world.report(1, 1, a, finished(900));
    assert_eq!(load(&mut world, "a"), (500, 1));
    world.input(Input::StreamClosed { stream: 2 });
    assert_eq!(load(&mut world, "a"), (0, 0));
    world.assert_current();
}

#[test]
fn a_worker_that_flaps_never_counts_below_zero() {
    let (mut world, a) = world();
    world.report(1, 1, a, started(1000, 0));
    world.configure(&(set("qwen", "x=9999 b", "") + &backend("main", "qwen", "")));
    world.configure(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    let again = world.worker("default/qwen", "a").id;
    world.report(1, 1, a, first(50));
    world.report(1, 1, a, finished(60));
    world.report(1, 1, a, finished(60));
    world.report(1, 2, again, started(70, 0));
    assert_eq!(load(&mut world, "a"), (70, 1));
    world.report(1, 2, again, finished(10));
    assert_eq!(load(&mut world, "a"), (0, 0));
    world.assert_current();
}

#[test]
fn reports_of_unknown_streams_workers_and_requests_do_nothing() {
    let (mut world, a) = world();
    world.report(9, 1, a, started(1000, 0));
    world.report(1, 1, 4000, started(1000, 0));
    world.report(1, 77, a, first(10));
    world.report(1, 77, a, finished(10));
    let nothing = v1::Report { request: 5, worker: Some(a), ..Default::default() };
    world.input(Input::Reports { stream: 1, reports: v1::Reports { reports: vec![nothing], dropped: 3 } });
    assert_eq!(load(&mut world, "a"), (0, 0));
    assert!(world.fleet.metrics.text().contains("kinference_reports_dropped_total 3"));
}

#[test]
fn the_latency_model_is_learned_and_told() {
    let (mut world, a) = world();
    for request in 0..200u64 {
        let uncached = 200 + (request as u32 * 37) % 3000;
        world.report(1, request, a, started(uncached, 0));
        let ttft = 40 + uncached / 5;
        world.report(1, request, a, first(ttft));
        world.report(1, request, a, finished(ttft + 300));
    }
    world.pass(400);
    let model = world.worker("default/qwen", "a").latency;
    assert_eq!(model.samples, 200);
    assert!((model.ms_per_token - 0.2).abs() < 0.02, "{model:?}");
    assert!((model.base_ms - 40.0).abs() < 5.0, "{model:?}");
    assert_eq!(world.worker("default/qwen", "b").latency.samples, 0);
    world.assert_current();
}

#[test]
fn prediction_errors_and_classes_show_in_metrics() {
    let (mut world, a) = world();
    world.report(1, 1, a, started(1000, 400));
    world.report(1, 1, a, first(90));
    world.report(1, 1, a, finished(900));
    world.report(1, 2, a, started(1000, 400));
    world.report(1, 2, a, Event::Finished(v1::Finished { status: 503, ..Default::default() }));
    let text = world.fleet.metrics.text();
    for line in [
        r#"kinference_predicted_cached_tokens_error_sum{worker_set="default/qwen"} 16.0"#,
        r#"kinference_predicted_cached_tokens_error_count{worker_set="default/qwen"} 1"#,
        r#"kinference_predicted_ttft_error_ms_sum{worker_set="default/qwen"} 10.0"#,
        r#"kinference_requests_total{worker_set="default/qwen",kind="2xx"} 1"#,
        r#"kinference_requests_total{worker_set="default/qwen",kind="5xx"} 1"#,
        r#"kinference_reports_total{kind="started"} 2"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("qwen-model") && !text.contains(r#"tenant="t""#), "labels come from the configuration only");
}

#[test]
fn filters_show_in_status_with_what_they_hold_and_refused() {
    let (mut world, _) = world();
    let rejected = v1::Rejected { epoch: 1, sequence: 2, reason: "the index is over its budget".into(), resync: false };
    world.input(Input::Rejected { stream: 1, rejected });
    let status = world.fleet.status(world.now);
    assert_eq!(status.filters.len(), 2);
    assert_eq!(status.filters[0].last_rejection.as_deref(), Some("the index is over its budget"));
    assert_eq!(status.filters[1].epoch, world.replica.position().0);
    assert_eq!((status.backends[BACKEND].filters_connected, status.backends[BACKEND].filters_current), (2, 2));
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["workerSets"]["default/qwen"]["workers"]["a"]["state"], "ready");
    world.input(Input::StreamClosed { stream: 1 });
    assert_eq!(world.fleet.status(world.now).filters.len(), 1);
}
