use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion;
use serde_json::Value;

use super::*;
use crate::{GROUP, Severity, VERSION, source};

fn version(definition: &CustomResourceDefinition) -> &CustomResourceDefinitionVersion {
    let [version] = definition.spec.versions.as_slice() else {
        panic!("{}: not one version", definition.spec.names.kind);
    };
    version
}

fn schema(definition: &CustomResourceDefinition) -> Value {
    let schema = version(definition).schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    serde_json::to_value(schema.unwrap()).unwrap()
}

/// Calls `visit` with every schema within a schema, and its place.
fn each(schema: &Value, place: &str, visit: &mut dyn FnMut(&Value, &str)) {
    visit(schema, place);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        each(field, &format!("{place}.{name}"), visit);
    }
    for (inner, step) in [("items", "[]"), ("additionalProperties", "[*]")] {
        if schema[inner].is_object() {
            each(&schema[inner], &format!("{place}{step}"), visit);
        }
    }
}

#[test]
fn every_field_is_documented() {
    for definition in definitions() {
        let schema = schema(&definition);
        let mut undocumented = Vec::new();
        for part in ["spec", "status"] {
            assert!(schema["properties"][part]["properties"].is_object(), "{}: no {part}", definition.spec.names.kind);
            each(&schema["properties"][part], part, &mut |schema, place| {
                if schema["description"].is_null() && !place.ends_with(']') {
                    undocumented.push(place.to_string());
                }
            });
        }
        assert!(undocumented.is_empty(), "{}: {undocumented:?}", definition.spec.names.kind);
    }
}

#[test]
fn every_list_map_and_text_of_a_spec_is_bounded() {
    for definition in definitions() {
        let mut unbounded = Vec::new();
        each(&schema(&definition)["properties"]["spec"], "spec", &mut |schema, place| {
            let bound = match schema["type"].as_str() {
                Some("array") => "maxItems",
                Some("string") if schema["enum"].is_null() => "maxLength",
                Some("object") if schema["additionalProperties"].is_object() => "maxProperties",
                _ => return,
            };
            if schema[bound].is_null() {
                unbounded.push(format!("{place}: {bound}"));
            }
        });
        assert!(unbounded.is_empty(), "{}: {unbounded:?}", definition.spec.names.kind);
    }
}

#[test]
fn every_rule_says_what_is_wrong() {
    let mut rules = 0;
    for definition in definitions() {
        each(&schema(&definition), "", &mut |schema, place| {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let message = rule["message"].as_str().unwrap_or_default();
                assert!(message.len() > 3, "{}{place}: {rule}", definition.spec.names.kind);
                // What the API server takes at most.
                assert!(
                    message.len() <= 2048 && !message.contains('\n'),
                    "{}{place}: {rule}",
                    definition.spec.names.kind
                );
                rules += 1;
            }
        });
    }
    assert!(rules > 50, "{rules}");
}

#[test]
fn formats_are_those_that_kubernetes_knows() {
    for definition in definitions() {
        each(&schema(&definition), "", &mut |schema, place| {
            let format = schema["format"].as_str().unwrap_or_default();
            assert!(["", "int32", "int64", "date-time"].contains(&format), "{place}: {format}");
        });
    }
}

#[test]
fn names_columns_and_subresources() {
    let mut short_names = Vec::new();
    for definition in definitions() {
        let spec = &definition.spec;
        assert_eq!((spec.group.as_str(), spec.scope.as_str()), (GROUP, "Namespaced"));
        assert_eq!(spec.names.categories.as_deref(), Some(&["kinference".to_string()][..]));
        short_names.extend(spec.names.short_names.clone().unwrap_or_default());
        let version = version(&definition);
        assert_eq!(version.name, VERSION);
        assert!(version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some()));
        let columns = version.additional_printer_columns.as_deref().unwrap_or_default();
        assert_eq!(columns.last().map(|column| column.name.as_str()).unwrap_or_default(), "AGE");
        for column in columns {
            let mut place = &schema(&definition);
            let plain = column.json_path.split('[').next().unwrap_or_default();
            for step in plain.split('.').filter(|step| !step.is_empty()) {
                if step == "metadata" {
                    break;
                }
                place = &place["properties"][step];
                assert!(place.is_object(), "{}: there is no {}", spec.names.kind, column.json_path);
            }
        }
    }
    assert_eq!(short_names, ["kgb", "kpol", "kpool", "kprov", "kws"]);
}

#[test]
fn defaults_are_in_the_schemas() {
    let of = |kind: &str| {
        let definition = definitions().into_iter().find(|definition| definition.spec.names.kind == kind);
        schema(&definition.unwrap())["properties"]["spec"]["properties"].clone()
    };
    let backend = of("GatewayBackend");
    assert_eq!(backend["requestBodyLimit"]["default"], "8Mi");
    assert_eq!(backend["staleAfter"]["default"], "10s");
    assert_eq!(backend["failureMode"]["default"], "Open");
    assert_eq!(backend["prefixIndex"]["default"], serde_json::json!({"maxBytes": "64Mi", "chunkBytes": 256}));
    assert_eq!(backend["prefixIndex"]["properties"]["chunkBytes"]["default"], 256);
    let set = of("InferenceWorkerSet");
    assert_eq!(set["metrics"]["properties"]["interval"]["default"], "250ms");
    assert_eq!(set["workers"]["properties"]["port"]["default"], 8000);
    assert_eq!(set["engine"]["default"], "vLLM");
    assert_eq!(of("InferenceProvider")["requestTimeout"]["default"], "2m");
}

#[test]
fn manifests_are_the_definitions() {
    for (manifest, definition) in manifests().unwrap().into_iter().zip(definitions()) {
        assert_eq!(manifest.plural, definition.spec.names.plural);
        let read: CustomResourceDefinition = serde_yaml_ng::from_str(&manifest.yaml).unwrap();
        assert_eq!(read, definition);
        assert!(manifest.yaml.starts_with("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"));
        assert!(!manifest.yaml.contains(".0\n"), "{}: a bound is written as 1.0", manifest.plural);
    }
}

fn samples(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kubernetes").join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.collect()
}

/// The API server's own answers to these files are tested where one runs.
#[test]
fn what_an_api_server_refuses_is_refused_in_files() {
    for path in samples("rejected") {
        let loaded = source::examine(std::slice::from_ref(&path));
        let errors = loaded.problems.iter().filter(|problem| problem.severity == Severity::Error);
        // References are to what only a whole configuration has.
        let own = errors.filter(|problem| !problem.message.starts_with("there is no "));
        assert!(own.count() > 0, "{} is valid", path.display());
    }
}

#[test]
fn what_an_api_server_takes_is_valid_in_files() {
    let loaded = source::examine(&samples("accepted"));
    let errors = loaded.problems.iter().filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    assert_eq!(errors, [""; 0]);
}
