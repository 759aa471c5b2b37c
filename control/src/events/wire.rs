//! Decodes a batch of events as engines put it on the wire: `[timestamp, events, rank]` in MessagePack.
//!
//! Each event is looked at by itself, so that one that is new or broken costs only itself, and is made plain before
//! `dynamo-kv-router` decodes it: byte hashes are folded to 64 bits as the engine itself does when asked for integers,
//! extra keys are taken out and read here (it ignores plain cache salts and image keys), and tokens that are no numbers
//! become an id that no vocabulary has.

mod extra_keys;
mod groups;
mod plain;

use dynamo_kv_router::zmq_wire::{BlockHashValue, KvEventOwnership, Locality, RawKvEvent};
use rmpv::Value;
use thiserror::Error;

use self::extra_keys::read_extra_keys;
use self::groups::Groups;
use self::plain::{Fields, make_plain};
use super::{KvEvent, Stored};

/// Largest batch that is decoded, in bytes.
const MAX_BATCH_BYTES: usize = 64 << 20;
/// Nesting that no real batch comes near.
const MAX_DEPTH: usize = 32;
/// Most tokens of a block.
const MAX_BLOCK_TOKENS: usize = 1 << 16;

/// Why a whole batch is refused. What it said is lost, so what the worker holds is not certain any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// It is not MessagePack, or too large.
    #[error(
        "an event batch of {bytes} bytes cannot be read ({reason}); is the port really the engine's KV event port?"
    )]
    Unreadable {
        /// Its length.
        bytes: usize,
        /// What is wrong.
        reason: String,
    },
    /// It is MessagePack, but not `[timestamp, events, rank]`.
    #[error("an event batch is not [timestamp, events, rank]; is the port really the engine's KV event port?")]
    Shape,
    /// It does not name the data-parallel rank.
    #[error(
        "an event batch does not name its data-parallel rank; events of several ranks cannot be told apart, update the engine"
    )]
    NoRank,
    /// Its rank is not the one that publishes on this port.
    #[error(
        "an event batch of data-parallel rank {got} came on the port of rank {expected}; check dataParallelSize and the event port (its port is base + rank)"
    )]
    WrongRank {
        /// The rank in the batch.
        got: i64,
        /// The rank of this feed.
        expected: u32,
    },
}

/// Why an event was left out, or its blocks end their chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skip {
    /// A kind that is not known.
    UnknownKind,
    /// A known kind with contents that cannot be read.
    Malformed,
    /// Not in GPU memory.
    OtherMedium,
    /// Not a full-attention group.
    OtherGroup,
    /// Held elsewhere, or by someone else than the engine.
    NotLocal,
    /// A block size of the main group that is not the one expected, or out of range.
    BlockSize,
    /// Stored, but with blocks whose text is not known (images, embeddings, unnamed adapters).
    Opaque,
    /// Stored, but with fewer hashes than its tokens span, or more.
    Masked,
}

impl Skip {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::UnknownKind,
        Self::Malformed,
        Self::OtherMedium,
        Self::OtherGroup,
        Self::NotLocal,
        Self::BlockSize,
        Self::Opaque,
        Self::Masked,
    ];

    /// The reason as a metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownKind => "unknown_kind",
            Self::Malformed => "malformed",
            Self::OtherMedium => "other_medium",
            Self::OtherGroup => "other_group",
            Self::NotLocal => "not_local",
            Self::BlockSize => "block_size",
            Self::Opaque => "opaque",
            Self::Masked => "masked",
        }
    }
}

/// Counts of events by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped([u32; Skip::ALL.len()]);

impl Skipped {
    pub(crate) fn count(&mut self, reason: Skip) {
        self.0[reason as usize] += 1;
    }

    /// Events with this reason.
    #[must_use]
    pub fn get(&self, reason: Skip) -> u32 {
        self.0[reason as usize]
    }

    /// All reasons that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Skip, u32)> {
        Skip::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, count)| *count > 0)
    }
}

