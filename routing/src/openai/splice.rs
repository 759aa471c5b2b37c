//! Changing the model's name in a body, and nothing else.

use std::ops::Range;

/// The body with the JSON value at `span` replaced by the JSON string of `model`; every other byte stays.
#[must_use]
pub fn splice_model(body: &[u8], span: &Range<usize>, model: &str) -> Vec<u8> {
    let value = serde_json::Value::from(model).to_string();
    let (head, tail) = (body.get(..span.start).unwrap_or(body), body.get(span.end..).unwrap_or_default());
    let mut spliced = Vec::with_capacity(head.len() + value.len() + tail.len());
    spliced.extend_from_slice(head);
    spliced.extend_from_slice(value.as_bytes());
    spliced.extend_from_slice(tail);
    spliced
}
