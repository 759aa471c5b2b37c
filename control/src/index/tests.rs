use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kinference_protocol::v1;
use kinference_routing::prefix::{PrefixIndex, hash_chunk, namespace_seed, place};

use super::*;
use crate::events::{KvEvent, Stored};
use crate::tokenizer::TokenBytes;

mod interleavings;
mod pipeline;
mod single;

/// Tokens of a block in these tests.
const BLOCK: usize = 4;
/// Kinds of blocks; the last one has a token that the vocabulary does not have.
const KINDS: u8 = 5;
/// An id without a token.
const UNKNOWN: u32 = 999;

/// A vocabulary with tokens of 0 to 40 bytes.
pub(super) fn vocabulary() -> Arc<TokenBytes> {
    let lengths = [3, 1, 7, 40, 2, 5, 0, 16, 9, 4];
    let tokens = lengths.iter().enumerate().map(|(id, length)| {
        let bytes: Vec<u8> = (0..*length).map(|i| (id * 31 + i * 7) as u8).collect();
        (id as u32, bytes)
    });
    Arc::new(TokenBytes::new(tokens).unwrap())
}

pub(super) fn tokens_of(kind: u8) -> [u32; BLOCK] {
    match kind {
        0 => [0, 1, 2, 3],
        1 => [1, 1, 4, 0],
        2 => [5, 6, 7, 8],
        3 => [9, 0, 9, 6],
        _ => [0, UNKNOWN, 1, 2],
    }
}

/// A chain of blocks: where it starts, and the kinds of its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Path {
    pub(super) salt: u8,
    pub(super) kinds: Vec<u8>,
}

impl Path {
    pub(super) fn new(salt: u8, kinds: &[u8]) -> Self {
        Self { salt, kinds: kinds.to_vec() }
    }

    /// The engine's hash of the block at `depth`; the same for all workers, as with vLLM.
    pub(super) fn hash(&self, depth: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.salt, &self.kinds[..=depth]).hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn salt(&self) -> String {
        if self.salt == 0 { String::new() } else { format!("tenant-{}", self.salt) }
    }

    /// The event that stores the blocks from `from` on.
    pub(super) fn stored(&self, from: usize) -> Stored {
        let hashes: Vec<u64> = (from..self.kinds.len()).map(|depth| self.hash(depth)).collect();
        Stored {
            parent: from.checked_sub(1).map(|parent| self.hash(parent)),
            mappable: hashes.len(),
            hashes,
            token_ids: self.kinds[from..].iter().flat_map(|kind| tokens_of(*kind)).collect(),
            block_size: BLOCK as u32,
            lora: String::new(),
            salt: if from == 0 { self.salt() } else { String::new() },
            reused: None,
        }
    }

    /// The chunks of the chain's text up to and including the block at `depth`, computed the plain way.
    fn chunks(&self, depth: usize, domain: &str, grid: u32, vocabulary: &TokenBytes) -> Option<Vec<u64>> {
        let ids: Vec<u32> = self.kinds[..=depth].iter().flat_map(|kind| tokens_of(*kind)).collect();
        let text = vocabulary.concatenate(&ids)?;
        let mut chain = namespace_seed(domain, "", &self.salt());
        Some(
            text.chunks_exact(grid as usize)
                .map(|chunk| {
                    chain = hash_chunk(chunk, chain);
                    chain
                })
                .collect(),
        )
    }
}

/// What an engine really holds: copies of blocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Engine {
    pub(super) copies: BTreeMap<Path, u32>,
}

impl Engine {
    fn block(path: &Path, depth: usize) -> Path {
        Path::new(path.salt, &path.kinds[..=depth])
    }

    pub(super) fn holds(&self, path: &Path, depth: usize) -> bool {
        self.copies.contains_key(&Self::block(path, depth))
    }

    /// One more copy of the blocks from `from` on.
    pub(super) fn store(&mut self, path: &Path, from: usize) {
        for depth in from..path.kinds.len() {
            *self.copies.entry(Self::block(path, depth)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, block: &Path) {
        if let Some(copies) = self.copies.get_mut(block) {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(block);
            }
        }
    }

    /// Every chunk that the engine holds with all that comes before it.
    pub(super) fn truth(&self, domain: &str, grid: u32, vocabulary: &TokenBytes) -> BTreeSet<u64> {
        let mut truth = BTreeSet::new();
        for path in self.copies.keys() {
            let depth = path.kinds.len() - 1;
            if (0..=depth).all(|depth| self.holds(path, depth)) {
                truth.extend(path.chunks(depth, domain, grid, vocabulary).into_iter().flatten());
            }
        }
        truth
    }
}

/// A filter's index, kept up to date as filters do it.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub(super) index: PrefixIndex,
    /// All hashes that were ever mentioned.
    seen: BTreeSet<u64>,
}

impl Filter {
    pub(super) fn take_from(&mut self, store: &mut PrefixStore) {
        match store.take_delta() {
            Change::Nothing => {}
            Change::Delta(prefix) => self.apply(&prefix),
            Change::Full => self.replace(store),
        }
    }

    pub(super) fn replace(&mut self, store: &PrefixStore) {
        *self = Self::default();
        for part in store.full(200) {
            self.apply(&part);
        }
    }

    fn apply(&mut self, prefix: &v1::Prefix) {
        assert_eq!(self.index.check(prefix, usize::MAX), Ok(()));
        self.index.apply(prefix);
        self.seen.extend(prefix.pages.iter().flat_map(|page| &page.hashes));
    }

    /// What the filter believes that a worker holds.
    pub(super) fn claims(&self, worker: u32) -> BTreeSet<u64> {
        let (page, bit) = place(worker);
        let claimed = |hash: &u64| self.index.get(page, *hash).is_some_and(|entry| entry.workers & bit != 0);
        self.seen.iter().copied().filter(claimed).collect()
    }
}

pub(super) fn removed(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed { hashes: hashes.to_vec() }
}