/// A decoded batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The engine's clock, in seconds since 1970; 0 when it does not say.
    pub engine_time: f64,
    /// What counts, in order.
    pub events: Vec<KvEvent>,
    /// What does not.
    pub skipped: Skipped,
}

/// Decodes the batches of one worker and rank. It learns from stored blocks which cache group is of which kind, because
/// removals only name the group.
#[derive(Debug)]
pub struct Decoder {
    rank: u32,
    block_size: Option<u32>,
    groups: Groups,
    /// One event, made plain.
    scratch: Vec<u8>,
}

impl Decoder {
    /// A decoder for the batches of `rank`. With `block_size`, main blocks of another size are left out.
    #[must_use]
    pub fn new(rank: u32, block_size: Option<u32>) -> Self {
        Self { rank, block_size, groups: Groups::default(), scratch: Vec::new() }
    }

    /// Forgets what was learned: the engine was restarted.
    pub fn reset(&mut self) {
        self.groups = Groups::default();
    }

    /// Decodes a batch.
    ///
    /// # Errors
    /// See [`BatchError`]: nothing of the batch can be used.
    pub fn decode(&mut self, payload: &[u8]) -> Result<Batch, BatchError> {
        let unreadable = |reason: String| BatchError::Unreadable { bytes: payload.len(), reason };
        if payload.len() > MAX_BATCH_BYTES {
            return Err(unreadable(format!("more than {MAX_BATCH_BYTES} bytes")));
        }
        let mut rest = payload;
        let batch = rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH)
            .map_err(|error| unreadable(error.to_string()))?;
        let (time, events, rank) = parts(batch).ok_or(BatchError::Shape)?;
        self.check_rank(&rank)?;
        let mut decoded = Batch { engine_time: time, ..Batch::default() };
        for event in events {
            self.event(event, &mut decoded);
        }
        Ok(decoded)
    }

    fn check_rank(&self, rank: &Value) -> Result<(), BatchError> {
        match (rank.as_i64(), rank.as_u64()) {
            (_, Some(got)) if got == u64::from(self.rank) => Ok(()),
            (Some(got), _) => Err(BatchError::WrongRank { got, expected: self.rank }),
            (None, Some(_)) => Err(BatchError::WrongRank { got: i64::MAX, expected: self.rank }),
            (None, None) => Err(BatchError::NoRank),
        }
    }

    fn event(&mut self, mut event: Value, batch: &mut Batch) {
        let kind = plain::kind(&event).map(ToOwned::to_owned);
        let Some(fields) = make_plain(&mut event) else {
            // A removal that cannot be read must not leave a claim behind.
            match kind.as_deref() {
                Some("BlockStored") => {}
                Some("BlockRemoved" | "AllBlocksCleared") | None => batch.events.push(KvEvent::Cleared),
                Some(_) => return batch.skipped.count(Skip::UnknownKind),
            }
            return batch.skipped.count(Skip::Malformed);
        };
        // By way of bytes, as the decoder is meant to be used: values do not deserialize quite as MessagePack does.
        self.scratch.clear();
        let encoded = rmpv::encode::write_value(&mut self.scratch, &event).is_ok();
        match encoded.then(|| rmp_serde::from_slice::<RawKvEvent>(&self.scratch)) {
            Some(Ok(raw)) => match self.counts(&raw) {
                Ok(()) => self.keep(raw, fields, batch),
                Err(reason) => batch.skipped.count(reason),
            },
            Some(Err(_)) | None => {
                if kind.as_deref() != Some("BlockStored") {
                    batch.events.push(KvEvent::Cleared);
                }
                batch.skipped.count(Skip::Malformed);
            }
        }
    }

    /// Whether an event says something about what prefill can skip.
    fn counts(&mut self, raw: &RawKvEvent) -> Result<(), Skip> {
        if !matches!(raw.locality(), None | Some(Locality::Local)) || raw.ownership() != Ok(KvEventOwnership::Framework)
        {
            return Err(Skip::NotLocal);
        }
        if raw.medium().is_some_and(|medium| !medium.eq_ignore_ascii_case("GPU")) {
            return Err(Skip::OtherMedium);
        }
        let main = match raw {
            RawKvEvent::BlockStored { group_idx, kv_cache_spec_kind, .. } => {
                self.groups.stored(*group_idx, *kv_cache_spec_kind)
            }
            RawKvEvent::BlockRemoved { group_idx, kv_cache_spec_kind, .. } => {
                self.groups.removed(*group_idx, *kv_cache_spec_kind)
            }
            RawKvEvent::AllBlocksCleared { .. } => true,
            RawKvEvent::Ignored => return Err(Skip::UnknownKind),
        };
        if main { Ok(()) } else { Err(Skip::OtherGroup) }
    }

    fn keep(&mut self, raw: RawKvEvent, fields: Fields, batch: &mut Batch) {
        match raw {
            RawKvEvent::BlockStored {
                block_hashes,
                parent_block_hash,
                token_ids,
                block_size,
                lora_name,
                cache_namespace,
                is_eagle,
                ..
            } => {
                let hashes: Vec<u64> = block_hashes.into_iter().map(BlockHashValue::into_u64).collect();
                let mut stored = Stored {
                    parent: parent_block_hash.map(BlockHashValue::into_u64),
                    hashes,
                    token_ids,
                    block_size: block_size as u32,
                    lora: lora_name.unwrap_or_default(),
                    salt: cache_namespace.unwrap_or_default(),
                    reused: fields.reused,
                    ..Stored::default()
                };
                if is_eagle == Some(true) {
                    // Pairs of neighbours: there is one token more than there are pairs, and blocks count pairs.
                    stored.token_ids.pop();
                }
                // Offloading may store blocks without tokens or with a block size of 0; they end their chain.
                let sized = !stored.token_ids.is_empty() && block_size > 0;
                let expected = self.block_size.is_none_or(|expected| expected as usize == block_size);
                if sized && (!expected || block_size > MAX_BLOCK_TOKENS) {
                    return batch.skipped.count(Skip::BlockSize);
                }
                if stored.hashes.len().checked_mul(block_size) != Some(stored.token_ids.len()) || !sized {
                    batch.skipped.count(Skip::Masked);
                    stored.token_ids.clear();
                    stored.block_size = 0;
                } else {
                    stored.mappable = read_extra_keys(&mut stored, &fields);
                    if stored.mappable < stored.hashes.len() {
                        batch.skipped.count(Skip::Opaque);
                        stored.token_ids.truncate(stored.mappable * block_size);
                    }
                }
                batch.events.push(KvEvent::Stored(stored));
            }
            RawKvEvent::BlockRemoved { block_hashes, .. } => {
                let hashes: Vec<u64> = block_hashes.into_iter().map(BlockHashValue::into_u64).collect();
                match batch.events.last_mut() {
                    Some(KvEvent::Removed { hashes: before }) => before.extend(hashes),
                    _ => batch.events.push(KvEvent::Removed { hashes }),
                }
            }
            RawKvEvent::AllBlocksCleared { .. } => batch.events.push(KvEvent::Cleared),
            RawKvEvent::Ignored => {}
        }
    }
}

/// Timestamp, events and rank of a batch: an array (more elements may follow), or a map with their names.
fn parts(batch: Value) -> Option<(f64, Vec<Value>, Value)> {
    let (time, events, rank) = match batch {
        Value::Array(elements) => {
            let mut elements = elements.into_iter();
            (elements.next()?, elements.next()?, elements.next().unwrap_or(Value::Nil))
        }
        Value::Map(entries) => {
            let (mut time, mut events, mut rank) = (Value::Nil, Value::Nil, Value::Nil);
            for (key, value) in entries {
                match key.as_str() {
                    Some("ts") => time = value,
                    Some("events") => events = value,
                    Some("data_parallel_rank" | "dp_rank") => rank = value,
                    _ => {}
                }
            }
            (time, events, rank)
        }
        _ => return None,
    };
    let Value::Array(events) = events else { return None };
    Some((time.as_f64().unwrap_or(0.0), events, rank))
}

#[cfg(test)]
mod tests;
