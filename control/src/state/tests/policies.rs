//! Policies: what is in force, and what is said of them.

use kinference_api::Kind;

use super::*;

const BATCH: &str = "
  - name: batch-on-idle
    when: {tags: {any: [batch]}}
    require: {workers: [{signal: KvCacheUsage, below: '0.7'}]}
  - name: stays-local
    require: {locality: Local}
";

fn base() -> String {
    let tenancy = ", tenancy: {identify: [{header: {name: x-tenant}}], unidentified: Allow, tenants: [{name: research}, {name: web}]}";
    set("qwen", "a", "") + &backend("main", "qwen", tenancy)
}

#[test]
fn a_policy_that_does_not_compile_leaves_the_last_good_ones_in_force() {
    let mut world = World::with(&(base() + &policy("house", BATCH)));
    let rules = |world: &World| world.snapshot().config.rules.list.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    let names = ["house/batch-on-idle", "house/stays-local"];
    assert_eq!(rules(&world), names);
    let position = world.replica.position();
    let of_house = vec!["a.yaml:9: spec.rules[0].when: nonsense".to_owned()];
    let of_new = vec!["b.yaml:3: spec.rules: nothing".to_owned()];
    let outcome = |name: &str, problems: &[String]| {
        let outcome = Outcome { problems: problems.to_vec(), ..Outcome::default() };
        ((Kind::InferencePolicy, key(name)), outcome)
    };
    let faults = Faults {
        problems: of_house.iter().chain(&of_new).cloned().collect(),
        outcomes: Outcomes::from([outcome("house", &of_house), outcome("new", &of_new)]),
    };
    world.input(Input::Config(Err(faults)));
    world.pass(1000);
    assert_eq!((rules(&world).as_slice(), world.replica.position()), (names.map(str::to_owned).as_slice(), position));
    let status = world.fleet.status(world.now);
    assert_eq!(status.backends[BACKEND].rules, names);
    let house = &status.policies["default/house"];
    assert!(house.in_force);
    assert_eq!((&house.problems, &house.backends), (&of_house, &vec![BACKEND.to_owned()]));
    assert_eq!(house.rules, ["batch-on-idle", "stays-local"]);
    let new = &status.policies["default/new"];
    assert!(!new.in_force && new.rules.is_empty());
    assert_eq!(new.problems, of_new);
    assert!(world.fleet.metrics.text().contains(r#"kinference_rules_in_force{backend="default/main"} 2"#));
    // Mended.
    world.configure(&(base() + &policy("house", BATCH)));
    let status = world.fleet.status(world.now);
    assert_eq!(status.policies.keys().collect::<Vec<_>>(), ["default/house"]);
    assert!(status.policies["default/house"].problems.is_empty());
}

#[test]
fn a_policy_without_a_backend_is_not_in_force() {
    let elsewhere = policy("house", BATCH).replace("{name: house}", "{name: house, namespace: team}");
    let mut lonely = plan(&(base() + &elsewhere));
    lonely.policies.get_mut(&key("team/house")).unwrap().warnings.push("it is for no gateway backend".into());
    lonely.warnings.push("x.yaml:1: it is for no gateway backend".into());
    let mut world = World::new();
    world.input(Input::Config(Ok(lonely)));
    world.tick();
    let status = world.fleet.status(world.now);
    let house = &status.policies["team/house"];
    assert!(!house.in_force && house.rules.is_empty() && house.problems.is_empty());
    assert_eq!(house.warnings.len(), 1);
    assert_eq!(status.config.warnings.len(), 1);
    assert!(status.config.valid && status.backends[BACKEND].rules.is_empty());
}

#[test]
fn requests_are_counted_for_the_tenants_of_the_configuration_only() {
    let mut world = World::with(&base());
    world.ready("default/qwen", "10.0.0.1:8000");
    world.tick();
    world.connect(1);
    let a = world.worker("default/qwen", "a").id;
    let started =
        |tenant: &str| v1::report::Event::Started(v1::Started { tenant: tenant.into(), ..Default::default() });
    for (request, tenant) in ["research", "mallory", "research", "", "anonymous"].into_iter().enumerate() {
        world.report(1, request as u64, a, started(tenant));
    }
    // Sent to a provider.
    let report = v1::Report { request: 9, event: Some(started("web")), ..Default::default() };
    world.input(Input::Reports { stream: 1, reports: v1::Reports { reports: vec![report], dropped: 0 } });
    let count = |world: &World, tenant: &str| {
        let text = world.fleet.metrics.text();
        let line = format!(r#"kinference_tenant_requests_total{{backend="default/main",tenant="{tenant}"}} "#);
        text.lines().find_map(|text| text.strip_prefix(&line)?.parse::<u64>().ok())
    };
    let counts = ["research", "web", "other", "mallory"].map(|tenant| count(&world, tenant));
    assert_eq!(counts, [Some(2), Some(1), Some(3), None]);
    world.configure(&base().replace(", {name: web}", ""));
    assert_eq!((count(&world, "web"), count(&world, "research")), (None, Some(2)));
}
