//! The conditions of the resources.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize;

use super::RESOURCES;
use crate::commands::check::finding::{Findings, counted};
use crate::commands::check::world::Cluster;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

pub(super) fn judge(cluster: &Cluster, findings: &mut Findings) {
    for (kind, resources) in &cluster.resources {
        let resources = match resources {
            Ok(resources) => resources,
            Err(reason) => {
                let hint = "install the definitions, and allow list on this kind to whoever checks";
                findings.problem(RESOURCES, format!("{kind}: cannot be listed: {reason}"), hint);
                continue;
            }
        };
        let before = findings.all().len();
        resources.iter().for_each(|resource| conditions(kind, resource, findings));
        if findings.all().len() == before && !resources.is_empty() {
            findings.ok(RESOURCES, format!("{} of kind {kind}", counted(resources.len(), "resource")));
        }
    }
    if let Some(Ok(backends)) = cluster.resources.get("GatewayBackend")
        && backends.is_empty()
    {
        let place = cluster.namespace.as_ref().map_or("this cluster".into(), |name| format!("namespace {name}"));
        findings.problem(
            RESOURCES,
            format!("there is no GatewayBackend in {place}"),
            "apply one: it says which pools the filters of a gateway serve",
        );
    }
}

fn conditions(kind: &str, resource: &DynamicObject, findings: &mut Findings) {
    let name = format!("{kind} {}/{}", resource.namespace().unwrap_or_default(), resource.name_any());
    let status = &resource.data["status"];
    let listed = Vec::<Condition>::deserialize(&status["conditions"]).unwrap_or_default();
    if listed.is_empty() {
        let hint = "the control service sets them; is it running, and does it look at this namespace?";
        return findings.warning(RESOURCES, format!("{name} has no conditions"), hint);
    }
    let seen = status["observedGeneration"].as_i64();
    if let (Some(seen), Some(generation)) = (seen, resource.metadata.generation)
        && seen < generation
    {
        let message = format!("{name}: its last change (generation {generation}) was not taken in yet (at {seen})");
        findings.warning(RESOURCES, message, "wait a moment; else see the control service's log");
    }
    for condition in listed.iter().filter(|condition| condition.status != "True") {
        let Condition { kind, status, reason, message } = condition;
        let text = format!("{name}: {kind} is {status} ({reason})");
        let hint = if message.is_empty() { "the control service's log says more" } else { message };
        match (kind.as_str(), status.as_str()) {
            // A policy that is not accepted or not in force keeps a rule from holding, and that may be one of safety.
            ("Ready" | "Accepted" | "InForce", "False") => findings.problem(RESOURCES, text, hint),
            _ => findings.warning(RESOURCES, text, hint),
        }
    }
}
