//! Policies as rules.

use kinference_routing::snapshot;

use super::*;

const TEXT: &str = include_str!("../../source/tests/all.yaml");

fn compiled(text: &str) -> (FleetSpec, v1::Config) {
    let file = SourceFile { path: "all.yaml".into(), content: text.into() };
    let resources = load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"));
    let fleet = fleet(&resources, &key("main")).unwrap();
    let assets = fleet.worker_sets.iter().map(|set| (set.key.clone(), WorkerSetAssets::default())).collect();
    let config = super::super::config(&fleet, &assets).unwrap();
    (fleet, config)
}

fn rule<'c>(config: &'c v1::Config, name: &str) -> &'c v1::Rule {
    config.rules.iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("no {name} in {:?}", config.rules))
}

#[test]
fn rules_say_what_the_policy_says() {
    let (fleet, config) = compiled(TEXT);
    snapshot::Config::compile(&config).unwrap_or_else(|error| panic!("{error}"));
    let cheaper = rule(&config, "house-rules/simple-to-cheaper");
    let when = cheaper.when.clone().unwrap();
    assert_eq!(
        (when.models, when.tags_all, when.tags_any, when.tags_none),
        (vec!["glm-5.3".to_string()], vec!["complexity-low".to_string()], vec!["y".to_string()], vec!["x".to_string()],)
    );
    assert_eq!(cheaper.candidates, ["glm-5.3", "qwen-3.6-27b"]);
    assert_eq!((cheaper.minimize, cheaper.ttft_budget_ms), (Some(v1::Objective::MinimizeCost.into()), 1000));

    let burst = rule(&config, "house-rules/burst-to-cloud");
    let bound = burst.require.as_ref().unwrap().workers[0];
    assert_eq!(bound.bound, Some(v1::bound::Bound::Max(2.0)));
    let signal = config.signals[bound.signal as usize];
    assert_eq!(
        (signal.signal(), signal.over_ms, signal.aggregate()),
        (v1::Signal::QueuedRequests, 30_000, v1::Aggregate::Max)
    );
    let tiers: Vec<&[String]> = burst.fallback.iter().map(|tier| tier.providers.as_slice()).collect();
    assert_eq!(tiers, [["bedrock".to_string()], ["databricks".to_string()]]);

    let pii = rule(&config, "house-rules/pii-stays-local");
    assert_eq!(pii.require.as_ref().unwrap().locality, Some(v1::Locality::Local.into()));
    let answer = pii.on_empty.as_ref().unwrap().answer.clone().unwrap();
    assert_eq!((answer.status, answer.message.as_str()), (503, "No local worker may take this prompt."));

    let batch = rule(&config, "house-rules/batch-on-idle-gpus").require.clone().unwrap();
    assert_eq!(batch.pools, Some(v1::IdList { ids: vec![0] }));
    assert_eq!(batch.providers, Some(v1::NameList { names: vec!["bedrock".into()] }));

    let demo = rule(&config, "house-rules/keep-the-demo-fast");
    assert_eq!(demo.reject.as_ref().map(|answer| (answer.status, answer.retry_after_s)), Some((429, 60)));
    assert_eq!(config.pools[0].worker_sets, [fleet.worker_sets[0].id, fleet.worker_sets[1].id]);
    assert_eq!(config.signals, fleet.signals);
}

#[test]
fn providers_and_tenants_are_there_and_nothing_is_ready_by_itself() {
    let (fleet, config) = compiled(TEXT);
    let bedrock = &config.providers[0];
    assert_eq!(bedrock.cluster, "kinference_provider_default_bedrock");
    assert_eq!(
        (bedrock.authority.as_str(), bedrock.base_path.as_str()),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/openai/v1")
    );
    let model = &bedrock.models[0];
    assert_eq!(
        (model.upstream_name.as_str(), model.input_price, model.expected_ttft_ms),
        ("zai.glm-5-3-v1", Some(0.6), 900)
    );
    assert_eq!(config.providers[1].models[0].upstream_name, "glm-5.3");
    assert!(config.providers.iter().all(|provider| !provider.ready && provider.authorization.is_empty()));
    assert_eq!(
        fleet.tenancy,
        v1::Tenancy {
            tenant_header: "x-tenant".into(),
            tags_header: "x-kinference-tags".into(),
            deny_unidentified: true,
            tenants: vec![v1::Tenant { name: "research".into(), models: vec!["*".into()] }],
        }
    );
    let (open, _) = compiled(super::TEXT);
    assert_eq!(open.tenancy, v1::Tenancy::default());
}

