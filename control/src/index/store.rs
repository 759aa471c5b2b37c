//! The index of one gateway backend: its worker sets, their workers, and the chunks they hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_protocol::v1;
use thiserror::Error;

use super::domain::Domain;
use super::holdings::{Holdings, On};
use super::routed::Learned;
use super::table::Table;
use super::tree::Chunk;
use crate::events::KvEvent;
use crate::tokenizer::TokenBytes;

/// Coarsest grid in bytes. Filters count the tokens of a chunk in 16 bits.
const COARSEST: u32 = 1 << 16;
/// More changes than this between two takes are told as a full snapshot.
const MOST_CHANGES: usize = 1 << 21;
/// Bytes of text a token, as long as none were seen.
const USUAL_BYTES_PER_TOKEN: f32 = 4.0;

/// Why something was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// No such worker set was added.
    #[error("worker set {0} is not in the prefix index")]
    UnknownSet(u32),
    /// No such worker was added.
    #[error("worker {0} is not in the prefix index")]
    UnknownWorker(u32),
    /// A worker id is in use already, by a worker of this set.
    #[error("worker {worker} is in the prefix index already, as one of worker set {set}")]
    WorkerExists {
        /// The worker.
        worker: u32,
        /// The set it belongs to.
        set: u32,
    },
}

/// What an event did, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// New blocks.
    pub stored: u32,
    /// Further copies of blocks that the worker holds.
    pub copies: u32,
    /// Blocks that were reported once more, without a new copy.
    pub reported: u32,
    /// Copies that are gone.
    pub removed: u32,
    /// Removed blocks that were not known.
    pub unknown: u32,
    /// Blocks that were not counted, because the worker has more than any engine can hold.
    pub over_limit: u32,
}

/// What filters must be told.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Nothing changed.
    Nothing,
    /// These entries changed; each is absolute.
    Delta(v1::Prefix),
    /// Everything: take [`PrefixStore::full`]. The grid may have changed with it ([`PrefixStore::chunk_bytes`]).
    Full,
}

/// Figures of the whole index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreStats {
    /// Length of a chunk in bytes, as it is now.
    pub chunk_bytes: u32,
    /// Chunks, counted once for each page of 64 workers.
    pub chunks: u64,
    /// Bytes that the index takes in each filter.
    pub filter_bytes: u64,
    /// Of each worker set with a tokenizer: average bytes of text a token, measured; absent before the first block.
    pub bytes_per_token: BTreeMap<u32, f32>,
    /// By worker.
    pub workers: BTreeMap<u32, WorkerStats>,
}

/// Figures of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Distinct blocks that the engine holds.
    pub blocks: u64,
    /// Of these, the ones that are held with everything before them.
    pub rooted_blocks: u64,
    /// Tokens of the rooted blocks.
    pub cached_tokens: u64,
}

#[derive(Debug)]
struct Set {
    domain: Domain,
    routed_ttl_ms: u64,
}

#[derive(Debug)]
struct Worker {
    set: u32,
    holdings: Holdings,
}

/// Which worker holds which chunk, from events and from routing.
#[derive(Debug)]
pub struct PrefixStore {
    grid: u32,
    max_bytes: u64,
    sets: BTreeMap<u32, Set>,
    workers: BTreeMap<u32, Worker>,
    table: Table,
    learned: Learned,
    full_needed: bool,
}

impl PrefixStore {
    /// An empty index with a grid of `chunk_bytes` (a power of two; others are rounded up) that may take `max_bytes` in
    /// each filter.
    #[must_use]
    pub fn new(chunk_bytes: u32, max_bytes: u64) -> Self {
        Self {
            grid: chunk_bytes.clamp(1, COARSEST).next_power_of_two(),
            max_bytes,
            sets: BTreeMap::new(),
            workers: BTreeMap::new(),
            table: Table::default(),
            learned: Learned::default(),
            full_needed: false,
        }
    }

