use std::collections::BTreeSet;
use std::sync::Arc;

use kinference_api::kinds::{
    GatewayBackendStatus, InferencePolicyStatus, InferencePoolStatus, InferenceProviderStatus, InferenceWorkerSetStatus,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::merge::{ResourceStatus, merge};
use super::reasons::types;
use super::*;
use crate::state::{
    BackendStatus, EventHealth, FilterStatus, IndexStatus, Outcome, PolicyStatus, PoolStatus, ProviderStatus,
    SetStatus, Standing, WorkerCount, WorkerStatus,
};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

fn in_force() -> Outcome {
    Outcome { generation: Some(3), standing: Standing::InForce, ..Outcome::default() }
}

fn worker(state: &'static str) -> WorkerStatus {
    let events = EventHealth { connected: true, current: true, ..EventHealth::default() };
    WorkerStatus { state, cached_tokens: 406_002, events: Some(events), ..WorkerStatus::default() }
}

/// A fleet in which all is well, and what came of its resources.
fn healthy() -> (Status, Outcomes) {
    let set = SetStatus {
        prompt_fidelity: Some(true),
        kv_events: true,
        measured_bytes_per_token: Some(4.13),
        workers: [("a".into(), worker("ready")), ("b".into(), worker("ready"))].into(),
        ..SetStatus::default()
    };
    let pool = PoolStatus {
        worker_sets: vec!["default/qwen".into()],
        workers: WorkerCount { total: 2, ready: 2 },
        queued_requests: Some(0.26),
        kv_cache_usage: Some(0.614),
        ..PoolStatus::default()
    };
    let backend = BackendStatus {
        epoch: 9,
        worker_sets: vec!["default/qwen".into()],
        pools: [("default/gpu".into(), pool)].into(),
        prefix_index: IndexStatus { bytes: 5, chunk_bytes: 256, wanted_chunk_bytes: 256, ..IndexStatus::default() },
        filters_connected: 2,
        filters_current: 2,
        ..BackendStatus::default()
    };
    let filter =
        |index_bytes| FilterStatus { backend: "default/main".into(), epoch: 9, index_bytes, ..FilterStatus::default() };
    let policy = PolicyStatus {
        in_force: true,
        backends: vec!["default/main".into()],
        rules: vec!["a".into(), "b".into()],
        ..PolicyStatus::default()
    };
    let status = Status {
        backends: [("default/main".into(), backend)].into(),
        policies: [("default/rules".into(), policy)].into(),
        worker_sets: [("default/qwen".into(), set)].into(),
        filters: vec![filter(21_004_032), filter(7)],
        ..Status::default()
    };
    let outcomes = [
        (Kind::GatewayBackend, "main"),
        (Kind::InferencePool, "gpu"),
        (Kind::InferencePolicy, "rules"),
        (Kind::InferenceWorkerSet, "qwen"),
    ];
    (status, outcomes.map(|(kind, name)| ((kind, key(name)), in_force())).into())
}

fn of(assessments: &Assessments, kind: Kind, name: &str) -> Vec<(&'static str, Truth, &'static str)> {
    assessments[&(kind, key(name))].conditions.iter().map(|said| (said.kind, said.status, said.reason)).collect()
}

fn one<'a>(assessments: &'a Assessments, kind: Kind, name: &str, condition: &str) -> &'a Finding {
    let mut found = assessments[&(kind, key(name))].conditions.iter().filter(|said| said.kind == condition);
    let finding = found.next().unwrap_or_else(|| panic!("{kind} has no {condition}"));
    assert!(found.next().is_none());
    finding
}

fn worker_set(change: impl FnOnce(&mut SetStatus)) -> Assessments {
    let (mut status, outcomes) = healthy();
    change(status.worker_sets.get_mut("default/qwen").unwrap());
    assess(&status, &outcomes)
}

fn backend(change: impl FnOnce(&mut BackendStatus)) -> Assessments {
    let (mut status, outcomes) = healthy();
    change(status.backends.get_mut("default/main").unwrap());
    assess(&status, &outcomes)
}

