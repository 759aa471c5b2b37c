//! What a user may have meant by an unknown word.

use std::sync::OnceLock;

use kube::CustomResourceExt;
use schemars::schema_for;
use serde_json::Value;

use crate::kinds::{GatewayBackend, InferencePolicy, InferencePool, InferenceProvider, InferenceWorkerSet};
use crate::path::Step;
use crate::policy_test::{PolicyTestSpec, TestState};
use crate::{FieldPath, Kind};

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A resource.
    Resource(Kind),
    /// A policy test.
    PolicyTest,
    /// The state of a policy test, alone.
    State,
}

/// The fields that a document may have at a place, by name. Empty when the place takes any key or none.
pub(super) fn fields(shape: Shape, place: &FieldPath) -> Vec<String> {
    let steps = place.steps();
    let fixed: &[&str] = match (steps.first(), shape) {
        (None, Shape::Resource(_)) => &["apiVersion", "kind", "metadata", "spec"],
        (None, Shape::PolicyTest) => &["apiVersion", "cases", "gatewayBackend", "kind", "metadata", "state"],
        (Some(Step::Key(key)), Shape::Resource(_)) if key == "metadata" => {
            &["annotations", "labels", "name", "namespace"]
        }
        _ => &[],
    };
    if !fixed.is_empty() {
        return fixed.iter().map(|field| (*field).to_string()).collect();
    }
    let root = schema(shape);
    let mut schema = Some(root);
    for step in steps {
        let inner = schema.and_then(|schema| match step {
            Step::Key(key) => {
                schema.pointer("/properties").and_then(|p| p.get(key)).or(schema.get("additionalProperties"))
            }
            Step::Index(_) => schema.get("items"),
        });
        schema = inner.map(|inner| plain(root, inner));
    }
    let properties = schema.and_then(|s| s.get("properties")).and_then(Value::as_object);
    let mut names: Vec<String> = properties.map(|p| p.keys().cloned().collect()).unwrap_or_default();
    names.sort();
    names
}

/// What a schema stands for: the other of `null or this`, and what a reference refers to.
fn plain<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let choices = schema.get("anyOf").and_then(Value::as_array);
    let schema = choices.and_then(|choices| choices.first()).unwrap_or(schema);
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// The schema of a document, of a kind as its CRD has it; made once, since that takes milliseconds.
fn schema(shape: Shape) -> &'static Value {
    static SCHEMAS: [OnceLock<Value>; 7] = [const { OnceLock::new() }; 7];
    let (place, kind) = match shape {
        Shape::Resource(kind) => (kind as usize, kind),
        Shape::PolicyTest => return SCHEMAS[5].get_or_init(|| schema_for!(PolicyTestSpec).to_value()),
        Shape::State => return SCHEMAS[6].get_or_init(|| schema_for!(TestState).to_value()),
    };
    SCHEMAS[place].get_or_init(|| {
        let definition = match kind {
            Kind::GatewayBackend => GatewayBackend::crd(),
            Kind::InferencePool => InferencePool::crd(),
            Kind::InferenceProvider => InferenceProvider::crd(),
            Kind::InferencePolicy => InferencePolicy::crd(),
            Kind::InferenceWorkerSet => InferenceWorkerSet::crd(),
        };
        let schema = definition.spec.versions.into_iter().find_map(|version| version.schema?.open_api_v3_schema);
        serde_json::to_value(schema).unwrap_or_default()
    })
}

/// The remedy for an unknown word among known ones.
pub(crate) fn remedy(unknown: &str, known: &[String]) -> String {
    let lower = unknown.to_lowercase();
    // Cut short, as in `worker` for `workerSets`.
    let begun = known.iter().filter(|word| lower.len() >= 3 && word.to_lowercase().starts_with(&lower));
    let begun = begun.min_by_key(|word| word.len()).map(|word| (1, word));
    let closest = known.iter().map(|word| (distance(unknown, word), word)).min();
    match closest.into_iter().chain(begun).min_by_key(|(edits, _)| *edits) {
        None => String::new(),
        Some((edits, word)) if edits <= 1 + unknown.len() / 4 && edits < unknown.len() => {
            format!("did you mean `{word}`?")
        }
        Some(_) => format!("known here: {}", known.join(", ")),
    }
}

/// Edits that make one word of another: letters put in, left out, replaced, or swapped with their neighbour. Case costs
/// nothing.
fn distance(a: &str, b: &str) -> usize {
    let lower = |text: &str| text.chars().take(64).flat_map(char::to_lowercase).collect::<Vec<_>>();
    let (a, b) = (lower(a), lower(b));
    // The rows of the table for two letters ago, for the last one, and for this one.
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let at = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(usize::MAX / 2);
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = at(&last, j) + usize::from(x != y);
            let mut edits = replaced.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swaps = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swaps {
                edits = edits.min(at(&before, j - 1) + 1);
            }
            row.push(edits);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (a, b, edits) in
            [("port", "port", 0), ("Port", "port", 0), ("prot", "port", 1), ("adress", "address", 1), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn fields_come_from_the_schema() {
        let place = FieldPath::spec("workers").key("static").index(3);
        let known = fields(Shape::Resource(Kind::InferenceWorkerSet), &place);
        assert_eq!(known, ["address", "kvEventsPort", "kvReplayPort", "name", "port"]);
        assert_eq!(remedy("adress", &known), "did you mean `address`?");
        assert_eq!(remedy("addr", &known), "did you mean `address`?");
        assert_eq!(remedy("colour", &["a".into(), "b".into()]), "known here: a, b");
        for kind in Kind::ALL {
            assert!(!fields(Shape::Resource(kind), &FieldPath::root().key("spec")).is_empty(), "{kind}");
        }
    }
}