    /// Length of a chunk in bytes. It doubles when the index would outgrow its budget.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.grid
    }

    /// Adds a worker set, or changes one. Without `tokens` its events claim nothing; `routed_ttl_ms` is how long learned
    /// prefixes are believed. When the prefix domain or the tokenizer differs from before, what its workers hold is
    /// forgotten: replay their events.
    pub fn add_domain(&mut self, set: u32, prefix_domain: &str, tokens: Option<Arc<TokenBytes>>, routed_ttl_ms: u64) {
        if let Some(known) = self.sets.get_mut(&set) {
            known.routed_ttl_ms = routed_ttl_ms;
            let same_tokens = match (&known.domain.tokens, &tokens) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (None, None) => true,
                _ => false,
            };
            if same_tokens && known.domain.prefix_domain == prefix_domain {
                return;
            }
            self.workers_of(set).into_iter().for_each(|worker| self.forget(worker));
        }
        self.sets.insert(set, Set { domain: Domain::new(prefix_domain, tokens, self.grid), routed_ttl_ms });
    }

    /// Removes a worker set with its workers.
    pub fn remove_domain(&mut self, set: u32) {
        for worker in self.workers_of(set) {
            self.remove_worker(worker);
        }
        self.sets.remove(&set);
    }

    fn workers_of(&self, set: u32) -> Vec<u32> {
        self.workers.iter().filter(|(_, worker)| worker.set == set).map(|(id, _)| *id).collect()
    }

    /// Adds a worker that holds nothing yet. All workers of one page of 64 ids are of one set.
    ///
    /// # Errors
    /// The set is unknown, or the worker is there already.
    pub fn add_worker(&mut self, worker: u32, set: u32) -> Result<(), StoreError> {
        if !self.sets.contains_key(&set) {
            return Err(StoreError::UnknownSet(set));
        }
        if let Some(known) = self.workers.get(&worker) {
            return Err(StoreError::WorkerExists { worker, set: known.set });
        }
        self.workers.insert(worker, Worker { set, holdings: Holdings::default() });
        Ok(())
    }

    /// Removes a worker and all that it held.
    pub fn remove_worker(&mut self, worker: u32) {
        self.forget(worker);
        self.workers.remove(&worker);
    }

    /// The worker holds nothing any more, or nothing that is known for sure.
    ///
    /// # Errors
    /// The worker is unknown.
    pub fn clear(&mut self, worker: u32) -> Result<(), StoreError> {
        if !self.workers.contains_key(&worker) {
            return Err(StoreError::UnknownWorker(worker));
        }
        self.forget(worker);
        Ok(())
    }

    fn forget(&mut self, worker: u32) {
        let learned = self.learned.forget_worker(worker);
        for hash in &learned {
            self.table.drop_quietly(worker, *hash);
        }
        if !learned.is_empty() {
            self.table.cleared(worker);
        }
        if let Some((holdings, on)) = self.holdings(worker) {
            holdings.clear(on);
        }
    }

    fn holdings(&mut self, worker: u32) -> Option<(&mut Holdings, On<'_>)> {
        let known = self.workers.get_mut(&worker)?;
        let set = self.sets.get_mut(&known.set)?;
        Some((&mut known.holdings, On { worker, domain: &mut set.domain, table: &mut self.table }))
    }

    /// Takes in an event of a worker's engine.
    ///
    /// # Errors
    /// The worker is unknown.
    pub fn apply(&mut self, worker: u32, event: &KvEvent) -> Result<Applied, StoreError> {
        let (holdings, on) = self.holdings(worker).ok_or(StoreError::UnknownWorker(worker))?;
        Ok(match event {
            KvEvent::Stored(stored) => holdings.store(on, stored),
            KvEvent::Removed { hashes } => holdings.remove(on, hashes),
            KvEvent::Cleared => {
                holdings.clear(on);
                Applied::default()
            }
        })
    }

    /// Routed mode: a request with these chunks, first to last and on the present grid, was sent to the worker.
    ///
    /// # Errors
    /// The worker is unknown.
    pub fn learn(&mut self, worker: u32, chunks: &[u64], now_ms: u64) -> Result<(), StoreError> {
        let set = self.workers.get(&worker).ok_or(StoreError::UnknownWorker(worker))?.set;
        let set = self.sets.get(&set).ok_or(StoreError::UnknownSet(set))?;
        let per_token = set.domain.bytes_per_token().unwrap_or(USUAL_BYTES_PER_TOKEN).max(0.1);
        let tokens = (self.grid as f32 / per_token) as u32;
        let ttl_ms = set.routed_ttl_ms;
        for &hash in chunks.iter().filter(|hash| **hash != 0) {
            if self.learned.note(worker, hash, now_ms, ttl_ms) {
                self.table.add(worker, Chunk { hash, tokens });
            }
        }
        self.expire(now_ms);
        Ok(())
    }

    /// Forgets learned prefixes that are past their time.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((worker, hash)) = self.learned.next_expired(now_ms) {
            self.table.remove(worker, hash);
        }
    }

    /// What changed since the last call. Coarsens the grid first when the index would outgrow its budget.
    pub fn take_delta(&mut self) -> Change {
        while self.grid < COARSEST && self.table.filter_bytes_while_applying() > self.max_bytes {
            self.coarsen();
        }
        if std::mem::take(&mut self.full_needed) || self.table.changes() > MOST_CHANGES {
            self.table.forget_changes();
            return Change::Full;
        }
        if self.table.has_changes() { Change::Delta(self.table.take_changes()) } else { Change::Nothing }
    }

    /// Doubles the length of chunks and cuts everything anew. Learned prefixes are forgotten: their text is not known.
    fn coarsen(&mut self) {
        self.grid *= 2;
        self.full_needed = true;
        self.table.reset();
        self.learned.clear();
        for set in self.sets.values_mut() {
            set.domain.regrid(self.grid);
        }
        for (&worker, known) in &self.workers {
            if let Some(set) = self.sets.get_mut(&known.set) {
                known.holdings.claim_again(On { worker, domain: &mut set.domain, table: &mut self.table });
            }
        }
    }

    /// The whole index as it is now, in parts of at most about `part_bytes` bytes; at least one part.
    #[must_use]
    pub fn full(&self, part_bytes: usize) -> Vec<v1::Prefix> {
        self.table.full(part_bytes)
    }

    /// Figures of the index. Takes time in proportion to the number of workers.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let measured = self.sets.iter().filter_map(|(id, set)| Some((*id, set.domain.bytes_per_token()?)));
        let workers = self.workers.iter().map(|(id, worker)| {
            let (cached_tokens, rooted_blocks) = worker.holdings.rooted();
            (*id, WorkerStats { blocks: worker.holdings.blocks() as u64, rooted_blocks, cached_tokens })
        });
        StoreStats {
            chunk_bytes: self.grid,
            chunks: self.table.len() as u64,
            filter_bytes: self.table.filter_bytes(),
            bytes_per_token: measured.collect(),
            workers: workers.collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn tree_nodes(&self, set: u32) -> usize {
        self.sets.get(&set).map_or(0, |set| set.domain.tree.len())
    }
}
