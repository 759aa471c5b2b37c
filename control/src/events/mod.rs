//! KV-cache events of the engines: from ZMQ messages to [`KvEvent`]s in order and without holes.
//!
//! - [`wire`] decodes a batch. Splitting it, forgiving what is new, folding byte hashes, extra keys, the rank and what
//!   counts at all are ours; the events themselves are decoded by `dynamo-kv-router`, which knows the positional layouts
//!   that vLLM and SGLang have used over time, EAGLE's token pairs, localities and owners.
//! - [`sequencer`] is a pure state machine: sequence numbers, gaps, replay, restarts.
//! - [`feed`] runs it over sockets, one task for each worker and rank.

pub mod feed;
pub mod sequencer;
mod socket;
#[cfg(test)]
pub(crate) mod testing;
pub mod wire;

pub use feed::{Feed, FeedConfig, FeedKind, FeedMessage, Health, Publisher};
pub use sequencer::ResetReason;
pub use wire::{Batch, BatchError, Decoder, Skip, Skipped};

/// What happened to the blocks that prefill can skip: those in GPU memory, of full-attention layers. Everything else is
/// left out before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks were stored.
    Stored(Stored),
    /// One copy of each of these blocks is gone.
    Removed {
        /// The engine's hashes.
        hashes: Vec<u64>,
    },
    /// All blocks are gone, or nothing is certain any more.
    Cleared,
}

/// Blocks that follow one another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The engine's hash of the block before the first one; `None` at the start of a prompt.
    pub parent: Option<u64>,
    /// The engine's hashes, one for each block.
    pub hashes: Vec<u64>,
    /// Token ids of the first `mappable` blocks, `block_size` each.
    pub token_ids: Vec<u32>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks whose text is told by their tokens alone. The chain ends before the next one: an image, an embedding, or an
    /// event whose tokens do not fit its hashes.
    pub mappable: usize,
    /// LoRA adapter; "" for none.
    pub lora: String,
    /// Cache salt; "" for none. Only known at the start of a prompt.
    pub salt: String,
    /// Whether the engine only reports blocks that it holds already; `None` when it does not say.
    pub reused: Option<bool>,
}

impl Stored {
    /// Whether blocks of this event that are known already are a report of them, not further copies.
    ///
    /// Engines re-send the whole prefix that a request hit, from the root, when the request asks for it. They say so only
    /// from a later version on. Before, such an event is the same to the byte as one for a second copy, which is rare from
    /// the root on: on doubt it is a report, so that the worker is believed to hold no more than it does. A single block from
    /// the root is different: a prompt of one block is never hit, because its last token is always computed, and so makes a
    /// copy each time.
    #[must_use]
    pub fn is_report(&self) -> bool {
        self.reused.unwrap_or(self.parent.is_none() && self.hashes.len() > 1)
    }
}
