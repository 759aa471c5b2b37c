//! What resources refer to beyond their own kinds: Secrets, ConfigMaps, Pods and their ports.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use super::RESOURCES;
use crate::commands::check::finding::{Findings, counted};
use crate::commands::check::world::{Cluster, Named};

/// A Secret or ConfigMap that a resource names, and the keys that must be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands::check) struct Reference {
    /// The resource that names it.
    pub(in crate::commands::check) by: String,
    pub(in crate::commands::check) to: Named,
    pub(in crate::commands::check) is_secret: bool,
    /// The key that must be there.
    key: &'static str,
}

fn resource_name(kind: &str, resource: &DynamicObject) -> String {
    format!("{kind} {}/{}", resource.namespace().unwrap_or_default(), resource.name_any())
}

/// What a resource refers to.
pub(in crate::commands::check) fn references(kind: &str, resource: &DynamicObject) -> Vec<Reference> {
    let namespace = resource.namespace().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let reference = |name: Option<String>, is_secret, key| {
        let to = Named { namespace: namespace.clone(), name: name? };
        Some(Reference { by: resource_name(kind, resource), to, is_secret, key })
    };
    let spec = &resource.data["spec"];
    let found = match kind {
        // Requests are not signed with access keys yet, so they do not stand in for a token.
        "InferenceProvider" => reference(text(&spec["credentials"]["secretRef"]["name"]), true, "token"),
        "InferenceWorkerSet" => {
            reference(text(&spec["model"]["tokenizer"]["configMap"]["name"]), false, "tokenizer.json")
        }
        _ => None,
    };
    found.into_iter().collect()
}

/// The labels by which a worker set finds its Pods; `None` for one with a list of workers.
pub(in crate::commands::check) fn selector(set: &DynamicObject) -> Option<String> {
    let selector = &set.data["spec"]["workers"]["selector"];
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten().filter_map(|expression| {
        let key = expression["key"].as_str()?;
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match expression["operator"].as_str()? {
            "In" => Some(format!("{key} in ({})", values.join(","))),
            "NotIn" => Some(format!("{key} notin ({})", values.join(","))),
            "Exists" => Some(key.to_owned()),
            "DoesNotExist" => Some(format!("!{key}")),
            _ => None,
        }
    });
    let terms: Vec<String> = labels.chain(expressions).collect();
    (selector.is_object() && !terms.is_empty()).then(|| terms.join(","))
}

/// The ports of a worker set with the fields that state them.
fn ports(set: &DynamicObject) -> Vec<(&'static str, &Value)> {
    let spec = &set.data["spec"];
    let all = [
        ("workers.port", &spec["workers"]["port"]),
        ("kvEvents.port", &spec["kvEvents"]["port"]),
        ("kvEvents.replayPort", &spec["kvEvents"]["replayPort"]),
    ];
    all.into_iter().filter(|(_, port)| !port.is_null()).collect()
}

/// The number of a port in a Pod; `None` when no container has one of this name.
pub(in crate::commands::check) fn port_of(pod: &Pod, port: &Value) -> Option<u16> {
    let named = port.as_str();
    let Some(name) = named else { return port.as_u64().and_then(|number| u16::try_from(number).ok()) };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(found.container_port).ok()
}

pub(in crate::commands::check) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Where the engine of a Pod is to be reached.
pub(in crate::commands::check) fn address(pod: &Pod, set: &DynamicObject) -> Option<SocketAddr> {
    let ip = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(SocketAddr::new(ip, port_of(pod, &set.data["spec"]["workers"]["port"])?))
}

pub(super) fn judge(cluster: &Cluster, findings: &mut Findings) {
    for (kind, resources) in &cluster.resources {
        for resource in resources.iter().flatten() {
            references(kind, resource).iter().for_each(|reference| existing(cluster, reference, findings));
        }
    }
    if let Some(Ok(sets)) = cluster.resources.get("InferenceWorkerSet") {
        sets.iter().for_each(|set| pods(cluster, set, findings));
    }
}

