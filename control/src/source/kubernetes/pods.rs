//! Pods to workers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kinference_api::compile::{KvPorts, WorkerSpec};
use kinference_api::kinds::{LabelOperator, LabelSelector, Port};
use kube::api::{ApiResource, Object};
use kube::core::Expression;
use serde::Deserialize;

/// A Pod, with no more of it than makes a worker: there may be thousands.
pub(super) type Pod = Object<PodSpec, PodStatus>;

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct PodSpec {
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Container {
    #[serde(default)]
    ports: Vec<ContainerPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    #[serde(default)]
    name: String,
    container_port: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    #[serde(default, rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodIp {
    #[serde(default)]
    ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodCondition {
    r#type: String,
    status: String,
}

/// Pods as the API server knows them.
pub(super) fn api_resource() -> ApiResource {
    ApiResource::erase::<core::Pod>(&())
}

/// Drops what is not needed, before it is kept. Labels too: the API server selects.
pub(super) fn strip(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    pod.metadata.owner_references = None;
    pod.metadata.labels = None;
}

/// A selector in the words of the API server; the same for the same conditions in any order.
pub(super) fn selector(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
    let stated = selector.match_expressions.iter().map(|expression| {
        let (key, values) = (expression.key.clone(), expression.values.iter().cloned().collect());
        match expression.operator {
            LabelOperator::In => Expression::In(key, values),
            LabelOperator::NotIn => Expression::NotIn(key, values),
            LabelOperator::Exists => Expression::Exists(key),
            LabelOperator::DoesNotExist => Expression::DoesNotExist(key),
        }
    });
    let mut parts: Vec<String> = equal.chain(stated).map(|one| one.to_string()).collect();
    parts.sort();
    parts.dedup();
    parts.join(",")
}

/// The workers of a set, and the Pods that are ready and do not have the port.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selected {
    /// By name.
    pub(super) workers: Vec<WorkerSpec>,
    /// By name.
    pub(super) portless: Vec<String>,
}

/// Of the Pods that a set selects, those that are ready and not about to go are its workers.
pub(super) fn workers(pods: &[Arc<Pod>], port: &Port, kv_events: Option<KvPorts>) -> Selected {
    let mut ready: Vec<(&str, IpAddr, &Pod)> = pods
        .iter()
        .filter(|pod| is_ready(pod))
        .filter_map(|pod| Some((pod.metadata.name.as_deref()?, address(pod)?, pod.as_ref())))
        .collect();
    ready.sort_by_key(|(name, ..)| *name);
    let mut selected = Selected::default();
    let mut taken = BTreeSet::new();
    for (name, ip, pod) in ready {
        match number(pod, port) {
            // Of two Pods with the same address, one is a leftover; two workers there would be counted twice.
            Some(port) if taken.insert((ip, port)) => {
                selected.workers.push(WorkerSpec { name: name.to_owned(), ip, port, kv_events });
            }
            Some(_) => {}
            None => selected.portless.push(name.to_owned()),
        }
    }
    selected
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.clone().any(|condition| condition.r#type == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// The address of the cluster's primary family, which the API server puts first.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let addresses = status.pod_ip.iter().map(String::as_str).chain(status.pod_ips.iter().map(|one| one.ip.as_str()));
    addresses.filter_map(|address| address.parse().ok()).next()
}

fn number(pod: &Pod, port: &Port) -> Option<u16> {
    match port {
        Port::Number(number) => Some(*number),
        Port::Name(name) => {
            let mut ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
            let named = ports.find(|port| port.name == *name)?;
            u16::try_from(named.container_port).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [
                {"name": "side", "ports": [{"containerPort": 9000, "name": "metrics"}]},
                {"name": "engine", "ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 5557}]},
            ], "nodeName": "n"},
            "status": status,
        })
    }

    fn ready(ip: &str) -> Value {
        json!({"podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]})
    }

    fn parse(pods: &[Value]) -> Vec<Arc<Pod>> {
        pods.iter().map(|pod| Arc::new(serde_json::from_value(pod.clone()).unwrap())).collect()
    }

    fn addresses(pods: &[Value], port: Port) -> Vec<String> {
        let selected = workers(&parse(pods), &port, None);
        selected.workers.iter().map(|worker| format!("{}={}", worker.name, worker.http_address())).collect()
    }

    #[test]
    fn ready_pods_are_workers_by_name() {
        let mut going = pod("going", ready("10.0.0.9"));
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let not_ready = json!({"podIP": "10.0.0.3", "conditions": [{"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}]});
        let pods = [
            pod("b", ready("10.0.0.2")),
            pod("a", ready("10.0.0.1")),
            going,
            pod("unready", not_ready),
            pod("pending", json!({"phase": "Pending"})),
            pod("no-address", json!({"conditions": [{"type": "Ready", "status": "True"}]})),
        ];
        assert_eq!(addresses(&pods, Port::Number(8000)), ["a=10.0.0.1:8000", "b=10.0.0.2:8000"]);
    }

    #[test]
    fn the_primary_family_is_used_and_ipv6_is_written_as_it_must_be() {
        let mut dual = ready("fd00::8");
        dual["podIPs"] = json!([{"ip": "fd00::8"}, {"ip": "10.0.0.8"}]);
        let mut only_list = ready("10.0.0.7");
        only_list["podIP"] = Value::Null;
        let pods = [pod("dual", dual), pod("list", only_list)];
        assert_eq!(addresses(&pods, Port::Number(80)), ["dual=[fd00::8]:80", "list=10.0.0.7:80"]);
    }

    #[test]
    fn a_named_port_is_looked_up_in_all_containers() {
        let mut without = pod("without", ready("10.0.0.2"));
        without["spec"]["containers"] = json!([{"name": "engine"}]);
        let pods = [pod("a", ready("10.0.0.1")), without];
        assert_eq!(addresses(&pods, Port::Name("http".into())), ["a=10.0.0.1:8000"]);
        let selected = workers(&parse(&pods), &Port::Name("http".into()), None);
        assert_eq!(selected.portless, ["without"]);
    }

    #[test]
    fn two_pods_at_one_address_are_one_worker() {
        let pods = [pod("b", ready("10.0.0.1")), pod("a", ready("10.0.0.1"))];
        assert_eq!(addresses(&pods, Port::Number(8000)), ["a=10.0.0.1:8000"]);
    }

    #[test]
    fn selectors_are_written_in_one_way() {
        let of = |value: Value| selector(&serde_json::from_value(value).unwrap());
        let labels = json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["y", "x"]},
            {"key": "old", "operator": "DoesNotExist"},
        ]});
        assert_eq!(of(labels), "!old,a=1,b=2,tier in (x,y)");
        let other = json!({"matchExpressions": [
            {"key": "zone", "operator": "NotIn", "values": ["a"]},
            {"key": "gpu", "operator": "Exists"},
        ]});
        assert_eq!(of(other), "gpu,zone notin (a)");
    }
}