#[test]
fn all_is_well() {
    let (status, outcomes) = healthy();
    let said = assess(&status, &outcomes);
    assert_eq!(
        of(&said, Kind::InferenceWorkerSet, "qwen"),
        [
            (types::READY, Truth::True, reasons::ALL_WORKERS_READY),
            (types::TOKENIZER_LOADED, Truth::True, reasons::LOADED),
            (types::PROMPT_FIDELITY, Truth::True, reasons::TEXT_EQUAL),
            (types::EVENTS_HEALTHY, Truth::True, reasons::CURRENT),
        ]
    );
    assert_eq!(
        of(&said, Kind::GatewayBackend, "main"),
        [
            (types::READY, Truth::True, reasons::ALL_WORKERS_READY),
            (types::PREFIX_INDEX_WITHIN_BUDGET, Truth::True, reasons::WITHIN_BUDGET),
            (types::FILTERS_CURRENT, Truth::True, reasons::CURRENT),
        ]
    );
    assert_eq!(of(&said, Kind::InferencePool, "gpu"), [(types::READY, Truth::True, reasons::ALL_WORKERS_READY)]);
    assert_eq!(
        of(&said, Kind::InferencePolicy, "rules"),
        [(types::ACCEPTED, Truth::True, reasons::VALID), (types::IN_FORCE, Truth::True, reasons::RULES_IN_FORCE)]
    );
    assert!(said.values().all(|assessed| assessed.observed_generation == Some(3)));
}

/// What is written is what the kind's own type reads, with nothing left over.
#[test]
fn statuses_are_those_of_the_kinds() {
    fn through<S: DeserializeOwned + serde::Serialize>(said: &Assessments, kind: Kind, name: &str) -> Value {
        let time = k8s_openapi::jiff::Timestamp::from_second(1_700_000_000).unwrap();
        let status = merge(&ResourceStatus::default(), &said[&(kind, key(name))], &time.into());
        let written = serde_json::to_value(status).unwrap();
        let read: S = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written, "{kind}");
        written
    }
    let (mut status, mut outcomes) = healthy();
    status.providers.insert("default/bedrock".into(), Default::default());
    outcomes.insert((Kind::InferenceProvider, key("bedrock")), in_force());
    let said = assess(&status, &outcomes);
    let set = through::<InferenceWorkerSetStatus>(&said, Kind::InferenceWorkerSet, "qwen");
    assert_eq!(set["workers"], json!({"total": 2, "ready": 2}));
    assert_eq!((&set["bytesPerToken"], &set["cachedTokens"]), (&json!("4.1"), &json!(810_000)));
    assert_eq!(set["observedGeneration"], 3);
    let pool = through::<InferencePoolStatus>(&said, Kind::InferencePool, "gpu");
    assert_eq!((&pool["queuedRequests"], &pool["kvCacheUsage"]), (&json!("0.3"), &json!("0.61")));
    let backend = through::<GatewayBackendStatus>(&said, Kind::GatewayBackend, "main");
    assert_eq!(backend["filters"], json!({"connected": 2, "current": 2}));
    assert_eq!(backend["prefixIndex"], json!({"bytes": 21_000_000, "chunkBytes": 256}));
    let policy = through::<InferencePolicyStatus>(&said, Kind::InferencePolicy, "rules");
    assert_eq!(policy.get("lastGood"), None);
    let outcome = outcomes.get_mut(&(Kind::InferencePolicy, key("rules"))).unwrap();
    let spec = json!({"priority": 3, "rules": [{"name": "closed", "reject": {"status": 403}}]});
    outcome.last_good = Some(Arc::new(serde_json::from_value(spec.clone()).unwrap()));
    let policy = through::<InferencePolicyStatus>(&assess(&status, &outcomes), Kind::InferencePolicy, "rules");
    assert_eq!(policy["lastGood"]["rules"][0]["name"], "closed");
    through::<InferenceProviderStatus>(&said, Kind::InferenceProvider, "bedrock");
}

