//! Resources in, what takes force out.

use std::path::PathBuf;

use kinference_api::source::{SourceFile, examine_files};

use super::*;

mod restarts;

const LOCAL: &str = "{name: local, require: {locality: Local}}";
const BATCH: &str = "{name: batch, when: {tags: {any: [batch]}}, reject: {status: 429}}";
/// Two bounds where one is allowed.
const WRONG: &str = "{name: wrong, require: {workers: [{signal: QueuedRequests, max: '2', below: '3'}]}}";
/// A provider that does not exist, and that no gateway backend lists.
const DANGLING: &str = "{name: dangling, fallback: [{providers: [nowhere]}]}";
const CLOUD: &str = "{name: cloud, fallback: [{providers: [cloud]}]}";

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

fn set(name: &str, port: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: {name}}}
spec:
  model: {{name: {name}, tokenizer: {{path: /models/{name}}}}}
  workers: {{static: [{{name: a, address: 10.0.0.1, port: {port}}}]}}
"
    )
}

fn backend(name: &str, sets: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: pool-{name}}}
spec: {{workerSets: {{names: [{sets}]}}}}
---
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: {name}}}
spec: {{pools: [{{name: pool-{name}}}], tags: {{header: x-tags}}}}
"
    )
}

/// The same, with a provider.
fn with_cloud(backend: &str) -> String {
    backend.replace("}], tags:", "}], providers: [{name: cloud}], tags:")
}

fn provider(endpoint: &str) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {{name: cloud}}
spec: {{api: OpenAI, endpoint: '{endpoint}', models: [{{name: qwen}}]}}
"
    )
}

fn policy(name: &str, backends: &str, rules: &[&str]) -> String {
    format!(
        "---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: {name}}}
spec: {{{backends} rules: [{}]}}
",
        rules.join(", ")
    )
}

/// What a cluster would hold: all that can be read, each with its generation.
fn read(yaml: &[String], generation: i64) -> Read {
    let file = SourceFile { path: PathBuf::from("cluster.yaml"), content: yaml.concat().into_bytes() };
    let resources = examine_files(vec![file]).resources;
    let generations = ids(&resources).into_iter().map(|id| (id, generation)).collect();
    Read { resources, remarks: Vec::new(), generations }
}

/// As `read`, with a resource that is there and cannot be read.
fn with_unreadable(mut read: Read, kind: Kind, name: &str) -> Read {
    let id = (kind, key(name));
    read.generations.insert(id.clone(), 9);
    let text = "spec: nonsense".to_owned();
    read.remarks.push(Remark { resource: Some(id), severity: Severity::Error, text, has_file: false });
    read
}

fn rules(plan: &Plan, backend: &str) -> Vec<String> {
    let fleet = plan.fleets.iter().find(|fleet| fleet.backend == key(backend)).expect("no such backend");
    fleet.rules.iter().map(|rule| rule.name.clone()).collect()
}

/// "model:port" of each worker set that the backend serves.
fn sets(plan: &Plan, backend: &str) -> Vec<String> {
    let fleet = plan.fleets.iter().find(|fleet| fleet.backend == key(backend)).expect("no such backend");
    let port = |set: &compile::WorkerSetSpec| match &set.workers {
        compile::WorkersSpec::Static(list) => list[0].port,
        compile::WorkersSpec::Selector { .. } => panic!("no list"),
    };
    fleet.worker_sets.iter().map(|set| format!("{}:{}", set.model, port(set))).collect()
}

fn outcome<'p>(plan: &'p Plan, kind: Kind, name: &str) -> &'p Outcome {
    &plan.faults.outcomes[&(kind, key(name))]
}

