use kinference_api::Kind;
use kinference_protocol::v1::PrefixMode;

use super::*;

#[test]
fn a_bad_configuration_at_the_start_is_waited_out() {
    let mut world = World::new();
    assert!(world.fleet.readiness().is_err());
    assert!(world.tick().is_empty());
    world.input(Input::Config(Err(vec!["a.yaml:3: spec.pools: no such pool".to_owned()].into())));
    assert!(world.tick().is_empty());
    assert_eq!(world.fleet.readiness(), Err("a.yaml:3: spec.pools: no such pool".into()));
    assert_eq!(world.fleet.endpoints(), None, "no endpoint is taken away from a running Envoy");
    world.configure(&(set("qwen", "a", "") + &backend("main", "qwen", "")));
    assert_eq!(world.fleet.readiness(), Ok(()));
    assert_eq!(world.snapshot().workers.len(), 1);
}

#[test]
fn a_backend_that_exists_and_never_was_in_force_is_known_as_such() {
    let mut plan = plan(&(set("qwen", "a", "") + &backend("main", "qwen", "")));
    for (name, standing) in
        [("main", Standing::InForce), ("broken", Standing::NotInForce), ("kept", Standing::LastGood)]
    {
        let id = (Kind::GatewayBackend, key(&format!("default/{name}")));
        plan.faults.outcomes.insert(id, Outcome { standing, ..Outcome::default() });
    }
    let mut world = World::new();
    world.input(Input::Config(Ok(plan)));
    assert_eq!(world.fleet.not_in_force(), ["default/broken".to_owned()].into());
}

