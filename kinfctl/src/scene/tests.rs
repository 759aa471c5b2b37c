use std::path::PathBuf;

use kinference_api::policy_test::{Expectation, TestState};
use kinference_api::source::{SourceFile, load_files};
use serde::Deserialize;

use super::*;
use crate::outcome::Place;

/// A static set, one with ranks, and one whose workers Kubernetes knows.
const FLEET: &str = "
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: main}
spec:
  pools: [{name: gpu}]
  tenancy: {identify: [{header: {name: x-tenant}}], tenants: [{name: small-only, models: [small]}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: gpu}
spec: {workerSets: {names: [big, ranks, pods]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: big}
spec:
  model: {name: big, tokenizer: {path: /m}}
  workers: {static: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: ranks}
spec:
  model: {name: ranked, tokenizer: {path: /m}}
  workers: {static: [{name: a, address: 10.0.1.1}], dataParallelSize: 2}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {name: pods}
spec:
  model: {name: small, tokenizer: {path: /m}}
  workers: {selector: {matchLabels: {app: small}}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: p}
spec:
  rules:
  - name: busy
    when: {models: [ranked], pools: [{name: gpu, signal: QueuedRequests, atLeast: '2', over: 10s, aggregate: Average}]}
    reject: {status: 429, retryAfter: 5s}
";

fn resources() -> Resources {
    let file = SourceFile { path: PathBuf::from("fleet.yaml"), content: FLEET.into() };
    load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn yaml<T: for<'de> Deserialize<'de>>(text: &str) -> T {
    serde_yaml_ng::from_str(text).unwrap()
}

fn scene(states: &[&str]) -> Scene {
    let states: Vec<TestState> = states.iter().map(|text| yaml(text)).collect();
    Scene::new(&resources(), &ObjectKey::new("default", "main"), &states.iter().collect::<Vec<_>>()).unwrap()
}

fn place(states: &[&str], request: &str) -> String {
    match scene(states).play(&yaml(request)).place {
        Place::Worker { name, .. } | Place::Provider { name, .. } => name,
        Place::Rejected { status, .. } => status.to_string(),
    }
}

#[test]
fn later_states_replace_parts_of_earlier_ones() {
    let test = "workers: {big/a: {ready: false}, big/b: {queuedRequests: 4}}";
    assert_eq!(place(&[test], "{model: big}"), "big/b");
    assert_eq!(place(&[test, "workers: {big/a: {ready: true}}"], "{model: big}"), "big/a");
    assert_eq!(place(&[test, "workers: {big/b: {ready: false}}"], "{model: big}"), "503");
}

#[test]
fn cached_prefixes_count_in_whole_blocks_and_never_whole_prompts() {
    let scene = scene(&["workers: {big/a: {cachedPrefixTokens: 100}, big/b: {cachedPrefixTokens: 5000}}"]);
    let trace = scene.play(&yaml("{model: big, promptTokens: 320}")).trace.unwrap();
    let cached: Vec<u32> = trace.candidates.iter().map(|candidate| candidate.cached_tokens).collect();
    assert_eq!(cached, [96, 304]);
}

#[test]
fn ranks_are_workers_of_their_own() {
    let names = |states: &[&str]| {
        let trace = scene(states).play(&yaml("{model: ranked}")).trace.unwrap();
        trace
            .candidates
            .iter()
            .map(|candidate| format!("{} {:?}", candidate.name, candidate.standing))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["default/ranks/a/0 Usable", "default/ranks/a/1 Usable"]);
    assert_eq!(
        names(&["workers: {ranks/a: {ready: false}, ranks/a/1: {ready: true}}"]),
        ["default/ranks/a/0 Unready", "default/ranks/a/1 Usable"]
    );
}

#[test]
fn selected_workers_are_those_that_states_name() {
    assert_eq!(place(&[], "{model: small}"), "pods/worker");
    let two = "workers: {pods/x: {ready: false}, pods/y: {}}";
    assert_eq!(place(&[two], "{model: small}"), "pods/y");
    assert_eq!(place(&[two, "workers: {pods/y: {ready: false}}"], "{model: small}"), "503");
}

#[test]
fn pools_are_the_mean_of_their_ready_workers_over_the_window() {
    // Five ready workers: big/a at 10, and at 0 and 20 on average; the pool is at 10 / 5.
    let busy = "workers: {big/a: {queuedRequests: 0, history: {queuedRequests: [[-9s, 20], [-30s, 99]]}}}";
    assert_eq!(place(&[busy], "{model: ranked}"), "429");
    assert_eq!(place(&[busy, "workers: {pods/worker: {}, pods/more: {}}"], "{model: ranked}"), "ranks/a/0");
    assert_eq!(
        place(&[busy, "workers: {big/b: {ready: false}, pods/worker: {}, pods/more: {}}"], "{model: ranked}"),
        "429"
    );
    assert_eq!(place(&["workers: {big/a: {history: {queuedRequests: [[-11s, 99]]}}}"], "{model: ranked}"), "ranks/a/0");
}

#[test]
fn tenants_are_as_the_gateway_would_see_them() {
    assert_eq!(place(&[], "{model: big, tenant: small-only}"), "403");
    assert_eq!(place(&[], "{model: big, tenant: ''}"), "401");
    assert_eq!(place(&[], "{model: big, tenant: else}"), place(&[], "{model: big}"));
}

#[test]
fn unknown_names_of_a_state_are_found() {
    let state: TestState =
        yaml("{workers: {big/c: {}, big/a: {}, ranks/a/1: {}, pods/new: {}}, providers: {cloud: {}}}");
    let scene = Scene::new(&resources(), &ObjectKey::new("default", "main"), &[&state]).unwrap();
    assert_eq!(scene.unknown(&state), ["`big/c`", "`cloud`"]);
}

#[test]
fn expectations_are_met_or_said_not_to_be() {
    let busy = scene(&["workers: {big/a: {queuedRequests: 10}}"]);
    let unmet = |model: &str, expect: &str| {
        let expect: Expectation = yaml(expect);
        busy.play(&yaml(&format!("{{model: {model}}}"))).unmet(&expect)
    };
    for (model, expect) in [
        ("big", "{worker: big/b, workerSet: big, model: big}"),
        ("big", "{not: {worker: big/a, provider: cloud, rejected: {}}}"),
        ("ranked", "{rejected: {status: 429, retryAfter: 5s}, rule: busy}"),
        ("ranked", "{rejected: {}, rule: p/busy}"),
        ("ranked", "{not: {rejected: {status: 503}}}"),
    ] {
        assert_eq!(unmet(model, expect), [""; 0], "{model} {expect}");
    }
    assert_eq!(unmet("big", "{worker: big/a, model: small}"), ["worker big/a", "model small"]);
    assert_eq!(unmet("big", "{not: {workerSet: big}}"), ["not workerSet big"]);
    assert_eq!(unmet("big", "{rejected: {}, rule: busy}"), ["rule busy", "rejected"]);
    assert_eq!(
        unmet("ranked", "{rejected: {status: 503, retryAfter: 6s}, rule: q/busy}"),
        ["rule q/busy", "rejected with status 503", "rejected with retryAfter 6s"]
    );
    assert_eq!(unmet("ranked", "{not: {rejected: {}}}"), ["not rejected"]);
}
