//! What people are shown: snapshots without credentials, and what is said of each resource.

use kinference_api::Kind;

use super::*;
use crate::conditions::{Finding, reasons};
use crate::credential::{Credential, Secret};

const TOKEN: &[u8] = b"sk-secret";

fn contains(full: &Full, text: &[u8]) -> bool {
    full.parts.iter().any(|part| part.windows(text.len()).any(|window| window == text))
}

#[test]
fn filters_get_credentials_and_people_do_not() {
    let provider = "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {name: cloud}
spec:
  api: OpenAI
  endpoint: https://cloud.example
  models: [{name: m}]
  credentials: {secretRef: {name: cloud}}
";
    let backend = backend("main", "qwen", ", providers: [{name: cloud}]");
    let mut plan = plan(&(set("qwen", "a", "") + &backend + provider));
    let credential = Credential { token: Secret::new("sk-secret".into()) };
    plan.credentials.insert(key("cloud"), Ok(credential));
    let mut world = World::new();
    world.input(Input::Config(Ok(plan)));
    world.tick();
    let told = world.fleet.full(&key("main")).unwrap();
    assert!(contains(&told, b"cloud") && contains(&told, TOKEN), "the test would prove nothing");
    for shown in [world.fleet.full_to_show(None), world.fleet.full_to_show(Some(&key("main")))] {
        let shown = shown.unwrap();
        assert_eq!((shown.epoch, shown.sequence), (told.epoch, told.sequence));
        assert!(contains(&shown, b"cloud") && !contains(&shown, TOKEN));
    }
    let status = serde_json::to_string(&world.fleet.status(world.now)).unwrap();
    assert!(status.contains("cloud") && !status.contains("sk-secret"));
}

#[test]
fn a_backend_that_is_not_there_is_named_with_those_that_are() {
    let two = set("qwen", "a", "") + &backend("main", "qwen", "") + &backend("other", "qwen", "");
    let world = World::with(&two);
    let error = world.fleet.full_to_show(None).unwrap_err().to_string();
    assert_eq!(error, "there are several GatewayBackends; name one of default/main, default/other");
    let error = world.fleet.full_to_show(Some(&key("mine"))).unwrap_err().to_string();
    assert_eq!(error, "there is no GatewayBackend default/mine; there is default/main, default/other");
    let error = World::new().fleet.full_to_show(None).unwrap_err();
    assert_eq!(error, NoSnapshot::NotYet);
}

#[test]
fn a_bad_edit_of_one_resource_leaves_what_is_said_of_the_others() {
    let mut plan = plan(
        &(set("qwen", "a", "")
            + &backend("main", "qwen", "")
            + &policy("house", "  - {name: a, require: {locality: Local}}\n")),
    );
    let ids = [(Kind::InferencePolicy, key("house")), (Kind::InferenceWorkerSet, key("qwen"))];
    let in_force = Outcome { standing: Standing::InForce, ..Outcome::default() };
    plan.faults.outcomes = ids.clone().map(|id| (id, in_force.clone())).into();
    let mut world = World::new();
    world.input(Input::Config(Ok(plan)));
    world.tick();
    let said = |world: &World, id: &(Kind, ObjectKey)| -> Vec<Finding> {
        world.fleet.assessments(world.now)[id].conditions.clone()
    };
    let before = said(&world, &ids[1]);
    assert_eq!(
        said(&world, &ids[0]).iter().map(|c| c.reason).collect::<Vec<_>>(),
        [reasons::VALID, reasons::RULES_IN_FORCE]
    );

    let problem = "rules.yaml:4: spec.rules[0].when: unknown field".to_owned();
    let bad = Outcome { problems: vec![problem.clone()], ..Outcome::default() };
    let faults = Faults { problems: vec![problem], outcomes: [(ids[0].clone(), bad)].into() };
    world.input(Input::Config(Err(faults)));
    assert_eq!(
        said(&world, &ids[0]).iter().map(|c| c.reason).collect::<Vec<_>>(),
        [reasons::INVALID, reasons::LAST_GOOD_IN_FORCE]
    );
    assert_eq!(said(&world, &ids[1]), before);
}