#[test]
fn a_worker_set_that_is_wrong_keeps_its_last_good_version_and_holds_up_no_other() {
    let mut keeper = Keeper::default();
    let main = backend("main", "qwen, glm");
    let plan = keeper.judge(read(&[set("qwen", "8000"), set("glm", "8000"), main.clone()], 1)).unwrap();
    assert!(plan.faults.problems.is_empty(), "{:?}", plan.faults);
    assert_eq!(outcome(&plan, Kind::InferenceWorkerSet, "qwen").standing, Standing::InForce);
    let plan = keeper.judge(read(&[set("qwen", "0"), set("glm", "9000"), main.clone()], 2)).unwrap();
    assert_eq!(sets(&plan, "main"), ["glm:9000", "qwen:8000"]);
    let qwen = outcome(&plan, Kind::InferenceWorkerSet, "qwen");
    assert_eq!((qwen.generation, qwen.standing), (Some(2), Standing::LastGood));
    assert!(qwen.problems[0].starts_with("spec.workers.static[0].port: "), "{qwen:?}");
    assert_eq!(plan.faults.problems, [format!("InferenceWorkerSet default/qwen: {}", qwen.problems[0])]);
    // One that cannot be read at all is no different, and one that never was good is left out.
    let unread = with_unreadable(read(&[set("glm", "9000"), main.clone()], 3), Kind::InferenceWorkerSet, "qwen");
    let plan = keeper.judge(unread.clone()).unwrap();
    assert_eq!(sets(&plan, "main"), ["glm:9000", "qwen:8000"]);
    let plan = Keeper::default().judge(unread).unwrap();
    assert_eq!(sets(&plan, "main"), ["glm:9000"]);
    assert_eq!(outcome(&plan, Kind::InferenceWorkerSet, "qwen").standing, Standing::NotInForce);
    assert!(outcome(&plan, Kind::InferencePool, "pool-main").problems.is_empty(), "the set is there, and says why");
    // One that is deleted goes, whatever it was.
    let plan = keeper.judge(read(&[set("glm", "9000"), main], 4)).unwrap();
    assert_eq!(sets(&plan, "main"), ["glm:9000"]);
    let pool = outcome(&plan, Kind::InferencePool, "pool-main");
    assert!(pool.problems[0].contains("no InferenceWorkerSet `qwen`"), "{pool:?}");
    assert_eq!(pool.standing, Standing::InForce, "it is used without what is not there");
}