#[test]
fn endpoints_become_authority_and_path() {
    let text = TEXT.replace("https://example.cloud.databricks.com", "http://127.0.0.1:8080/serving/v1/");
    let (_, config) = compiled(&text);
    assert_eq!(
        (config.providers[1].authority.as_str(), config.providers[1].base_path.as_str()),
        ("127.0.0.1:8080", "/serving/v1")
    );
}

/// Two backends of one namespace, policies in the wrong order, and signals that are the same in different words.
const ORDER: &str = "
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: z-first}
spec:
  priority: 5
  rules:
  - {name: one, require: {workers: [{signal: KvCacheUsage, below: '0.7', aggregate: Last}]}}
  - {name: two, require: {workers: [{signal: KvCacheUsage, max: '0.8'}, {signal: QueuedRequests, max: '9', over: 30000ms, aggregate: Max}]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: a-second}
spec:
  rules:
  - {name: r, onEmpty: {action: Reject, retryAfter: 1500ms}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {name: canary}
spec: {workerSets: {names: [trt]}}
---
apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {name: canary}
spec: {pools: [{name: canary}]}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: both}
spec:
  rules:
  - {name: full, when: {pools: [{name: gpu, signal: KvCacheUsage, atLeast: '0.9'}]}, reject: {}}
  - {name: other, require: {pools: [gpu]}, fallback: [{providers: [bedrock], models: [trt]}]}
";

#[test]
fn policies_come_by_priority_and_name_and_each_signal_once() {
    let (_, config) = compiled(&format!("{TEXT}{ORDER}"));
    let names: Vec<&str> = config.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names[..5], ["z-first/one", "z-first/two", "a-second/r", "both/full", "both/other"]);
    assert_eq!(names[5], "house-rules/one-stable-name");
    assert_eq!(config.signals.len(), 3, "{:?}", config.signals);
    let answer = config.rules[2].on_empty.as_ref().unwrap().answer.as_ref().unwrap();
    assert_eq!((answer.status, answer.retry_after_s), (503, 2));
    let below = config.rules[0].require.as_ref().unwrap().workers[0].bound;
    assert_eq!(below, Some(v1::bound::Bound::Below(0.7)));
}

#[test]
fn what_a_backend_does_not_have_matches_nothing_and_allows_nothing() {
    let file = SourceFile { path: "all.yaml".into(), content: format!("{TEXT}{ORDER}").into() };
    let resources = load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"));
    let canary = fleet(&resources, &key("canary")).unwrap();
    let names: Vec<&str> = canary.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["z-first/one", "z-first/two", "a-second/r", "both/other"]);
    let other = &canary.rules[3];
    assert_eq!(other.require.as_ref().unwrap().pools, Some(v1::IdList::default()));
    assert_eq!(other.fallback, [v1::Tier { providers: vec![], models: vec!["trt".into()] }]);
}

#[test]
fn a_provider_that_is_listed_and_does_not_exist_is_in_no_tier_and_widens_nothing() {
    let file = SourceFile { path: "all.yaml".into(), content: TEXT.into() };
    let mut resources = load_files(vec![file]).unwrap_or_else(|problems| panic!("{problems}"));
    resources.providers.remove(&key("bedrock"));
    let fleet = fleet(&resources, &key("main")).unwrap();
    let assets = fleet.worker_sets.iter().map(|set| (set.key.clone(), WorkerSetAssets::default())).collect();
    let config = super::super::config(&fleet, &assets).unwrap();
    snapshot::Config::compile(&config).unwrap_or_else(|error| panic!("{error}"));
    let tiers = &rule(&config, "house-rules/burst-to-cloud").fallback;
    assert_eq!(tiers.iter().map(|tier| tier.providers.join(",")).collect::<Vec<_>>(), ["", "databricks"]);
    let batch = rule(&config, "house-rules/batch-on-idle-gpus").require.clone().unwrap();
    assert_eq!(batch.providers, Some(v1::NameList { names: vec!["bedrock".into()] }), "it goes on allowing no other");
}
