//! Findings from made-up worlds.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cluster::needed::{Access, rights};
use super::cluster::references::references;
use super::finding::{Findings, Level};
use super::world::{Cluster, Envoy, Named, Right, SecretFacts, Service};
use super::{cluster, envoy, report, service};
use crate::paint::Paint;

/// 2026-01-01T00:00:00Z
const NOW: i64 = 1_767_225_600;
const DAY: i64 = 86_400;

fn text(findings: &Findings) -> String {
    report::text(findings, Paint::off())
}

#[track_caller]
fn assert_said(findings: &Findings, expected: &[(Level, &str)]) {
    for (level, message) in expected {
        let said = findings.all().iter().any(|finding| finding.level == *level && finding.message.contains(message));
        assert!(said, "{level:?} {message:?} is missing in:\n{}", text(findings));
    }
}

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn healthy_status() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config": {"valid": true, "inForce": true, "loads": 1},
        "backends": {"default/main": {"epoch": 2, "sequence": 700, "filtersConnected": 1, "filtersCurrent": 1,
            "rules": ["house/alias"], "prefixIndex": {"bytes": 1, "maxBytes": 10, "chunkBytes": 256, "wantedChunkBytes": 256}}},
        "policies": {"default/house": {"inForce": true}},
        "workerSets": {"default/qwen": {"prefixMode": "events", "promptFidelity": true, "workers": {
            "a": {"address": "10.0.0.1:8000", "state": "ready", "events": {"connected": true, "current": true}}}}},
        "link": {"confidentiality": "mutualTls", "tls": {"certificateExpires": "2026-06-01T00:00:00Z"}},
        "filters": [{"backend": "default/main", "proxy": "envoy", "vm": "1", "build": env!("CARGO_PKG_VERSION"),
            "epoch": 2, "sequence": 690}],
        "envoys": [{"node": "envoy", "acknowledged": "1", "sent": "1"}],
    })
}

fn of_service(status: Value, ready: Result<(), String>) -> Findings {
    let mut findings = Findings::default();
    let service = Service { address: "10.0.0.4:18101".into(), status: Ok(from(status)), ready };
    service::judge(&service, NOW, &mut findings);
    findings
}

#[test]
fn a_healthy_service_has_no_findings_but_good_ones() {
    let findings = of_service(healthy_status(), Ok(()));
    let text = text(&findings);
    assert_eq!((findings.count(Level::Problem), findings.count(Level::Warning)), (0, 0), "{text}");
    assert!(text.starts_with("control service\n✓ answers at 10.0.0.4:18101\n"), "{text}");
    assert!(text.ends_with("\nall is well\n"), "{text}");
}

#[test]
fn a_service_that_does_not_answer_is_a_finding_with_a_hint() {
    let mut findings = Findings::default();
    let refused = Service {
        address: "127.0.0.1:1".into(),
        status: Err("Connection refused".into()),
        ready: Err("Connection refused".into()),
    };
    service::judge(&refused, NOW, &mut findings);
    let expected = "\
control service
✗ no answer from 127.0.0.1:1: Connection refused
    start kinference-control, or name its --admin address with --control

1 problem, 0 warnings
";
    assert_eq!(text(&findings), expected);
    let json: Value = serde_json::from_str(&report::json(&findings).unwrap()).unwrap();
    assert_eq!((&json["problems"], &json["findings"][0]["level"]), (&json!(1), &json!("problem")));
}

