//! Makes an event plain enough for the decoder behind, and keeps what it would drop.

use rmpv::Value;

/// Stands for a token that is not a number: an id that no vocabulary has.
const NO_TOKEN: u32 = u32::MAX;

/// What was taken out of a `BlockStored`.
#[derive(Debug)]
pub(super) struct Fields {
    /// One entry for each block, as the engine wrote it.
    pub(super) extra_keys: Value,
    /// The adapter's number; engines of old have no name.
    pub(super) has_lora_id: bool,
    /// Whether the event carries image objects in a field of their own.
    pub(super) has_images: bool,
    /// Whether the engine says that the blocks are only reported once more.
    pub(super) reused: Option<bool>,
}

impl Default for Fields {
    fn default() -> Self {
        Self { extra_keys: Value::Nil, has_lora_id: false, has_images: false, reused: None }
    }
}

/// The kind of an event: the tag of an array, or `type` of a map.
pub(super) fn kind(event: &Value) -> Option<&str> {
    match event {
        Value::Array(elements) => elements.first()?.as_str(),
        Value::Map(_) => event["type"].as_str(),
        _ => None,
    }
}

/// Positions in an array of kind `BlockStored`: the tag, then the fields in the order in which they were added.
const HASHES: usize = 1;
const PARENT: usize = 2;
const TOKENS: usize = 3;
const LORA_ID: usize = 5;
const EXTRA_KEYS: usize = 8;

/// Makes an event plain; `None` when it is of no known kind, or its hashes are neither numbers nor bytes.
pub(super) fn make_plain(event: &mut Value) -> Option<Fields> {
    let stored = match kind(event)? {
        "BlockStored" => true,
        "BlockRemoved" => false,
        "AllBlocksCleared" => return Some(Fields::default()),
        _ => return None,
    };
    let mut fields = Fields::default();
    match event {
        Value::Array(elements) => {
            fold_all(elements.get_mut(HASHES)?)?;
            if stored {
                fold(elements.get_mut(PARENT)?)?;
                number_tokens(elements.get_mut(TOKENS)?);
                if let Some(id) = elements.get_mut(LORA_ID) {
                    fields.has_lora_id = !take(id).is_nil();
                }
                if let Some(keys) = elements.get_mut(EXTRA_KEYS) {
                    fields.extra_keys = take(keys);
                }
            }
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                match key.as_str()? {
                    "block_hashes" => fold_all(value)?,
                    "parent_block_hash" => fold(value)?,
                    "token_ids" => number_tokens(value),
                    "lora_id" => fields.has_lora_id = !take(value).is_nil(),
                    "extra_keys" => fields.extra_keys = take(value),
                    "block_mm_infos" => fields.has_images = has_any(&take(value)),
                    "origin" => fields.reused = value.as_str().map(|origin| origin.eq_ignore_ascii_case("REUSED")),
                    _ => {}
                }
            }
        }
        _ => return None,
    }
    Some(fields)
}

fn take(value: &mut Value) -> Value {
    std::mem::replace(value, Value::Nil)
}

fn has_any(value: &Value) -> bool {
    value.as_array().is_some_and(|entries| entries.iter().any(|entry| !entry.is_nil()))
}

fn fold_all(hashes: &mut Value) -> Option<()> {
    let Value::Array(hashes) = hashes else { return None };
    hashes.iter_mut().try_for_each(|hash| if hash.is_nil() { None } else { fold(hash) })
}

/// Bytes become their last 64 bits, big-endian: what the engine sends when it is set to integers.
fn fold(hash: &mut Value) -> Option<()> {
    match hash {
        Value::Nil | Value::Integer(_) => Some(()),
        Value::Binary(bytes) => {
            let tail =
                bytes.len().checked_sub(8).map_or(bytes.as_slice(), |start| bytes.get(start..).unwrap_or_default());
            if tail.is_empty() {
                return None;
            }
            let folded = tail.iter().fold(0u64, |folded, byte| folded << 8 | u64::from(*byte));
            *hash = Value::from(folded);
            Some(())
        }
        _ => None,
    }
}

/// Some engines put strings among the tokens for images.
fn number_tokens(tokens: &mut Value) {
    let Value::Array(tokens) = tokens else { return };
    // Pairs (EAGLE) are the decoder's business; all are pairs or none.
    if tokens.first().is_some_and(Value::is_array) {
        return;
    }
    for token in tokens.iter_mut().filter(|token| token.as_u64().is_none_or(|id| id > u64::from(u32::MAX))) {
        *token = Value::from(NO_TOKEN);
    }
}
