//! The five kinds, one file each, and the small types that they share.

mod backend;
mod policy;
mod pool;
mod port;
mod provider;
mod shared;
mod tenancy;
mod worker_set;

pub use backend::*;
pub use policy::*;
pub use pool::*;
pub use port::*;
pub use provider::*;
pub use shared::*;
pub use tenancy::*;
pub use worker_set::*;

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::Value;

    use super::*;
    use crate::{GROUP, VERSION};

    /// The places of all fields of a schema that say nothing about themselves.
    fn undocumented(schema: &Value, place: &str, found: &mut Vec<String>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, field) in properties.into_iter().flatten() {
            let place = format!("{place}.{name}");
            if field.get("description").is_none() {
                found.push(place.clone());
            }
            undocumented(field, &place, found);
        }
        if let Some(items) = schema.get("items") {
            undocumented(items, &format!("{place}[]"), found);
        }
    }

    #[test]
    fn every_kind_makes_a_structural_schema_with_documentation_on_every_field() {
        for definition in [
            GatewayBackend::crd(),
            InferencePolicy::crd(),
            InferencePool::crd(),
            InferenceProvider::crd(),
            InferenceWorkerSet::crd(),
        ] {
            let spec = definition.spec;
            assert_eq!((spec.group.as_str(), spec.scope.as_str()), (GROUP, "Namespaced"));
            let [version] = spec.versions.as_slice() else {
                panic!("{}: not one version", spec.names.kind);
            };
            assert_eq!(version.name, VERSION);
            assert!(version.subresources.as_ref().is_some_and(|s| s.status.is_some()));
            let schema = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
            let schema = serde_json::to_value(schema).unwrap();
            let mut found = Vec::new();
            for part in ["spec", "status"] {
                let schema = &schema["properties"][part];
                assert!(schema["properties"].is_object(), "{}: no {part}", spec.names.kind);
                undocumented(schema, part, &mut found);
            }
            assert!(found.is_empty(), "{}: {found:?}", spec.names.kind);
        }
    }

    #[test]
    fn defaults_are_in_the_schema() {
        let schema = serde_json::to_value(GatewayBackend::crd()).unwrap();
        let spec = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["requestBodyLimit"]["default"], "8Mi");
        assert_eq!(spec["staleAfter"]["default"], "10s");
        assert_eq!(spec["failureMode"]["default"], "Open");
        assert_eq!(spec["prefixIndex"]["properties"]["chunkBytes"]["default"], 256);
    }
}