#[test]
fn a_policy_that_is_wrong_keeps_the_last_good_ones_while_workers_come_and_go() {
    let mut keeper = Keeper::default();
    let main = backend("main", "qwen");
    let good = [policy("house", "", &[LOCAL]), policy("batch", "", &[BATCH])].concat();
    let plan = keeper.judge(read(&[set("qwen", "8000"), main.clone(), good], 1)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/batch", "house/local"]);
    // "house" is wrong, "batch" has another rule and "new" is new: none of it takes force; the workers do.
    let edited = [policy("house", "", &[WRONG]), policy("batch", "", &[LOCAL]), policy("new", "", &[BATCH])].concat();
    let plan = keeper.judge(read(&[set("qwen", "9000"), main.clone(), edited], 2)).unwrap();
    assert_eq!(
        (rules(&plan, "main"), sets(&plan, "main")),
        (vec!["batch/batch".into(), "house/local".into()], vec!["qwen:9000".into()])
    );
    let house = outcome(&plan, Kind::InferencePolicy, "house");
    assert_eq!((house.generation, house.standing, house.problems.len()), (Some(2), Standing::LastGood, 1));
    for (name, standing) in [("batch", Standing::LastGood), ("new", Standing::NotInForce)] {
        let held = outcome(&plan, Kind::InferencePolicy, name);
        assert_eq!((held.standing, held.problems.len()), (standing, 0), "{name}");
        assert!(held.held.as_ref().unwrap().contains("until these are mended: house"), "{held:?}");
    }
    assert_eq!(plan.policies.keys().collect::<Vec<_>>(), [&key("batch"), &key("house")]);
    // Without the wrong one, the others take force.
    let rest = [policy("batch", "", &[LOCAL]), policy("new", "", &[BATCH])].concat();
    let plan = keeper.judge(read(&[set("qwen", "9000"), main, rest], 3)).unwrap();
    assert_eq!(rules(&plan, "main"), ["batch/local", "new/batch"]);
    assert!(plan.faults.problems.is_empty());
    assert_eq!(outcome(&plan, Kind::InferencePolicy, "new").standing, Standing::InForce);
}

#[test]
fn only_backends_that_a_wrong_policy_is_for_keep_their_policies() {
    let mut keeper = Keeper::default();
    let base = || vec![set("qwen", "8000"), backend("main", "qwen"), backend("other", "qwen")];
    let for_main = "gatewayBackends: [{name: main}],";
    let for_other = "gatewayBackends: [{name: other}],";
    let judged = |keeper: &mut Keeper, policies: &[String]| {
        keeper.judge(read(&[base(), policies.to_vec()].concat(), 1)).unwrap()
    };
    judged(&mut keeper, &[policy("m", for_main, &[LOCAL]), policy("o", for_other, &[LOCAL])]);
    let plan = judged(&mut keeper, &[policy("m", for_main, &[WRONG]), policy("o", for_other, &[BATCH])]);
    assert_eq!((rules(&plan, "main"), rules(&plan, "other")), (vec!["m/local".into()], vec!["o/batch".into()]));
    // An edit that is wrong and moves the policy away does not take it from where it was.
    let plan = judged(&mut keeper, &[policy("m", for_other, &[WRONG]), policy("o", for_other, &[LOCAL])]);
    assert_eq!((rules(&plan, "main"), rules(&plan, "other")), (vec!["m/local".into()], vec!["o/batch".into()]));
}

#[test]
fn without_last_good_policies_those_that_are_right_take_force() {
    let base = [set("qwen", "8000"), backend("main", "qwen")].concat();
    let policies = [policy("a", "", &[LOCAL]), policy("b", "", &[WRONG]), policy("c", "", &[BATCH, DANGLING])].concat();
    let mut keeper = Keeper::default();
    let plan = keeper.judge(read(&[base.clone(), policies], 1)).unwrap();
    assert_eq!(rules(&plan, "main"), ["a/local", "c/batch", "c/dangling"]);
    assert_eq!(plan.faults.problems.len(), 2, "{:?}", plan.faults.problems);
    assert_eq!(outcome(&plan, Kind::InferencePolicy, "b").standing, Standing::NotInForce);
    // They were not all good, so that nothing of it is kept.
    let plan = keeper.judge(read(&[base, policy("b", "", &[WRONG])], 2)).unwrap();
    assert!(rules(&plan, "main").is_empty());
}

#[test]
fn a_cluster_without_gateway_backend_is_waited_out_and_losing_the_last_changes_nothing() {
    let mut keeper = Keeper::default();
    let faults = keeper.judge(read(&[set("qwen", "8000")], 1)).unwrap_err();
    assert!(faults.problems.is_empty() && faults.outcomes.len() == 1, "{faults:?}");
    keeper.judge(read(&[set("qwen", "8000"), backend("main", "qwen")], 2)).unwrap();
    let faults = keeper.judge(Read::default()).unwrap_err();
    assert!(faults.problems[0].contains("no GatewayBackend any more"), "{faults:?}");
    let plan = keeper.judge(read(&[set("qwen", "8000"), backend("main", "qwen")], 3)).unwrap();
    assert_eq!(sets(&plan, "main"), ["qwen:8000"]);
    // One that is there and cannot be read is not gone.
    let unread = with_unreadable(read(&[set("qwen", "9000")], 4), Kind::GatewayBackend, "main");
    assert!(keeper.judge(unread.clone()).is_ok());
    assert_eq!(Keeper::default().judge(unread).unwrap_err().problems, ["GatewayBackend default/main: spec: nonsense"]);
}

#[test]
fn a_policy_that_cannot_be_read_holds_its_backend_and_one_without_backend_holds_nothing() {
    let base = [set("qwen", "8000"), backend("main", "qwen")].concat();
    let mut keeper = Keeper::default();
    keeper.judge(read(&[base.clone(), policy("house", "", &[LOCAL])], 1)).unwrap();
    let unread = read(&[base.clone(), policy("new", "", &[BATCH])], 2);
    let plan = keeper.judge(with_unreadable(unread, Kind::InferencePolicy, "house")).unwrap();
    assert_eq!(rules(&plan, "main"), ["house/local"]);
    let elsewhere = policy("far", "", &[WRONG]).replace("{name: far}", "{name: far, namespace: team}");
    let plan = keeper.judge(read(&[base, policy("new", "", &[BATCH]), elsewhere], 3)).unwrap();
    assert_eq!(rules(&plan, "main"), ["new/batch"]);
    let far = &plan.faults.outcomes[&(Kind::InferencePolicy, ObjectKey::new("team", "far"))];
    assert_eq!(far.standing, Standing::NotInForce);
}

#[test]
fn a_gateway_backend_is_used_without_a_provider_that_it_lists_and_rules_fall_back_to() {
    let base =
        [set("qwen", "8000"), with_cloud(&backend("main", "qwen")), policy("house", "", &[CLOUD, LOCAL])].concat();
    let providers = |plan: &Plan| plan.fleets[0].providers.len();
    let expected = ["house/cloud", "house/local"];
    // From the start: not applied yet, or wrong from the first.
    let plan = Keeper::default().judge(read(std::slice::from_ref(&base), 1)).unwrap();
    assert_eq!((rules(&plan, "main"), providers(&plan)), (expected.map(String::from).to_vec(), 0));
    let main = outcome(&plan, Kind::GatewayBackend, "main");
    assert!(main.standing == Standing::InForce && main.problems[0].contains("`cloud`"), "{main:?}");
    let plan = Keeper::default().judge(read(&[base.clone(), provider("nonsense")], 1)).unwrap();
    assert_eq!((rules(&plan, "main"), providers(&plan)), (expected.map(String::from).to_vec(), 0));
    // While it runs: deleted, and the rest goes on changing.
    let mut keeper = Keeper::default();
    let plan = keeper.judge(read(&[base.clone(), provider("https://cloud.example")], 1)).unwrap();
    assert_eq!((rules(&plan, "main"), providers(&plan)), (expected.map(String::from).to_vec(), 1));
    let plan = keeper.judge(read(&[base.replace("port: 8000", "port: 9000")], 2)).unwrap();
    assert_eq!((rules(&plan, "main"), providers(&plan)), (expected.map(String::from).to_vec(), 0));
    assert_eq!(sets(&plan, "main"), ["qwen:9000"]);
}
