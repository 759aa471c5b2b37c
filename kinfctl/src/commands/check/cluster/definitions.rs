//! The API server's version, and the definitions of the five kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use serde_json::Value;

use super::CLUSTER;
use crate::commands::check::finding::Findings;
use crate::commands::check::world::Asked;

/// The rules in the schemas are CEL, which is on in every cluster from this version on.
const LEAST: (u32, u32) = (1, 30);
/// Places of a difference that are named.
const NAMED: usize = 3;

/// False when the API server does not answer, and nothing else can be looked at.
pub(super) fn version(version: &Asked<(u32, u32)>, findings: &mut Findings) -> bool {
    match version {
        Ok((major, minor)) if (*major, *minor) < LEAST => findings.problem(
            CLUSTER,
            format!("the API server is {major}.{minor}; the rules in the schemas need {}.{}", LEAST.0, LEAST.1),
            "upgrade the cluster",
        ),
        Ok((major, minor)) => findings.ok(CLUSTER, format!("the API server answers, version {major}.{minor}")),
        Err(reason) => findings.problem(
            CLUSTER,
            format!("the API server does not answer: {reason}"),
            "check the kubeconfig (KUBECONFIG, --context) and the way to the cluster",
        ),
    }
    version.is_ok()
}

/// Compares what is installed with what this program would install.
pub(super) fn judge(
    installed: &Asked<Vec<CustomResourceDefinition>>,
    own: &[CustomResourceDefinition],
    findings: &mut Findings,
) {
    let installed = match installed {
        Ok(installed) => installed,
        Err(reason) => {
            return findings.problem(
                CLUSTER,
                format!("definitions cannot be listed: {reason}"),
                "allow list on customresourcedefinitions.apiextensions.k8s.io to whoever checks",
            );
        }
    };
    for own in own {
        let name = own.name_any();
        let Some(found) = installed.iter().find(|found| found.name_any() == name) else {
            findings.problem(
                CLUSTER,
                format!("{name} is not installed"),
                "kinfctl crds | kubectl apply --server-side -f -",
            );
            continue;
        };
        let conditions = found.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let not_true: Vec<String> = conditions
            .filter(|condition| {
                ["Established", "NamesAccepted"].contains(&&*condition.type_) && condition.status != "True"
            })
            .map(|condition| condition.message.clone().unwrap_or_else(|| condition.type_.clone()))
            .collect();
        if !not_true.is_empty() {
            let message = format!("{name} is not served: {}", not_true.join("; "));
            findings.problem(CLUSTER, message, "another definition most likely has its names");
            continue;
        }
        let differences = differences(own, found);
        if differences.is_empty() {
            findings.ok(CLUSTER, format!("{name} is installed, as this kinfctl has it"));
            continue;
        }
        let more = differences.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let places = differences.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        findings.warning(
            CLUSTER,
            format!("{name} is another version's than this kinfctl's; it differs in {places}{more}"),
            "kinfctl crds | kubectl apply --server-side -f -   (or use the kinfctl of that version)",
        );
    }
}

/// Where the versions of two definitions differ. What an API server adds by itself does not count.
fn differences(own: &CustomResourceDefinition, found: &CustomResourceDefinition) -> Vec<String> {
    let versions = |definition: &CustomResourceDefinition| {
        let versions = definition.spec.versions.iter();
        versions
            .map(|version| (version.name.clone(), serde_json::to_value(version).unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let installed = versions(found);
    let mut places = Vec::new();
    for (name, own) in versions(own) {
        match installed.iter().find(|(found, _)| *found == name) {
            Some((_, found)) => compare(&own, found, &name, &mut places),
            None => places.push(name),
        }
    }
    places
}

fn compare(own: &Value, found: &Value, place: &str, places: &mut Vec<String>) {
    match (own, found) {
        (Value::Object(own), Value::Object(found)) => {
            for (key, value) in own {
                let place = format!("{place}.{key}");
                match found.get(key) {
                    Some(other) => compare(value, other, &place, places),
                    None if is_default(value) => {}
                    None => places.push(place),
                }
            }
            for (key, value) in found.iter().filter(|(key, _)| !own.contains_key(*key)) {
                // Defaults of the definition itself, such as `priority: 0` of a column.
                if !is_default(value) {
                    places.push(format!("{place}.{key}"));
                }
            }
        }
        (Value::Array(own), Value::Array(found)) if own.len() == found.len() => {
            for (index, (own, found)) in own.iter().zip(found).enumerate() {
                compare(own, found, &format!("{place}[{index}]"), places);
            }
        }
        (Value::Number(own), Value::Number(found)) if own.as_f64() == found.as_f64() => {}
        (own, found) if own == found => {}
        _ => places.push(place.to_string()),
    }
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) => false,
    }
}
