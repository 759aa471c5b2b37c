//! KV cache events in the engine's wire form: msgpack maps with a `type` key, in an array `[ts, events, rank]`.

use super::msgpack;

/// One KV cache event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Blocks of one request became full and can be hit by others.
    Stored(Stored),
    /// A block was evicted. vLLM sends one event per physical block.
    Removed {
        /// The evicted block's hash.
        hash: u64,
    },
    /// The whole cache was reset.
    Cleared,
}

/// The content of a `BlockStored` event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// Hashes of the stored blocks, in chain order.
    pub(super) hashes: Vec<u64>,
    /// Hash of the block before the first; `None` at the root.
    pub(super) parent: Option<u64>,
    /// Tokens of all stored blocks, one after the other.
    pub(super) tokens: Vec<u32>,
    /// Tokens in a block.
    pub(super) block_size: usize,
    /// The LoRA adapter in use.
    pub(super) lora: Option<Lora>,
    /// The cache salt, only when the first stored block is the first of its chain.
    pub(super) salt: Option<String>,
    /// The client's session, from its `X-Session-ID` header.
    pub(super) session: Option<String>,
}

/// A LoRA adapter as events name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lora {
    /// The engine's number for the adapter, from 1.
    pub(super) id: u64,
    /// The served name.
    pub(super) name: String,
}

/// Encodes one batch as the engine does. `ts` is in seconds since the Unix epoch, `rank` the data-parallel rank.
pub(super) fn encode_batch(ts: f64, events: &[Event], rank: u64) -> Vec<u8> {
    let tokens: usize =
        events.iter().map(|event| if let Event::Stored(stored) = event { stored.tokens.len() } else { 0 }).sum();
    let mut out = Vec::with_capacity(64 + 256 * events.len() + 3 * tokens);
    msgpack::array(&mut out, 3);
    msgpack::float(&mut out, ts);
    msgpack::array(&mut out, events.len());
    for event in events {
        encode_event(&mut out, event);
    }
    msgpack::uint(&mut out, rank);
    out
}

fn encode_event(out: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Stored(stored) => encode_stored(out, stored),
        Event::Removed { hash } => {
            msgpack::map(out, 4);
            msgpack::pair(out, "type", "BlockRemoved");
            msgpack::str(out, "block_hashes");
            msgpack::array(out, 1);
            msgpack::uint(out, *hash);
            msgpack::pair(out, "medium", "GPU");
            msgpack::str(out, "group_idx");
            msgpack::uint(out, 0);
        }
        Event::Cleared => {
            msgpack::map(out, 1);
            msgpack::pair(out, "type", "AllBlocksCleared");
        }
    }
}

fn encode_stored(out: &mut Vec<u8>, stored: &Stored) {
    msgpack::map(out, 11 + usize::from(stored.session.is_some()));
    msgpack::pair(out, "type", "BlockStored");
    msgpack::str(out, "block_hashes");
    msgpack::array(out, stored.hashes.len());
    for hash in &stored.hashes {
        msgpack::uint(out, *hash);
    }
    msgpack::str(out, "parent_block_hash");
    msgpack::optional(out, stored.parent, msgpack::uint);
    msgpack::str(out, "token_ids");
    msgpack::array(out, stored.tokens.len());
    for token in &stored.tokens {
        msgpack::uint(out, u64::from(*token));
    }
    msgpack::str(out, "block_size");
    msgpack::uint(out, stored.block_size as u64);
    msgpack::str(out, "lora_id");
    msgpack::optional(out, stored.lora.as_ref(), |out, lora| msgpack::uint(out, lora.id));
    msgpack::pair(out, "medium", "GPU");
    msgpack::str(out, "lora_name");
    msgpack::optional(out, stored.lora.as_ref(), |out, lora| msgpack::str(out, &lora.name));
    msgpack::str(out, "extra_keys");
    msgpack::array(out, stored.hashes.len());
    for block in 0..stored.hashes.len() {
        let salt = stored.salt.as_deref().filter(|_| block == 0);
        let lora = stored.lora.as_ref().map(|lora| lora.name.as_str());
        match usize::from(lora.is_some()) + usize::from(salt.is_some()) {
            0 => msgpack::nil(out),
            count => {
                msgpack::array(out, count);
                for key in lora.into_iter().chain(salt) {
                    msgpack::str(out, key);
                }
            }
        }
    }
    msgpack::str(out, "group_idx");
    msgpack::uint(out, 0);
    msgpack::pair(out, "kv_cache_spec_kind", "full_attention");
    if let Some(session) = &stored.session {
        msgpack::pair(out, "session_id", session);
    }
}

#[cfg(test)]
pub(super) mod tests;