#[test]
fn a_worker_set_says_what_is_wrong_with_its_workers() {
    let said = worker_set(|set| set.workers.clear());
    let ready = one(&said, Kind::InferenceWorkerSet, "qwen", types::READY);
    assert_eq!((ready.status, ready.reason), (Truth::False, reasons::NO_WORKERS));
    let said = worker_set(|set| {
        set.workers.insert("b".into(), worker("unknown"));
    });
    let ready = one(&said, Kind::InferenceWorkerSet, "qwen", types::READY);
    assert_eq!((ready.status, ready.reason), (Truth::True, reasons::SOME_WORKERS_READY));
    assert_eq!(ready.message, "1 of 2 workers are ready");
    let said = worker_set(|set| {
        let refused = WorkerStatus { metrics_problem: Some("connection refused".into()), ..worker("unknown") };
        set.workers = (0..7).map(|number| (format!("w{number}"), refused.clone())).collect();
    });
    let ready = one(&said, Kind::InferenceWorkerSet, "qwen", types::READY);
    assert_eq!((ready.status, ready.reason), (Truth::False, reasons::NO_WORKER_READY));
    assert!(ready.message.starts_with("none of 7 workers is ready: w0: connection refused; w1: "), "{}", ready.message);
    assert!(ready.message.ends_with("; and 2 more"), "{}", ready.message);
    let events = one(&said, Kind::InferenceWorkerSet, "qwen", types::EVENTS_HEALTHY);
    assert_eq!((events.status, events.reason), (Truth::Unknown, reasons::NO_WORKER_READY));
}

#[test]
fn a_worker_set_says_what_is_wrong_with_text_and_events() {
    let said = worker_set(|set| {
        set.tokenizer_problem = Some("no tokenizer.json in /models".into());
        set.prompt_fidelity = Some(false);
        set.routed_because = Some("the filter's prompt text is not the engine's: probe 1".into());
    });
    let tokenizer = one(&said, Kind::InferenceWorkerSet, "qwen", types::TOKENIZER_LOADED);
    assert_eq!((tokenizer.status, tokenizer.reason), (Truth::False, reasons::TOKENIZER_UNUSABLE));
    assert!(tokenizer.message.starts_with("no tokenizer.json in /models"), "{}", tokenizer.message);
    let fidelity = one(&said, Kind::InferenceWorkerSet, "qwen", types::PROMPT_FIDELITY);
    assert_eq!((fidelity.status, fidelity.reason), (Truth::False, reasons::TEXT_DIFFERS));
    assert!(fidelity.message.contains("probe 1"), "{}", fidelity.message);

    let with_events = |events: EventHealth| {
        worker_set(|set| {
            set.workers.insert("b".into(), WorkerStatus { events: Some(events), ..worker("ready") });
        })
    };
    let said = with_events(EventHealth { last_problem: Some("refused".into()), ..EventHealth::default() });
    let events = one(&said, Kind::InferenceWorkerSet, "qwen", types::EVENTS_HEALTHY);
    assert_eq!((events.status, events.reason), (Truth::False, reasons::NOT_CONNECTED));
    assert!(events.message.starts_with("b: refused. "), "{}", events.message);
    let said = with_events(EventHealth { connected: true, ..EventHealth::default() });
    let events = one(&said, Kind::InferenceWorkerSet, "qwen", types::EVENTS_HEALTHY);
    assert_eq!((events.status, events.reason), (Truth::False, reasons::CATCHING_UP));
    let said = worker_set(|set| {
        set.kv_events = false;
        set.prompt_fidelity = None;
        set.routed_because = Some("the worker set has no kvEvents".into());
    });
    let events = one(&said, Kind::InferenceWorkerSet, "qwen", types::EVENTS_HEALTHY);
    assert_eq!((events.status, events.reason), (Truth::Unknown, reasons::NOT_CONFIGURED));
    let fidelity = one(&said, Kind::InferenceWorkerSet, "qwen", types::PROMPT_FIDELITY);
    assert_eq!((fidelity.status, fidelity.reason), (Truth::Unknown, reasons::NOT_CHECKED));
}