#[test]
fn a_bad_edit_keeps_the_last_good_state_and_says_so() {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    let before = world.replica.position();
    world.input(Input::Config(Err(vec!["broken".to_owned()].into())));
    world.tick();
    assert_eq!(world.replica.position(), before);
    assert_eq!(world.fleet.readiness(), Ok(()));
    assert_eq!(world.fleet.endpoints().unwrap()[BACKEND].workers.len(), 2);
    let status = world.fleet.status(world.now);
    assert!(!status.config.valid && status.config.in_force);
    assert_eq!(status.config.problems, ["broken"]);
    assert!(world.fleet.metrics.text().contains("kinference_config_valid 0"));
    world.configure(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    assert!(world.fleet.status(world.now).config.valid);
    assert!(world.fleet.metrics.text().contains("kinference_config_valid 1"));
    assert_eq!(world.epochs, 1, "the same configuration is no news");
}

#[test]
fn worker_sets_come_and_go_within_an_epoch() {
    let qwen = set("qwen", "a b", "");
    let mut world = World::with(&(qwen.clone() + &backend("main", "qwen", "")));
    world.ready("default/qwen", "10.0.0.1:8000");
    let a = world.worker("default/qwen", "a").id;
    world.configure(&(qwen.clone() + &set("glm", "a=9000", "") + &backend("main", "qwen, glm", "")));
    assert_eq!(world.snapshot().config.models.len(), 2);
    assert_eq!(world.worker("default/qwen", "a").id, a);
    assert_eq!(world.worker("default/qwen", "a").state, v1::WorkerState::Ready, "what is known stays known");
    assert_ne!(world.worker("default/glm", "a").id / 64, a / 64, "pages belong to one set each");
    world.assert_current();
    world.configure(&(qwen + &backend("main", "qwen", "")));
    assert_eq!(world.snapshot().config.models.len(), 1);
    assert_eq!(world.snapshot().workers.len(), 2);
    assert_eq!(world.epochs, 1);
    world.assert_current();
}

#[test]
fn workers_come_and_go_and_ids_are_not_used_again_at_once() {
    let mut world = World::with(&(set("qwen", "a b", "") + &backend("main", "qwen", "")));
    let (a, b) = (world.worker("default/qwen", "a").id, world.worker("default/qwen", "b").id);
    // "a" goes, and "c" takes its address.
    world.configure(&(set("qwen", "c b", "") + &backend("main", "qwen", "")));
    let c = world.worker("default/qwen", "c").id;
    assert!(c != a && c != b);
    assert_eq!(world.worker("default/qwen", "b").id, b);
    world.configure(&(set("qwen", "c b d", "") + &backend("main", "qwen", "")));
    assert_eq!(world.worker("default/qwen", "d").id, a, "filters were told that a is gone");
    // Another address is another worker.
    world.configure(&(set("qwen", "c=8001 b d", "") + &backend("main", "qwen", "")));
    assert_ne!(world.worker("default/qwen", "c").id, c);
    assert_eq!(world.worker("default/qwen", "c").address, "10.0.0.1:8001");
    world.assert_current();
}

#[test]
fn another_grid_is_another_epoch_and_follows_events_anew() {
    let qwen = set("qwen", "a", "");
    let mut world = World::with(&(qwen.clone() + &backend("main", "qwen", "")));
    let before = world.fleet.subscriptions();
    world.configure(&(qwen.clone() + &backend("main", "qwen", ", debugHeaders: true")));
    assert_eq!(world.epochs, 1);
    assert!(world.snapshot().config.backend.debug_headers);
    assert_eq!(world.fleet.subscriptions(), before);
    let coarser = backend("main", "qwen", "").replace("chunkBytes: 16", "chunkBytes: 64");
    world.configure(&(qwen + &coarser));
    assert_eq!(world.epochs, 2);
    assert_eq!(world.snapshot().config.backend.chunk_bytes, 64);
    assert_ne!(world.fleet.subscriptions(), before);
}

#[test]
fn backends_see_their_own_worker_sets() {
    let mut world = World::with(
        &(set("qwen", "a", "")
            + &set("glm", "a=9000", "")
            + &backend("main", "qwen", "")
            + &backend("other", "qwen, glm", "")),
    );
    assert_eq!(world.snapshot().workers.len(), 1);
    let endpoints = world.fleet.endpoints().unwrap();
    assert_eq!((endpoints[BACKEND].workers.len(), endpoints["default/other"].workers.len()), (1, 2));
    let targets = world.fleet.targets();
    assert_eq!(targets.len(), 2, "a set of two backends is scraped once");
    world.configure(&(set("qwen", "a", "") + &backend("main", "qwen", "")));
    assert_eq!(world.fleet.backend_names().count(), 1);
    assert!(world.fleet.full(&key("default/other")).is_none());
    world.assert_current();
}

#[test]
fn a_tokenizer_that_cannot_be_read_means_routed_mode_and_no_worse() {
    let yaml = set("qwen", "a", "") + &backend("main", "qwen", "");
    let mut broken = plan(&yaml);
    broken.models.insert(key("default/qwen"), Err("/models/qwen/tokenizer.json: no such file".into()));
    let mut world = World::new();
    world.input(Input::Config(Ok(broken)));
    world.tick();
    world.ready("default/qwen", "10.0.0.1:8000");
    assert!(world.fleet.checks(world.now).is_empty());
    assert!(world.fleet.subscriptions().is_empty(), "events without vocabulary say nothing");
    let status = world.fleet.status(world.now);
    let status = &status.worker_sets["default/qwen"];
    assert_eq!((status.prefix_mode, status.prompt_fidelity), ("routed", None));
    assert!(status.tokenizer_problem.as_ref().unwrap().contains("no such file"));
    // It appears later.
    world.configure(&yaml);
    assert_eq!(world.fleet.subscriptions().len(), 1);
    assert_eq!(world.answer_checks(&EQUAL), 1);
    world.tick();
    assert_eq!(world.snapshot().config.sets.values().next().unwrap().wire.prefix_mode(), PrefixMode::Events);
}

#[test]
fn a_template_that_does_not_compile_is_kept_from_filters() {
    let yaml = set("qwen", "a", "").replace("spec:\n", "spec:\n  chatTemplateX\n");
    let yaml = yaml.replace("  chatTemplateX\n", "").replace(
        "tokenizer: {path: /models/qwen}}",
        "tokenizer: {path: /models/qwen}, chatTemplate: \"{% for m in messages %}\"}",
    );
    let mut world = World::with(&(yaml + &backend("main", "qwen", "")));
    assert_eq!(world.snapshot().config.sets.values().next().unwrap().wire.template, None);
    let status = world.fleet.status(world.now);
    let why = status.worker_sets["default/qwen"].routed_because.as_ref().unwrap();
    assert!(why.contains("does not compile"), "{why}");
    world.assert_current();
}
