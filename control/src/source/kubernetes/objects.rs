//! Objects of the API server to resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_api::kinds::{
    GatewayBackend, InferencePolicy, InferencePolicySpec, InferencePool, InferenceProvider, InferenceWorkerSet,
};
use kinference_api::source::read_spec;
use kinference_api::{Kind, ObjectKey, Origin, Resource, Severity};
use kube::api::{ApiResource, DynamicObject};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::conditions::merge::ResourceStatus;
use crate::conditions::pace::{Current, Currents};
use crate::source::judge::{Read, Remark};

/// The kind as the API server knows it.
pub(crate) fn api_resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::GatewayBackend => ApiResource::erase::<GatewayBackend>(&()),
        Kind::InferencePolicy => ApiResource::erase::<InferencePolicy>(&()),
        Kind::InferencePool => ApiResource::erase::<InferencePool>(&()),
        Kind::InferenceProvider => ApiResource::erase::<InferenceProvider>(&()),
        Kind::InferenceWorkerSet => ApiResource::erase::<InferenceWorkerSet>(&()),
    }
}

/// Drops what is not needed, before it is kept.
pub(super) fn strip(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    object.metadata.owner_references = None;
    if let Some(data) = object.data.as_object_mut() {
        data.retain(|field, _| field == "spec" || field == "status");
    }
}

/// The key of an object.
pub(super) fn key(object: &DynamicObject) -> ObjectKey {
    let metadata = &object.metadata;
    ObjectKey::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Reads each by itself; one that cannot be read is a remark on it and keeps no other from being read.
pub(super) fn read(objects: &[(Kind, Arc<DynamicObject>)]) -> Read {
    let mut read = Read::default();
    for (kind, object) in objects {
        let resources = &mut read.resources;
        let result = match kind {
            Kind::GatewayBackend => put(&mut resources.backends, object),
            Kind::InferencePolicy => put(&mut resources.policies, object),
            Kind::InferencePool => put(&mut resources.pools, object),
            Kind::InferenceProvider => put(&mut resources.providers, object),
            Kind::InferenceWorkerSet => put(&mut resources.worker_sets, object),
        };
        let id = (*kind, key(object));
        if let Err(text) = result {
            let resource = Some(id.clone());
            read.remarks.push(Remark { resource, severity: Severity::Error, text, has_file: false });
        }
        read.generations.insert(id, object.metadata.generation.unwrap_or_default());
    }
    read
}

fn put<S: DeserializeOwned>(into: &mut BTreeMap<ObjectKey, Resource<S>>, object: &DynamicObject) -> Result<(), String> {
    put_spec(into, object, &object.data)
}

fn put_spec<S: DeserializeOwned>(
    into: &mut BTreeMap<ObjectKey, Resource<S>>,
    object: &DynamicObject,
    data: &Value,
) -> Result<(), String> {
    let spec = read_spec(data).map_err(|error| error.to_string())?;
    let labels = object.metadata.labels.clone().unwrap_or_default();
    let key = key(object);
    into.insert(key.clone(), Resource { key, labels, spec, origin: Origin::Cluster });
    Ok(())
}

/// The policies that were in force in place of those that stood in the API server, as their statuses tell.
pub(super) fn last_good(objects: &[(Kind, Arc<DynamicObject>)]) -> BTreeMap<ObjectKey, Resource<InferencePolicySpec>> {
    let mut policies = BTreeMap::new();
    for (kind, object) in objects {
        let told = object.data.get("status").and_then(|status| status.get("lastGood"));
        let Some(told) = told.filter(|told| *kind == Kind::InferencePolicy && !told.is_null()) else { continue };
        let spec = json!({"spec": told});
        if let Err(problem) = put_spec(&mut policies, object, &spec) {
            tracing::error!(
                "InferencePolicy {}: status.lastGood cannot be read, so its last good rules are lost: {problem}",
                key(object)
            );
        }
    }
    policies
}

/// What the watches show of statuses. One that cannot be read is as good as none: it is written anew.
pub(super) fn currents(objects: &[(Kind, Arc<DynamicObject>)]) -> Currents {
    let current = |(kind, object): &(Kind, Arc<DynamicObject>)| {
        let status = object.data.get("status").and_then(|status| ResourceStatus::deserialize(status).ok());
        let current = Current {
            resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
            generation: object.metadata.generation,
            status: status.unwrap_or_default(),
        };
        ((*kind, key(object)), current)
    };
    objects.iter().map(current).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, generation: i64, spec: Value) -> Arc<DynamicObject> {
        let object = json!({
            "metadata": {"name": name, "namespace": "team", "generation": generation, "labels": {"tier": "cheap"}},
            "spec": spec,
            "status": {"conditions": []},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn one_that_cannot_be_read_is_told_and_the_others_are_read() {
        let pool = object("gpu", 3, json!({"workerSets": {"names": ["qwen"]}}));
        let old = object("old", 7, json!({"workerSets": 5}));
        let read = read(&[(Kind::InferencePool, pool), (Kind::InferencePool, old)]);
        let [pool] = read.resources.pools.values().collect::<Vec<_>>()[..] else { panic!("{read:?}") };
        assert_eq!(pool.key, ObjectKey::new("team", "gpu"));
        assert_eq!(pool.labels["tier"], "cheap");
        let [remark] = &read.remarks[..] else { panic!("{read:?}") };
        assert_eq!(remark.resource, Some((Kind::InferencePool, ObjectKey::new("team", "old"))));
        assert!(remark.text.starts_with("spec.workerSets: "), "{}", remark.text);
        assert_eq!(read.generations.values().copied().collect::<Vec<_>>(), [3, 7]);
    }

    #[test]
    fn statuses_are_read_and_a_strange_one_counts_as_none() {
        let mut told = (*object("gpu", 3, json!({}))).clone();
        told.metadata.resource_version = Some("17".into());
        told.data["status"] = json!({"observedGeneration": 2, "conditions": [], "workers": {"total": 1, "ready": 0}});
        let mut strange = (*object("old", 1, json!({}))).clone();
        strange.data["status"] = json!({"conditions": [{"type": 5}]});
        let shown = currents(&[(Kind::InferencePool, told.into()), (Kind::InferencePool, strange.into())]);
        let of = |name: &str| &shown[&(Kind::InferencePool, ObjectKey::new("team", name))];
        assert_eq!((of("gpu").resource_version.as_str(), of("gpu").generation), ("17", Some(3)));
        assert_eq!(of("gpu").status.observed_generation, Some(2));
        assert_eq!(of("gpu").status.figures["workers"], json!({"total": 1, "ready": 0}));
        assert_eq!(of("old").status, ResourceStatus::default());
    }

    #[test]
    fn only_what_is_needed_is_kept() {
        let mut kept = (*object("gpu", 3, json!({"workerSets": {}}))).clone();
        kept.metadata.annotations = Some(BTreeMap::from([("a".into(), "b".into())]));
        strip(&mut kept);
        assert_eq!(kept.data, json!({"spec": {"workerSets": {}}, "status": {"conditions": []}}));
        assert!(kept.metadata.annotations.is_none() && kept.metadata.labels.is_some());
    }
}