#[test]
fn a_gateway_backend_says_what_its_filters_hold() {
    let said = backend(|backend| backend.prefix_index.chunk_bytes = 1024);
    let budget = one(&said, Kind::GatewayBackend, "main", types::PREFIX_INDEX_WITHIN_BUDGET);
    assert_eq!((budget.status, budget.reason), (Truth::False, reasons::GRID_COARSENED));
    assert!(budget.message.contains("raise spec.prefixIndex.maxBytes"), "{}", budget.message);
    let said = backend(|backend| (backend.filters_connected, backend.filters_current) = (0, 0));
    let filters = one(&said, Kind::GatewayBackend, "main", types::FILTERS_CURRENT);
    assert_eq!((filters.status, filters.reason), (Truth::Unknown, reasons::NO_FILTER_CONNECTED));
    let said = backend(|backend| backend.filters_current = 1);
    let filters = one(&said, Kind::GatewayBackend, "main", types::FILTERS_CURRENT);
    assert_eq!((filters.status, filters.reason), (Truth::False, reasons::CATCHING_UP));
    let (mut status, outcomes) = healthy();
    status.backends.get_mut("default/main").unwrap().filters_current = 1;
    status.filters[0].epoch = 8;
    status.filters[0].last_rejection = Some("a template does not compile".into());
    let said = assess(&status, &outcomes);
    let filters = one(&said, Kind::GatewayBackend, "main", types::FILTERS_CURRENT);
    assert_eq!((filters.status, filters.reason), (Truth::False, reasons::SNAPSHOT_REFUSED));
    assert!(filters.message.ends_with("a template does not compile"), "{}", filters.message);
}

#[test]
fn a_policy_says_which_version_of_it_is_in_force() {
    let policy = |change: fn(&mut Outcome)| {
        let (status, mut outcomes) = healthy();
        change(outcomes.get_mut(&(Kind::InferencePolicy, key("rules"))).unwrap());
        let said = assess(&status, &outcomes);
        let gist = |condition| {
            let finding = one(&said, Kind::InferencePolicy, "rules", condition);
            (finding.status, finding.reason, finding.message.clone())
        };
        (gist(types::ACCEPTED), gist(types::IN_FORCE))
    };
    let (_, force) = policy(|_| {});
    assert_eq!(force, (Truth::True, reasons::RULES_IN_FORCE, "2 rules in force in default/main".into()));

    let (accepted, force) = policy(|outcome| {
        outcome.problems = vec!["spec.rules[0].when.models: `[` is not closed".into()];
        outcome.standing = Standing::LastGood;
    });
    assert_eq!((accepted.0, accepted.1), (Truth::False, reasons::INVALID));
    assert!(accepted.2.starts_with("spec.rules[0].when.models"), "{}", accepted.2);
    assert_eq!((force.0, force.1), (Truth::False, reasons::LAST_GOOD_IN_FORCE));
    assert!(force.2.ends_with("the last good version of the policy stays in force"), "{}", force.2);

    let (_, force) = policy(|outcome| {
        outcome.problems = vec!["bad".into()];
        outcome.standing = Standing::NotInForce;
    });
    assert_eq!((force.0, force.1), (Truth::False, reasons::INVALID));

    let (accepted, force) = policy(|outcome| {
        outcome.held = Some("GatewayBackend default/main is not valid".into());
        outcome.standing = Standing::NotInForce;
    });
    assert_eq!((accepted.0, accepted.1), (Truth::True, reasons::VALID));
    assert_eq!(
        (force.0, force.1, force.2.as_str()),
        (Truth::False, reasons::HELD, "GatewayBackend default/main is not valid")
    );

    let (accepted, _) = policy(|outcome| outcome.warnings = vec!["rule b can never match".into()]);
    assert_eq!(accepted, (Truth::True, reasons::VALID_WITH_WARNINGS, "rule b can never match".into()));
}

