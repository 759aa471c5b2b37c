//! The five kinds as Kubernetes takes them: custom resource definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

use crate::kinds::{GatewayBackend, InferencePolicy, InferencePool, InferenceProvider, InferenceWorkerSet};

#[cfg(test)]
mod tests;

/// A definition as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The plural of the kind, such as `inferencepools`.
    pub plural: String,
    /// The definition, one YAML document.
    pub yaml: String,
}

/// Why the definitions could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// A definition that is no JSON.
    #[error("a definition cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A definition that is no YAML.
    #[error("a definition cannot be written as YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
}

/// The definitions of the five kinds, with the schemas, rules and defaults that an API server enforces.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        GatewayBackend::crd(),
        InferencePolicy::crd(),
        InferencePool::crd(),
        InferenceProvider::crd(),
        InferenceWorkerSet::crd(),
    ];
    let versions = definitions.iter_mut().flat_map(|definition| &mut definition.spec.versions);
    for schema in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        tidy(schema);
    }
    definitions
}

/// The definitions as YAML, ready for `kubectl apply --server-side`.
///
/// # Errors
/// A definition that cannot be written: a mistake in this crate.
pub fn manifests() -> Result<Vec<Manifest>, CrdError> {
    let manifest = |definition: CustomResourceDefinition| {
        let mut content = serde_json::to_value(&definition)?;
        whole_numbers(&mut content);
        Ok(Manifest { plural: definition.spec.names.plural, yaml: serde_yaml_ng::to_string(&content)? })
    };
    definitions().into_iter().map(manifest).collect()
}

/// Takes out of a schema the formats that Kubernetes does not know and warns of; minimum and maximum state the same.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.format.take_if(|format| format.starts_with("uint"));
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(tidy);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => tidy(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(tidy),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}

/// Writes `1` for `1.0`: the type of a definition has floating-point bounds.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            if let Some(float) = whole {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}
