//! The chunks that workers hold, and what changed since filters were last told.

use kinference_protocol::v1;
use kinference_routing::prefix::{PrefixIndex, place};

use super::hasher::{Map, Set};
use super::tree::Chunk;

/// Bytes of one entry on the wire, from above: two fixed 64-bit numbers and a token count.
const WIRE_BYTES: usize = 8 + 8 + 3;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Bit i: worker i of the page.
    workers: u64,
    tokens: u32,
}

/// Chunks by page and hash.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Map<(u32, u64), Entry>,
    /// Several blocks of a worker can complete one chunk: how many beyond the first do.
    more: Map<(u32, u64), u32>,
    /// Chunks by page, for the size on the filters' side.
    page_chunks: Map<u32, usize>,
    /// What changed since the last take.
    dirty: Set<(u32, u64)>,
    /// Workers, by page, that lost everything since the last take.
    cleared: Map<u32, u64>,
}

impl Table {
    /// `worker` completes the chunk once more. Returns whether it did not before.
    pub(super) fn add(&mut self, worker: u32, chunk: Chunk) -> bool {
        let (page, bit) = place(worker);
        let key = (page, chunk.hash);
        let chunks = &mut self.page_chunks;
        let entry = self.entries.entry(key).or_insert_with(|| {
            *chunks.entry(page).or_default() += 1;
            Entry { workers: 0, tokens: chunk.tokens }
        });
        if entry.workers & bit != 0 {
            *self.more.entry((worker, chunk.hash)).or_default() += 1;
            return false;
        }
        entry.workers |= bit;
        self.dirty.insert(key);
        true
    }

    /// `worker` completes the chunk once less. Returns whether it does not any more.
    pub(super) fn remove(&mut self, worker: u32, hash: u64) -> bool {
        if let Some(more) = self.more.get_mut(&(worker, hash)) {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&(worker, hash));
            }
            return false;
        }
        let (page, bit) = place(worker);
        if self.take_bit(page, bit, hash) {
            self.dirty.insert((page, hash));
            return true;
        }
        false
    }

    fn take_bit(&mut self, page: u32, bit: u64, hash: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&(page, hash)) else { return false };
        let had = entry.workers & bit != 0;
        entry.workers &= !bit;
        if entry.workers == 0 {
            self.entries.remove(&(page, hash));
            if let Some(chunks) = self.page_chunks.get_mut(&page) {
                *chunks -= 1;
                if *chunks == 0 {
                    self.page_chunks.remove(&page);
                }
            }
        }
        had
    }

    /// Forgets a chunk of a worker that loses all of them: filters are told of the worker, not of each chunk.
    pub(super) fn drop_quietly(&mut self, worker: u32, hash: u64) {
        let (page, bit) = place(worker);
        self.more.remove(&(worker, hash));
        self.take_bit(page, bit, hash);
    }

    /// `worker` holds nothing any more; its chunks were dropped quietly.
    pub(super) fn cleared(&mut self, worker: u32) {
        let (page, bit) = place(worker);
        *self.cleared.entry(page).or_default() |= bit;
    }

    /// Forgets everything, including what changed.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || !self.cleared.is_empty()
    }

    /// Number of changed chunks that filters were not told of.
    pub(super) fn changes(&self) -> usize {
        self.dirty.len()
    }

    pub(super) fn forget_changes(&mut self) {
        self.dirty.clear();
        self.cleared.clear();
    }

    /// Bytes of the index in each filter.
    pub(super) fn filter_bytes(&self) -> u64 {
        self.page_chunks.values().map(|&chunks| PrefixIndex::bytes_for(chunks) as u64).sum()
    }

    /// Bytes that each filter may need while it takes in what changed: removals may come after additions.
    pub(super) fn filter_bytes_while_applying(&self) -> u64 {
        let mut pages = self.page_chunks.clone();
        for key in self.dirty.iter().filter(|key| !self.entries.contains_key(key)) {
            *pages.entry(key.0).or_default() += 1;
        }
        pages.values().map(|&chunks| PrefixIndex::bytes_for(chunks) as u64).sum()
    }

    /// What changed since the last take, as it is now.
    pub(super) fn take_changes(&mut self) -> v1::Prefix {
        let mut clears: Vec<_> =
            self.cleared.drain().map(|(page, workers)| v1::PrefixClear { page, workers }).collect();
        clears.sort_unstable_by_key(|clear| clear.page);
        let mut keys: Vec<(u32, u64)> = self.dirty.drain().collect();
        keys.sort_unstable();
        let mut pages: Vec<v1::PrefixPage> = Vec::new();
        for key in keys {
            push(&mut pages, key, self.entries.get(&key).copied());
        }
        v1::Prefix { clears, pages }
    }

    /// Everything, in parts of about `part_bytes` bytes; at least one part.
    pub(super) fn full(&self, part_bytes: usize) -> Vec<v1::Prefix> {
        let mut keys: Vec<(u32, u64)> = self.entries.keys().copied().collect();
        keys.sort_unstable();
        let parts = keys.chunks((part_bytes / WIRE_BYTES).max(1)).map(|keys| {
            let mut pages = Vec::new();
            for &key in keys {
                push(&mut pages, key, self.entries.get(&key).copied());
            }
            v1::Prefix { clears: Vec::new(), pages }
        });
        let parts: Vec<_> = parts.collect();
        if parts.is_empty() { vec![v1::Prefix::default()] } else { parts }
    }
}

/// Adds one chunk to the last page, or to a new one. `pages` is in order.
fn push(pages: &mut Vec<v1::PrefixPage>, (page, hash): (u32, u64), entry: Option<Entry>) {
    if pages.last().is_none_or(|last| last.page != page) {
        pages.push(v1::PrefixPage { page, ..Default::default() });
    }
    if let Some(last) = pages.last_mut() {
        last.hashes.push(hash);
        last.workers.push(entry.map_or(0, |entry| entry.workers));
        last.tokens.push(entry.map_or(0, |entry| entry.tokens));
    }
}