#[test]
fn what_is_wrong_with_a_service_is_said() {
    let mut status = healthy_status();
    status["version"] = json!("0.0.1");
    status["config"] =
        json!({"valid": false, "inForce": true, "problems": ["a.yaml:3: bad\u{1b}[31m"], "warnings": ["odd"]});
    status["source"] =
        json!({"kubernetes": "https://10.0.0.1", "connected": false, "problems": ["may not list secrets"]});
    status["backends"]["default/main"]["sequence"] = json!(9000);
    status["backends"]["default/main"]["prefixIndex"]["chunkBytes"] = json!(512);
    status["backends"]["default/idle"] = json!({});
    status["policies"]["default/house"] = json!({"inForce": true, "problems": ["spec: no"]});
    status["workerSets"]["default/qwen"]["promptFidelity"] = json!(false);
    status["workerSets"]["default/qwen"]["workers"]["a"]["events"] =
        json!({"connected": false, "lastProblem": "no replay"});
    status["workerSets"]["default/qwen"]["workers"]["b"] =
        json!({"address": "10.0.0.2:8000", "state": "unknown", "metricsProblem": "connection refused"});
    status["workerSets"]["default/empty"] = json!({});
    status["link"] = json!({"credentialsWithheld": "set up mutual TLS", "tls": {
        "certificateExpires": "2026-01-06T00:00:00Z", "clientCaExpires": "2025-12-01T00:00:00Z",
        "problem": "--tls-key: is not the key", "lastRefused": "10.0.0.9: no certificate"}});
    status["filters"][0]["lastRejection"] = json!("a template does not compile");
    status["envoys"][0]["refused"] = json!("bad address");
    let findings = of_service(status, Err("not ready: none".into()));
    assert_said(
        &findings,
        &[
            (Level::Warning, "version 0.0.1, and this kinfctl"),
            (Level::Problem, "not ready: none"),
            (Level::Problem, "the last good one stays in force"),
            (Level::Problem, "a.yaml:3: bad"),
            (Level::Warning, "odd"),
            (Level::Warning, "the cluster at https://10.0.0.1 does not answer"),
            (Level::Problem, "may not list secrets"),
            (Level::Problem, "InferencePolicy default/house: spec: no"),
            (Level::Warning, "default/qwen: 1 of 2 workers ready"),
            (Level::Warning, "default/qwen/b at 10.0.0.2:8000 is unknown: connection refused"),
            (Level::Problem, "default/empty: no workers"),
            (Level::Warning, "default/qwen: the filter's prompt text differs"),
            (Level::Warning, "default/qwen/a: its events are not received: no replay"),
            (Level::Warning, "default/main: the prefix index is coarser"),
            (Level::Problem, "default/idle: no filter is connected"),
            (Level::Warning, "envoy (1) refused what it was told: a template does not compile"),
            (Level::Warning, "envoy (1) is 8310 changes behind"),
            (Level::Problem, "Envoy envoy refused its endpoints: bad address"),
            (Level::Warning, "filters are not told credentials"),
            (Level::Problem, "changed files of TLS cannot be used"),
            (Level::Warning, "the certificate expires in 5 days (at 2026-01-06T00:00:00Z)"),
            (Level::Problem, "--tls-client-ca expired at 2025-12-01T00:00:00Z"),
            (Level::Warning, "10.0.0.9: no certificate"),
        ],
    );
    assert!(text(&findings).contains("a.yaml:3: bad\\u{1b}[31m"), "{}", text(&findings));
}