#[test]
fn what_nothing_refers_to_says_so_and_what_is_wrong_says_that_first() {
    let (_, mut outcomes) = healthy();
    let nothing = Status::default();
    let said = assess(&nothing, &outcomes);
    for (kind, name) in
        [(Kind::InferenceWorkerSet, "qwen"), (Kind::InferencePool, "gpu"), (Kind::GatewayBackend, "main")]
    {
        let ready = one(&said, kind, name, types::READY);
        assert_eq!((ready.status, ready.reason), (Truth::False, reasons::NOT_USED), "{kind}");
    }
    let force = one(&said, Kind::InferencePolicy, "rules", types::IN_FORCE);
    assert_eq!((force.status, force.reason), (Truth::False, reasons::NO_GATEWAY_BACKEND));

    for outcome in outcomes.values_mut() {
        outcome.problems = vec!["spec: bad".into()];
        outcome.standing = Standing::LastGood;
    }
    let (status, _) = healthy();
    let said = assess(&status, &outcomes);
    let ready = one(&said, Kind::InferenceWorkerSet, "qwen", types::READY);
    assert_eq!((ready.status, ready.reason), (Truth::False, reasons::INVALID));
    assert_eq!(ready.message, "spec: bad; an earlier version stays in force");
    assert_eq!(said[&(Kind::InferenceWorkerSet, key("qwen"))].figures["workers"], json!({"total": 2, "ready": 2}));
}

#[test]
fn a_provider_says_what_is_wrong_with_its_credentials() {
    let provider = |provider: ProviderStatus| {
        let (mut status, mut outcomes) = healthy();
        status.providers.insert("default/cloud".into(), provider);
        outcomes.insert((Kind::InferenceProvider, key("cloud")), in_force());
        of(&assess(&status, &outcomes), Kind::InferenceProvider, "cloud")
    };
    let usable = ProviderStatus { ready: true, models: vec!["glm".into()], ..ProviderStatus::default() };
    let ready = (types::READY, Truth::True, reasons::OFFERED);
    assert_eq!(provider(usable.clone()), [ready, (types::CREDENTIALS_RESOLVED, Truth::True, reasons::NOT_NEEDED)]);
    let with_credentials = ProviderStatus { has_credentials: true, ..usable };
    let resolved = (types::CREDENTIALS_RESOLVED, Truth::True, reasons::RESOLVED);
    assert_eq!(provider(with_credentials.clone()), [ready, resolved]);
    let withheld = ProviderStatus {
        ready: false,
        reason: Some("filters are served in plain text".into()),
        ..with_credentials.clone()
    };
    assert_eq!(provider(withheld), [(types::READY, Truth::False, reasons::NOT_USABLE), resolved]);
    let missing = Some("Secret default/cloud was not found; create it".to_owned());
    let missing =
        ProviderStatus { ready: false, reason: missing.clone(), credentials_problem: missing, ..with_credentials };
    assert_eq!(
        provider(missing),
        [
            (types::READY, Truth::False, reasons::CREDENTIALS_MISSING),
            (types::CREDENTIALS_RESOLVED, Truth::False, reasons::CREDENTIALS_MISSING),
        ]
    );
}

#[test]
fn what_is_used_without_something_says_what_is_missing() {
    let (status, mut outcomes) = healthy();
    for outcome in outcomes.values_mut() {
        outcome.problems = vec!["spec.pools[1]: there is no InferencePool `x`".into()];
    }
    let said = assess(&status, &outcomes);
    let ready = one(&said, Kind::GatewayBackend, "main", types::READY);
    assert_eq!((ready.status, ready.reason), (Truth::True, reasons::REFERENCE_MISSING));
    assert_eq!(ready.message, "all 2 workers are ready; spec.pools[1]: there is no InferencePool `x`");
    let accepted = one(&said, Kind::InferencePolicy, "rules", types::ACCEPTED);
    assert_eq!((accepted.status, accepted.reason), (Truth::False, reasons::REFERENCE_MISSING));
    let force = one(&said, Kind::InferencePolicy, "rules", types::IN_FORCE);
    assert_eq!((force.status, force.reason), (Truth::True, reasons::RULES_IN_FORCE));
}

/// Every type and reason that the table of the README names, and no other.
#[test]
fn the_readme_has_every_condition_and_reason() {
    let readme = include_str!("../../README.md");
    let section = readme.split("\n## Conditions\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows: Vec<Vec<&str>> =
        section.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').collect()).collect();
    let quoted = |column: usize| -> BTreeSet<&str> {
        rows.iter().flat_map(|row| row[column].split('`').skip(1).step_by(2)).collect()
    };
    assert_eq!(quoted(2), types::ALL.iter().copied().collect());
    assert_eq!(quoted(4), reasons::ALL.iter().copied().collect());
}
