use super::*;
use crate::Resources;
use crate::source::{SourceFile, load_files};

mod policies;

const TEXT: &str = r#"
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: main}
spec:
  pools: [{name: both}, {name: cheap}]
  failureMode: Closed
  requestBodyLimit: 1Mi
  staleAfter: 3s
  prefixIndex: {maxBytes: 1Mi, chunkBytes: 128}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: both}
spec: {workerSets: {names: [qwen, glm]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: cheap}
spec: {workerSets: {selector: {matchLabels: {tier: cheap}}}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: qwen, labels: {tier: cheap}}
spec:
  model: {name: qwen-3, tokenizer: {path: tokenizers/qwen}}
  workers:
    static:
    - {name: a, address: 10.0.0.7}
    - {name: b, address: "fd00::8", port: 8001, kvEventsPort: 6001, kvReplayPort: 6101}
    port: 8000
    dataParallelSize: 2
  kvEvents: {port: 5557, topic: kv}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: glm}
spec:
  model: {name: glm-5, tokenizer: {configMap: {name: glm-files}}}
  workers: {selector: {matchLabels: {app: glm}}, port: 9000}
  metrics: {path: /m, interval: 1s}
  role: Decode
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: spare}
spec:
  model: {name: spare, tokenizer: {path: /abs}}
  workers: {static: []}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: elsewhere, namespace: team, labels: {tier: cheap}}
spec:
  model: {name: x, tokenizer: {path: /abs}}
  workers: {static: []}
"#;

fn resources() -> Resources {
    let file = SourceFile { path: "/etc/kinference/all.yaml".into(), content: TEXT.into() };
    load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

#[test]
fn a_backend_uses_the_worker_sets_of_its_pools_each_once() {
    let fleet = fleet(&resources(), &key("main")).unwrap();
    let sets: Vec<(u32, String)> = fleet.worker_sets.iter().map(|s| (s.id, s.key.to_string())).collect();
    assert_eq!(sets, [(0, "default/glm".to_string()), (1, "default/qwen".to_string())]);
    assert_eq!(fleet.pools[0].worker_sets, [key("glm"), key("qwen")]);
    assert_eq!(fleet.pools[1].worker_sets, [key("qwen")]);
    assert_eq!(
        fleet.settings,
        BackendSettings {
            request_body_limit: 1 << 20,
            debug_headers: false,
            failure_mode: v1::FailureMode::Closed,
            stale_after: Duration::from_secs(3),
            index_max_bytes: 1 << 20,
            chunk_bytes: 128,
        }
    );
}

#[test]
fn workers_take_their_own_ports_before_those_of_the_set() {
    let fleet = fleet(&resources(), &key("main")).unwrap();
    let [glm, qwen] = fleet.worker_sets.as_slice() else {
        panic!("{fleet:?}");
    };
    let WorkersSpec::Static(workers) = &qwen.workers else {
        panic!("{qwen:?}");
    };
    assert_eq!(workers[0].http_address().to_string(), "10.0.0.7:8000");
    let set_ports = KvPorts { events: 5557, replay: None };
    assert_eq!(workers[0].kv_events, Some(set_ports));
    assert_eq!(workers[1].http_address().to_string(), "[fd00::8]:8001");
    let own = workers[1].kv_events.unwrap();
    assert_eq!((own.events, own.replay), (6001, Some(6101)));
    assert_eq!((own.of_rank(1).events, own.of_rank(1).replay), (6002, Some(6102)));
    assert_eq!(qwen.kv_topic.as_deref(), Some("kv"));
    assert_eq!(qwen.data_parallel_size, 2);
    let folder = PathBuf::from("/etc/kinference/tokenizers/qwen");
    assert_eq!(qwen.tokenizer, TokenizerSource::Folder(folder));

    assert_eq!(glm.kv_topic, None);
    assert_eq!(glm.tokenizer, TokenizerSource::ConfigMap("glm-files".into()));
    assert_eq!((glm.metrics_path.as_str(), glm.metrics_interval), ("/m", Duration::from_secs(1)));
    assert!(matches!(&glm.workers, WorkersSpec::Selector { port: Port::Number(9000), kv_events: None, .. }));
}

#[test]
fn an_unknown_backend_is_told_with_those_that_exist() {
    let error = fleet(&resources(), &key("mian")).unwrap_err();
    assert_eq!(error.to_string(), "there is no GatewayBackend default/mian; the configuration has default/main");
    let error = fleet(&Resources::default(), &key("main")).unwrap_err();
    assert_eq!(error.to_string(), "there is no GatewayBackend default/main; the configuration has none at all");
}

#[test]
fn the_configuration_says_what_the_fleet_and_its_assets_say() {
    let fleet = fleet(&resources(), &key("main")).unwrap();
    let template = v1::Template { source: "{{ messages }}".into(), ..Default::default() };
    let known = WorkerSetAssets {
        template: Some(template.clone()),
        prefix_mode: v1::PrefixMode::Events,
        normalization: v1::Normalization::Nfc,
        bytes_per_token: f32::NAN,
        block_tokens: 0,
        adapters: vec!["lora".into()],
        ..Default::default()
    };
    let mut assets = BTreeMap::from([(key("glm"), known.clone()), (key("qwen"), known)]);
    let config = super::config(&fleet, &assets).unwrap();
    assert_eq!(config.templates, [template]);
    let backend = config.backend.as_ref().unwrap();
    assert_eq!((backend.name.as_str(), backend.stale_after_ms), ("default/main", 3000));
    assert_eq!(backend.failure_mode(), v1::FailureMode::Closed);
    let [glm, qwen] = config.worker_sets.as_slice() else {
        panic!("{config:?}");
    };
    assert_eq!((glm.id, glm.name.as_str(), glm.model.as_str()), (0, "default/glm", "glm-5"));
    assert_eq!(glm.role(), v1::Role::Decode);
    assert_eq!((qwen.template, glm.template), (Some(0), Some(0)));
    assert_eq!(qwen.prefix_mode(), v1::PrefixMode::Events);
    assert_eq!(qwen.normalization(), v1::Normalization::Nfc);
    assert_ne!(qwen.prefix_domain, glm.prefix_domain);
    assert_eq!((qwen.bytes_per_token, qwen.block_tokens), (0.1, 1));
    assert_eq!(qwen.labels.get("tier").map(String::as_str), Some("cheap"));

    assets.remove(&key("qwen"));
    assert_eq!(super::config(&fleet, &assets), Err(CompileError::MissingAssets(key("qwen"))));
}

#[test]
fn ids_that_a_caller_sets_must_differ() {
    let mut fleet = fleet(&resources(), &key("main")).unwrap();
    let assets: BTreeMap<_, _> =
        fleet.worker_sets.iter().map(|set| (set.key.clone(), WorkerSetAssets::default())).collect();
    fleet.worker_sets[0].id = 7;
    assert_eq!(super::config(&fleet, &assets).unwrap().worker_sets[0].id, 7);
    fleet.worker_sets[0].id = 1;
    assert_eq!(super::config(&fleet, &assets), Err(CompileError::SameId(key("glm"), key("qwen"))));
}
