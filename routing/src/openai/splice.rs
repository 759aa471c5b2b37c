//! Changing the model's name in a body, and nothing else.

use std::ops::Range;

/// The body with the JSON values at `spans`, which are in order, replaced by the JSON string of `model`; every other byte
/// stays.
#[must_use]
pub fn splice_model(body: &[u8], spans: &[Range<usize>], model: &str) -> Vec<u8> {
    let value = serde_json::Value::from(model).to_string();
    let mut spliced = Vec::with_capacity(body.len() + value.len() * spans.len());
    let mut from = 0;
    for span in spans {
        spliced.extend_from_slice(body.get(from..span.start).unwrap_or_default());
        spliced.extend_from_slice(value.as_bytes());
        from = span.end;
    }
    spliced.extend_from_slice(body.get(from..).unwrap_or_default());
    spliced
}
