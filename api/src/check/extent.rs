//! Lists and texts that are longer than the schema lets them be.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde::Serialize;
use serde_json::Value;

use super::Reporter;
use crate::{FieldPath, Kind, Resource, crds};

/// The schemas of the kinds' specs, by the kinds' names.
static SPECS: LazyLock<BTreeMap<String, JSONSchemaProps>> = LazyLock::new(|| {
    let specs = crds::definitions().into_iter().filter_map(|definition| {
        let version = definition.spec.versions.into_iter().next()?;
        let spec = version.schema?.open_api_v3_schema?.properties?.remove("spec")?;
        Some((definition.spec.names.kind, spec))
    });
    specs.collect()
});

/// Reports what is too long, except where something else was said about it.
pub(super) fn check<S: Serialize>(kind: Kind, resource: &Resource<S>, to: &mut Reporter<'_>) {
    if let (Some(schema), Ok(spec)) = (SPECS.get(kind.as_str()), serde_json::to_value(&resource.spec)) {
        walk(&FieldPath::root().key("spec"), &spec, schema, to);
    }
}

fn walk(path: &FieldPath, value: &Value, schema: &JSONSchemaProps, to: &mut Reporter<'_>) {
    match value {
        Value::String(text) => too_many(path, text.chars().count(), schema.max_length, "characters", to),
        Value::Array(elements) => {
            too_many(path, elements.len(), schema.max_items, "elements", to);
            if let Some(JSONSchemaPropsOrArray::Schema(of_element)) = &schema.items {
                for (index, element) in elements.iter().enumerate() {
                    walk(&path.index(index), element, of_element, to);
                }
            }
        }
        Value::Object(fields) => {
            too_many(path, fields.len(), schema.max_properties, "entries", to);
            for (name, field) in fields {
                let of_field = schema.properties.as_ref().and_then(|properties| properties.get(name));
                let of_field = of_field.or(match &schema.additional_properties {
                    Some(JSONSchemaPropsOrBool::Schema(of_values)) => Some(of_values),
                    _ => None,
                });
                if let Some(of_field) = of_field {
                    walk(&path.key(name), field, of_field, to);
                }
            }
        }
        _ => {}
    }
}

fn too_many(path: &FieldPath, count: usize, most: Option<i64>, what: &str, to: &mut Reporter<'_>) {
    let Some(most) = most.and_then(|most| usize::try_from(most).ok()).filter(|most| count > *most) else { return };
    if !to.has_told(path) {
        to.report(path, format!("{count} {what}, where {most} are the most"), "");
    }
}