fn an_envoy(filter: Value, cluster: Value, listener: Value) -> Envoy {
    let mut listener = listener;
    listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    listener["filter_chains"] = json!([{"http_filters": [
        {"typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "config": filter}}]}]);
    let mut cluster = cluster;
    cluster["@type"] = json!("type.googleapis.com/envoy.config.cluster.v3.Cluster");
    Envoy {
        address: "127.0.0.1:9901".into(),
        server_info: Ok(json!({"version": "abc/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"})),
        config_dump: Ok(json!({"configs": [
            {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "static_listeners": [{"listener": listener}]},
            {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump", "static_clusters": [{"cluster": cluster}]}]})),
        clusters: Ok(json!({"cluster_statuses": [
            {"name": "kinference_workers", "host_statuses": [{}, {}]}, {"name": "kinference_control", "host_statuses": [{}]}]})),
        stats: Ok(BTreeMap::from([("wasmcustom.kinference_filter_snapshots_applied".into(), 1)])),
    }
}

fn of_envoy(world: &Envoy) -> Findings {
    let mut findings = Findings::default();
    envoy::judge(world, &mut findings);
    findings
}

#[test]
fn an_envoy_as_envoy_config_makes_it_is_well() {
    let plugin = json!({"configuration": {"value": "{\"gatewayBackend\":\"main\"}"}, "failure_policy": "FAIL_RELOAD",
        "allow_on_headers_stop_iteration": true});
    let policy = json!({"policies": [{"typed_extension_config": {"typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}]}}}]});
    let thresholds = json!([{"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}]);
    let cluster = json!({"name": "kinference_workers", "load_balancing_policy": policy,
        "circuit_breakers": {"thresholds": thresholds}});
    let listener = json!({"name": "gateway", "per_connection_buffer_limit_bytes": 9437184});
    let mut world = an_envoy(plugin, cluster, listener);
    let findings = of_envoy(&world);
    let good = text(&findings);
    assert_eq!((findings.count(Level::Problem), findings.count(Level::Warning)), (0, 0), "{good}");
    assert!(good.contains("✓ 2 endpoints of workers"), "{good}");

    if let Ok(stats) = &mut world.stats {
        stats.insert("wasmcustom.kinference_filter_snapshot_age_ms".into(), 12_400);
    }
    let old = text(&of_envoy(&world));
    assert!(old.contains("has not heard of the control service for 12 s"), "{old}");

    // The counter is there before there was anything to count.
    world.stats = Ok(BTreeMap::from([("wasmcustom.kinference_filter_snapshots_applied".into(), 0)]));
    let unheard = of_envoy(&world);
    assert_said(&unheard, &[(Level::Problem, "the filter runs, and has no snapshot yet")]);
    assert!(!text(&unheard).contains("does not run"), "{}", text(&unheard));

    world.stats = Ok(BTreeMap::new());
    world.clusters = Ok(json!({"cluster_statuses": [{"name": "kinference_workers"}]}));
    world.server_info = Ok(json!({"version": "abc/1.34.2/Clean/RELEASE/BoringSSL", "state": "INITIALIZING"}));
    assert_said(
        &of_envoy(&world),
        &[
            (Level::Problem, "the filter's metrics are not there"),
            (Level::Problem, "the workers' cluster has no endpoints"),
            (Level::Warning, "there is no cluster kinference_control"),
            (Level::Problem, "version 1.34.2 cannot hold back"),
            (Level::Problem, "it is INITIALIZING"),
        ],
    );
}

#[test]
fn settings_that_make_requests_fail_are_found() {
    let plugin = json!({"configuration": {"value": "{\"gatewayBackend\":\"main\"}"}});
    let policy = json!({"a": {"@type": "x.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}]}});
    let cluster = json!({"name": "vllm", "load_balancing_policy": policy});
    let findings = of_envoy(&an_envoy(plugin, cluster, json!({"name": "edge"})));
    assert_said(
        &findings,
        &[
            (Level::Problem, "every request hangs"),
            (Level::Warning, "a filter that stops is not started anew"),
            (Level::Warning, "listener edge buffers 1048576 bytes"),
            (Level::Warning, "cluster vllm: max_connections is 1024"),
        ],
    );
    let bare = of_envoy(&an_envoy(json!({}), json!({"name": "vllm"}), json!({})));
    assert_said(&bare, &[(Level::Problem, "no HTTP filter"), (Level::Problem, "no cluster goes where")]);
}

fn resource(kind: &str, name: &str, spec: Value, status: Value) -> DynamicObject {
    from(json!({"apiVersion": "kinference.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "team", "generation": 2}, "spec": spec, "status": status}))
}

fn ready() -> Value {
    json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True", "reason": "Fine", "message": ""}]})
}

fn named(name: &str) -> Named {
    Named { namespace: "team".into(), name: name.into() }
}

fn pod(name: &str, is_ready: bool) -> Pod {
    let status = if is_ready { "True" } else { "False" };
    from(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "vllm",
        "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": status}]}}))
}

fn healthy_cluster() -> Cluster {
    let deployment: Deployment = from(json!({"metadata": {"name": "kinference", "namespace": "team"},
        "spec": {"selector": {}, "replicas": 1, "template": {"spec": {"containers": [],
            "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}]}}},
        "status": {"availableReplicas": 1}}));
    let mut definitions = kinference_api::crds::definitions();
    // What an API server adds by itself.
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            version.deprecated = Some(false);
        }
    }
    let set = json!({"model": {"tokenizer": {"configMap": {"name": "tokenizer"}}},
        "workers": {"selector": {"matchLabels": {"app": "vllm"}}, "port": "http"}});
    let provider = json!({"credentials": {"secretRef": {"name": "key"}}});
    let certificate = SecretFacts { keys: ["tls.crt".into()].into(), certificate_expires: Some(NOW + 90 * DAY) };
    let token = SecretFacts { keys: ["token".into()].into(), certificate_expires: None };
    let access = Access { verb: "list", group: "", resource: "pods".into(), name: None, namespace: "team".into() };
    let right = Right { account: named("kinference"), access, allowed: Ok(true) };
    Cluster {
        namespace: None,
        version: Ok((1, 37)),
        definitions: Ok(definitions),
        deployments: Ok(vec![deployment]),
        rights: vec![right],
        resources: BTreeMap::from([
            ("GatewayBackend".into(), Ok(vec![resource("GatewayBackend", "main", json!({}), ready())])),
            ("InferenceWorkerSet".into(), Ok(vec![resource("InferenceWorkerSet", "qwen", set, ready())])),
            ("InferenceProvider".into(), Ok(vec![resource("InferenceProvider", "cloud", provider, ready())])),
        ]),
        secrets: BTreeMap::from([(named("tls"), Ok(Some(certificate))), (named("key"), Ok(Some(token)))]),
        config_maps: BTreeMap::from([(named("tokenizer"), Ok(Some(["tokenizer.json".into()].into())))]),
        pods: BTreeMap::from([(named("qwen"), Ok(vec![pod("a", true)]))]),
        connections: BTreeMap::from([("10.0.0.1:8000".into(), Ok(()))]),
        envoy_filters: Ok(None),
    }
}

fn of_cluster(world: &Cluster) -> Findings {
    let mut findings = Findings::default();
    cluster::judge(world, NOW, &mut findings);
    findings
}

#[test]
fn a_healthy_cluster_has_no_findings_but_good_ones() {
    let findings = of_cluster(&healthy_cluster());
    assert_eq!((findings.count(Level::Problem), findings.count(Level::Warning)), (0, 0), "{}", text(&findings));
}

#[test]
fn what_is_wrong_with_a_cluster_is_said() {
    let mut world = healthy_cluster();
    world.version = Ok((1, 28));
    let definitions = world.definitions.as_mut().unwrap();
    definitions.remove(0);
    definitions[0].spec.versions[0].schema = None;
    world.rights[0].allowed = Ok(false);
    world.deployments.as_mut().unwrap()[0].status = None;
    let not_ready = json!({"observedGeneration": 1, "conditions": [
        {"type": "Ready", "status": "False", "reason": "NoPool", "message": "pool gpu does not exist"}]});
    let backend = resource("GatewayBackend", "main", json!({}), not_ready);
    world
        .resources
        .insert("GatewayBackend".into(), Ok(vec![backend, resource("GatewayBackend", "new", json!({}), json!({}))]));
    world.resources.insert("InferencePool".into(), Err("forbidden".into()));
    let signing = ["accessKeyId".into(), "secretAccessKey".into()].into();
    world.secrets.insert(named("key"), Ok(Some(SecretFacts { keys: signing, certificate_expires: None })));
    let soon = SecretFacts { certificate_expires: Some(NOW + 3 * DAY), ..SecretFacts::default() };
    world.secrets.insert(named("tls"), Ok(Some(soon)));
    world.config_maps.insert(named("tokenizer"), Ok(None));
    let mut unnamed = pod("b", false);
    unnamed.spec.as_mut().unwrap().containers[0].ports = None;
    world.pods.insert(named("qwen"), Ok(vec![pod("a", true), unnamed]));
    world.connections.insert("10.0.0.1:8000".into(), Err("no answer".into()));
    world.envoy_filters = Ok(Some(Vec::new()));
    assert_said(
        &of_cluster(&world),
        &[
            (Level::Problem, "the API server is 1.28"),
            (Level::Problem, "is not installed"),
            (Level::Warning, "it differs in v1alpha1.schema"),
            (Level::Problem, "service account team/kinference may not list pods in namespace team"),
            (Level::Problem, "Deployment team/kinference: 0 of 1 replica available"),
            (Level::Problem, "GatewayBackend team/main: Ready is False (NoPool)"),
            (Level::Warning, "GatewayBackend team/main: its last change (generation 2) was not taken in yet (at 1)"),
            (Level::Warning, "GatewayBackend team/new has no conditions"),
            (Level::Problem, "InferencePool: cannot be listed: forbidden"),
            (Level::Problem, "Secret team/key lacks the key token"),
            (Level::Warning, "the certificate in Secret team/tls expires in 3 days"),
            (Level::Problem, "ConfigMap team/tokenizer does not exist"),
            (Level::Warning, "InferenceWorkerSet team/qwen: 1 of 2 Pods ready"),
            (Level::Problem, "InferenceWorkerSet team/qwen: b has no port named \"http\""),
            (Level::Warning, "not reached from here: 10.0.0.1:8000 (no answer)"),
            (Level::Warning, "no EnvoyFilter adds the filter to a gateway, and no filter is connected"),
        ],
    );
}

#[test]
fn a_policy_that_does_not_hold_is_a_problem() {
    let policy = |accepted: &str, in_force: &str| {
        let mut world = healthy_cluster();
        let conditions = json!([
            {"type": "Accepted", "status": accepted, "reason": "Invalid", "message": "spec.rules[0]: no"},
            {"type": "InForce", "status": in_force, "reason": "LastGoodInForce", "message": "an earlier one is"}]);
        let status = json!({"observedGeneration": 2, "conditions": conditions});
        let policy = resource("InferencePolicy", "pii", json!({}), status);
        world.resources.insert("InferencePolicy".into(), Ok(vec![policy]));
        let findings = of_cluster(&world);
        findings.count(Level::Problem)
    };
    assert_eq!(policy("True", "True"), 0);
    assert_eq!(policy("True", "False"), 1);
    assert_eq!(policy("False", "False"), 2);
    assert_eq!(policy("True", "Unknown"), 0);
}

#[test]
fn rights_are_asked_for_by_the_names_that_resources_refer_to() {
    let provider =
        resource("InferenceProvider", "cloud", json!({"credentials": {"secretRef": {"name": "key"}}}), json!({}));
    let set = json!({"model": {"tokenizer": {"configMap": {"name": "files"}}}});
    let set = resource("InferenceWorkerSet", "qwen", set, json!({}));
    let again = resource("InferenceProvider", "more", provider.data["spec"].clone(), json!({}));
    let referred: Vec<_> = [("InferenceProvider", provider), ("InferenceProvider", again), ("InferenceWorkerSet", set)]
        .iter()
        .flat_map(|(kind, resource)| references(kind, resource))
        .collect();
    let needed = rights("home", "lease", &["team".into()], &referred);
    let of = |resource: &str| {
        let accesses = needed.iter().filter(|access| access.resource == resource);
        accesses.map(|access| (access.verb, access.name.as_deref(), access.namespace.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(of("secrets"), [("list", Some("key"), "team"), ("watch", Some("key"), "team")]);
    assert_eq!(of("configmaps"), [("list", Some("files"), "team"), ("watch", Some("files"), "team")]);
    assert_eq!(of("pods"), [("list", None, "team"), ("watch", None, "team")]);
}

#[test]
fn a_gateway_beside_istio_is_not_held_against_it() {
    let mut world = healthy_cluster();
    world.envoy_filters = Ok(Some(Vec::new()));
    let without = of_cluster(&world);
    assert_eq!((without.count(Level::Problem), without.count(Level::Warning)), (0, 1), "{}", text(&without));
    let mut status = ready();
    status["filters"] = json!({"connected": 2, "current": 2});
    world.resources.insert("GatewayBackend".into(), Ok(vec![resource("GatewayBackend", "main", json!({}), status)]));
    let connected = of_cluster(&world);
    assert_eq!((connected.count(Level::Problem), connected.count(Level::Warning)), (0, 0), "{}", text(&connected));
}

#[test]
fn an_api_server_that_does_not_answer_is_one_finding() {
    let world = Cluster { version: Err("connection refused".into()), ..healthy_cluster() };
    let findings = of_cluster(&world);
    assert_eq!(findings.all().len(), 1, "{}", text(&findings));
    assert_said(&findings, &[(Level::Problem, "the API server does not answer: connection refused")]);
}