fn existing(cluster: &Cluster, reference: &Reference, findings: &mut Findings) {
    let Reference { by, to, is_secret, key } = reference;
    let kind = if *is_secret { "Secret" } else { "ConfigMap" };
    let found = if *is_secret {
        cluster.secrets.get(to).map(|asked| asked.as_ref().map(|facts| facts.as_ref().map(|facts| &facts.keys)))
    } else {
        cluster.config_maps.get(to).map(|asked| asked.as_ref().map(Option::as_ref))
    };
    match found {
        Some(Ok(Some(there))) if there.contains(*key) => {
            findings.ok(RESOURCES, format!("{by}: {kind} {to} is there"));
        }
        Some(Ok(Some(_))) => {
            let message = format!("{by}: {kind} {to} lacks the key {key}");
            findings.problem(RESOURCES, message, format!("add it to the {kind}"));
        }
        Some(Ok(None)) => {
            let message = format!("{by}: {kind} {to} does not exist");
            findings.problem(RESOURCES, message, "create it in the namespace of the resource, or mend the name");
        }
        Some(Err(reason)) => {
            let message = format!("{by}: {kind} {to} cannot be looked at: {reason}");
            findings.warning(RESOURCES, message, "allow get on it to whoever checks; its values are not shown");
        }
        None => {}
    }
}

fn pods(cluster: &Cluster, set: &DynamicObject, findings: &mut Findings) {
    let name = Named { namespace: set.namespace().unwrap_or_default(), name: set.name_any() };
    let by = format!("InferenceWorkerSet {name}");
    let pods = match cluster.pods.get(&name) {
        None => return,
        Some(Err(reason)) => {
            let message = format!("{by}: Pods cannot be listed: {reason}");
            return findings.warning(RESOURCES, message, "allow list on pods to whoever checks");
        }
        Some(Ok(pods)) if pods.is_empty() => {
            let labels = selector(set).unwrap_or_default();
            let message = format!("{by}: no Pod has the labels {labels}");
            return findings.problem(RESOURCES, message, "mend spec.workers.selector, or start the engines");
        }
        Some(Ok(pods)) => pods,
    };
    let ready: Vec<&Pod> = pods.iter().filter(|pod| is_ready(pod)).collect();
    let message = format!("{by}: {} of {} ready", ready.len(), counted(pods.len(), "Pod"));
    match (ready.len(), pods.len()) {
        (0, _) => findings.problem(RESOURCES, message, "only ready Pods get requests: see their probes"),
        (ready, all) if ready == all => findings.ok(RESOURCES, message),
        _ => findings.warning(RESOURCES, message, "only ready Pods get requests: see the others' probes"),
    }
    for (field, port) in ports(set) {
        let without: Vec<String> =
            pods.iter().filter(|pod| port_of(pod, port).is_none()).map(ResourceExt::name_any).collect();
        if !without.is_empty() {
            let message = format!("{by}: {} has no port named {port}", without.join(", "));
            findings.problem(RESOURCES, message, format!("name the container's port so, or mend spec.{field}"));
        }
    }
    let addresses = ready.iter().filter_map(|pod| address(pod, set)).map(|address| address.to_string());
    let asked: Vec<_> = addresses.filter_map(|at| Some((cluster.connections.get(&at)?, at))).collect();
    let refused: Vec<String> =
        asked.iter().filter_map(|(result, at)| Some(format!("{at} ({})", result.as_ref().err()?))).collect();
    if !refused.is_empty() {
        let message = format!("{by}: not reached from here: {}", refused.join(", "));
        let hint = "nothing is wrong when this machine is outside of the cluster's network; else see network policies";
        findings.warning(RESOURCES, message, hint);
    } else if !asked.is_empty() {
        findings.ok(RESOURCES, format!("{by}: {} reached from here", counted(asked.len(), "Pod")));
    }
}
