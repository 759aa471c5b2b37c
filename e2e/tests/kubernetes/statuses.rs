//! What the control service writes to the resources' statuses.

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kinference_api::kinds::{GatewayBackend, InferencePolicy, InferencePool, InferenceProvider, InferenceWorkerSet};
use kinference_bench::stack::{ControlService, Source, until};
use kinference_e2e::alone;
use kinference_e2e::kubernetes::Namespace;
use kube::api::ListParams;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::{FOLLOW, Fleet, answered_with, must, source, turned_away};

/// Time for a status to be right: figures are written at most every ten seconds.
const WRITTEN: Duration = Duration::from_secs(30);
/// Time for another replica to take over: some 17 seconds.
const TAKE_OVER: Duration = Duration::from_secs(60);

/// A resource as the API server has it.
async fn resource<K>(namespace: &Namespace, name: &str) -> Value
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize,
    K: std::fmt::Debug,
{
    json!(must(namespace.get::<K>(name).await))
}

/// Waits until a resource's status describes its present spec and has these conditions, and gives the resource.
pub(crate) async fn with_conditions<K>(namespace: &Namespace, name: &str, expected: &[(&str, &str, &str)]) -> Value
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize,
    K: std::fmt::Debug,
{
    let what = format!("conditions {expected:?} of {name}");
    let found = until(&what, WRITTEN, async || {
        let object = resource::<K>(namespace, name).await;
        let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
        let has = |(kind, value, reason): &(&str, &str, &str)| {
            status["conditions"].as_array().into_iter().flatten().any(|condition| {
                condition["type"] == *kind
                    && condition["status"] == *value
                    && condition["reason"] == *reason
                    && condition["observedGeneration"] == *generation
            })
        };
        let right = status["observedGeneration"] == *generation && expected.iter().all(has);
        if right { Ok(object) } else { Err(format!("generation {generation}, status {status}")) }
    });
    must(found.await)
}

#[test]
fn statuses_say_what_is_so_and_an_idle_fleet_writes_none() {
    alone(180, async {
        let fleet = Fleet::start(3, 2).await;
        let namespace = &fleet.namespace;
        let set = with_conditions::<InferenceWorkerSet>(
            namespace,
            "simulated",
            &[
                ("Ready", "True", "AllWorkersReady"),
                ("TokenizerLoaded", "True", "Loaded"),
                ("PromptFidelity", "True", "TextEqual"),
                ("EventsHealthy", "True", "Current"),
            ],
        );
        assert_eq!(set.await["status"]["workers"], json!({"total": 2, "ready": 2}));
        let pool = with_conditions::<InferencePool>(namespace, "gpu", &[("Ready", "True", "AllWorkersReady")]);
        assert_eq!(pool.await["status"]["workers"], json!({"total": 2, "ready": 2}));
        let expected = [
            ("Ready", "True", "AllWorkersReady"),
            ("PrefixIndexWithinBudget", "True", "WithinBudget"),
            ("FiltersCurrent", "True", "Current"),
        ];
        with_conditions::<GatewayBackend>(namespace, "main", &expected).await;

        // Nothing happens, so nothing is written, for longer than figures wait.
        let settled = until("statuses that stay as they are", Duration::from_secs(60), async || {
            let before = versions(namespace).await;
            tokio::time::sleep(Duration::from_secs(12)).await;
            let after = versions(namespace).await;
            if before == after { Ok(()) } else { Err(format!("{before:?}, then {after:?}")) }
        });
        must(settled.await);

        must(namespace.set_ready(&fleet.workers[0], false).await);
        fleet.delete(1).await;
        must(namespace.add(&fleet.workers[2], true).await);
        let changed = until("the workers that are there now", WRITTEN, async || {
            let set = resource::<InferenceWorkerSet>(namespace, "simulated").await;
            let workers = &set["status"]["workers"];
            if workers["ready"] == 1 { Ok(()) } else { Err(set["status"].to_string()) }
        });
        must(changed.await);

        fleet.delete(0).await;
        fleet.delete(2).await;
        with_conditions::<InferenceWorkerSet>(namespace, "simulated", &[("Ready", "False", "NoWorkers")]).await;
        fleet.end().await;
    });
}

/// The versions of all resources of the five kinds.
async fn versions(namespace: &Namespace) -> Vec<String> {
    async fn of<K>(namespace: &Namespace, versions: &mut Vec<String>)
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned,
        K: std::fmt::Debug,
    {
        let list = must(namespace.api::<K>().list(&ListParams::default()).await);
        versions.extend(list.items.iter().filter_map(|object| object.meta().resource_version.clone()));
    }
    let mut versions = Vec::new();
    of::<GatewayBackend>(namespace, &mut versions).await;
    of::<InferencePolicy>(namespace, &mut versions).await;
    of::<InferencePool>(namespace, &mut versions).await;
    of::<InferenceProvider>(namespace, &mut versions).await;
    of::<InferenceWorkerSet>(namespace, &mut versions).await;
    versions
}

