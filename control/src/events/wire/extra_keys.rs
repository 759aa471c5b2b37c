//! What makes a block more than its tokens: LoRA adapter, cache salt, images, prompt embeddings.
//!
//! vLLM hashes these into a block without naming them: for each block a list of the adapter's name, a pair of identifier
//! and offset for each image, the cache salt (first block only), and a digest for embeddings, as bytes. What cannot be told
//! to be the adapter or the salt ends the chain.

use rmpv::Value;

use super::plain::Fields;
use crate::events::Stored;

/// Reads the extra keys: sets the salt, and returns how many blocks at the beginning have a text that their tokens tell.
pub(super) fn read_extra_keys(stored: &mut Stored, fields: &Fields) -> usize {
    if fields.has_images || (fields.has_lora_id && stored.lora.is_empty()) {
        return 0;
    }
    let blocks = stored.hashes.len();
    let keys = match &fields.extra_keys {
        Value::Nil => return blocks,
        Value::Array(keys) => keys,
        _ => return 0,
    };
    if keys.iter().all(Value::is_nil) {
        return blocks;
    }
    if keys.len() != blocks {
        return 0;
    }
    for (index, block) in keys.iter().enumerate() {
        let entries = match block {
            Value::Nil => continue,
            Value::Array(entries) => entries.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut entries = entries.iter();
        if !stored.lora.is_empty() && entries.as_slice().first().and_then(Value::as_str) == Some(&stored.lora) {
            entries.next();
        }
        let salt_may_come = stored.parent.is_none() && index == 0;
        match (entries.next(), entries.next()) {
            (None, _) => {}
            (Some(Value::String(salt)), None) if salt_may_come => match salt.as_str() {
                Some(salt) => stored.salt = salt.to_owned(),
                None => return index,
            },
            _ => return index,
        }
    }
    blocks
}