#[test]
fn a_policy_that_does_not_compile_says_so_and_the_last_good_rules_stay_in_force() {
    alone(180, async {
        let mut fleet = Fleet::start(1, 1).await;
        let client = fleet.stack.client();
        must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 429)).await);
        answered_with(&fleet, &client, 1, 429).await;
        let good = [("Accepted", "True", "Valid"), ("InForce", "True", "RulesInForce")];
        with_conditions::<InferencePolicy>(&fleet.namespace, "closed", &good).await;

        // The API server cannot know that there is no such pool.
        let broken = "apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {name: closed}
spec:
  rules:
  - name: closed
    when: {pools: [{name: no-such-pool, signal: KvCacheUsage, atLeast: \"0.9\"}]}
    reject: {status: 403, message: Closed for the test.}
";
        must(fleet.namespace.apply(broken).await);
        let bad = [("Accepted", "False", "Invalid"), ("InForce", "False", "LastGoodInForce")];
        let policy = with_conditions::<InferencePolicy>(&fleet.namespace, "closed", &bad).await;
        assert_eq!(policy["status"]["lastGood"]["rules"][0]["reject"]["status"], 429, "{policy}");
        let conditions = policy["status"]["conditions"].to_string();
        assert!(conditions.contains("no-such-pool") && conditions.contains("rules[0]"), "{conditions}");
        for _ in 0..5 {
            assert_eq!(fleet.ask(&client, 1).await.status, 429);
        }

        // Another process knows only what stands in the API server.
        must(fleet.stack.restart_control().await);
        let taken_up = until("the filters at the new process's epoch", FOLLOW, async || {
            let status = fleet.stack.status().await.map_err(|error| error.to_string())?;
            let backend = &status["backends"][fleet.namespace.key("main")];
            let (connected, current) = (&backend["filtersConnected"], &backend["filtersCurrent"]);
            if connected == current && current.as_u64() > Some(1) { Ok(()) } else { Err(status.to_string()) }
        });
        must(taken_up.await);
        for _ in 0..5 {
            assert_eq!(fleet.ask(&client, 1).await.status, 429);
        }
        with_conditions::<InferencePolicy>(&fleet.namespace, "closed", &bad).await;

        must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 403)).await);
        answered_with(&fleet, &client, 1, 403).await;
        let policy = with_conditions::<InferencePolicy>(&fleet.namespace, "closed", &good).await;
        assert_eq!(policy["status"].get("lastGood"), None, "{policy}");
        fleet.end().await;
    });
}

/// Waits until a policy's status says that its rules are in force.
pub(crate) async fn policy_in_force(namespace: &Namespace, name: &str) {
    with_conditions::<InferencePolicy>(namespace, name, &[("InForce", "True", "RulesInForce")]).await;
}

#[test]
fn one_of_two_replicas_writes_and_the_other_takes_over() {
    alone(240, async {
        let mut fleet = Fleet::start(2, 2).await;
        let source = Source::Kubernetes(source(&fleet.cluster, &fleet.namespace, "simulated", 2));
        let first = fleet.set_ready_count(2).await;
        assert_eq!(first, json!({"total": 2, "ready": 2}));
        let second = must(ControlService::start("second-replica", &source, fleet.cluster.folder()).await);
        until_settled(&second).await;

        must(fleet.namespace.set_ready(&fleet.workers[0], false).await);
        fleet.set_ready_count(1).await;
        assert!(writes(fleet.stack.control()).await > 0, "the first replica wrote nothing");
        assert_eq!(writes(&second).await, 0, "the second replica wrote too");

        fleet.stack.kill_control();
        must(fleet.namespace.set_ready(&fleet.workers[0], true).await);
        let taken_over = until("a write of the second replica", TAKE_OVER, async || {
            let count = writes(&second).await;
            if count > 0 { Ok(()) } else { Err("none yet".into()) }
        });
        must(taken_over.await);
        fleet.set_ready_count(2).await;
        fleet.end().await;
    });
}

impl Fleet {
    /// Waits until the worker set's status counts so many ready workers, and gives its counts.
    async fn set_ready_count(&self, ready: u64) -> Value {
        let what = format!("{ready} ready workers in the status");
        let found = until(&what, TAKE_OVER, async || {
            let workers =
                resource::<InferenceWorkerSet>(&self.namespace, "simulated").await["status"]["workers"].clone();
            if workers["ready"] == ready { Ok(workers) } else { Err(workers.to_string()) }
        });
        must(found.await)
    }
}

async fn until_settled(control: &ControlService) {
    let ready = until("a ready replica", FOLLOW, async || {
        let answer = control.admin().get("/readyz").await.map_err(|error| error.to_string())?;
        if answer.status.is_success() { Ok(()) } else { Err(answer.text()) }
    });
    must(ready.await);
}

/// Statuses that a replica wrote.
async fn writes(control: &ControlService) -> u64 {
    let page = must(control.admin().get("/metrics").await).text();
    let lines = page
        .lines()
        .filter(|line| line.starts_with("kinference_status_writes_total{") && line.contains("result=\"ok\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
