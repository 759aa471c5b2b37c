//! A paged KV cache as vLLM keeps it: blocks with reference counts, a least-recently-used queue of free blocks
//! that can still be hit, and events for what is stored and evicted. Blocks hold no data, only hashes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::events::Event;

/// Number of a physical block. Block 0 is never given out.
pub(super) type BlockId = u32;

const NONE: BlockId = BlockId::MAX;

#[derive(Debug, Clone)]
struct Block {
    /// Neighbours in the queue of free blocks.
    previous: BlockId,
    next: BlockId,
    /// The next block with the same hash, in the order they were stored.
    next_copy: BlockId,
    references: u32,
    hash: Option<u64>,
}

/// All blocks of one worker.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// First stored block of every hash.
    cached: HashMap<u64, BlockId, BuildHasherDefault<Unhashed>>,
    /// Ends of the queue of free blocks; the first is taken first.
    first_free: BlockId,
    last_free: BlockId,
    free: usize,
    events: Vec<Event>,
}

impl BlockPool {
    /// A pool of `count` blocks (at least 2), of which the first is reserved.
    pub(super) fn new(count: usize) -> Self {
        let block = Block { previous: NONE, next: NONE, next_copy: NONE, references: 0, hash: None };
        let mut pool = Self {
            blocks: vec![block; count],
            cached: HashMap::default(),
            first_free: NONE,
            last_free: NONE,
            free: 0,
            events: Vec::new(),
        };
        for id in 1..count {
            pool.push_back(id as BlockId);
        }
        pool
    }

    /// Blocks that may be taken, cached or not.
    pub(super) fn free_blocks(&self) -> usize {
        self.free
    }

    /// Share of blocks that running requests hold, 0 to 1.
    pub(super) fn usage(&self) -> f64 {
        1.0 - self.free as f64 / (self.blocks.len() - 1) as f64
    }

    /// The block that holds this hash; the one stored first when there are copies.
    pub(super) fn lookup(&self, hash: u64) -> Option<BlockId> {
        self.cached.get(&hash).copied()
    }

    /// Whether nobody holds this block, so that taking it uses up a free one.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.block(id).references == 0
    }

    /// Takes one more reference to a block that was hit.
    pub(super) fn touch(&mut self, id: BlockId) {
        if self.is_free(id) {
            self.unlink(id);
        }
        self.block_mut(id).references += 1;
    }

    /// Takes `count` new blocks from the front of the queue, evicting what they held.
    /// The caller has made sure that there are as many.
    pub(super) fn allocate(&mut self, count: usize, into: &mut Vec<BlockId>) {
        for _ in 0..count {
            let id = self.first_free;
            self.unlink(id);
            if let Some(hash) = self.block_mut(id).hash.take() {
                self.forget(id, hash);
                self.events.push(Event::Removed { hash });
            }
            self.block_mut(id).references = 1;
            into.push(id);
        }
    }

    /// Marks a held block as full and found under `hash`.
    pub(super) fn store(&mut self, id: BlockId, hash: u64) {
        self.block_mut(id).hash = Some(hash);
        self.block_mut(id).next_copy = NONE;
        match self.cached.get(&hash) {
            None => {
                self.cached.insert(hash, id);
            }
            Some(first) => {
                let mut at = *first;
                while self.block(at).next_copy != NONE {
                    at = self.block(at).next_copy;
                }
                self.block_mut(at).next_copy = id;
            }
        }
    }

    /// Gives back a request's blocks, in the order of its tokens. The queue gets them from the last to the first, so that a
    /// chain loses its leaves before its root; blocks that cannot be hit go to the front, as the captured engine does.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for id in ids.iter().rev() {
            let block = self.block_mut(*id);
            block.references -= 1;
            if block.references == 0 && block.hash.is_some() {
                self.push_back(*id);
            }
        }
        for id in ids {
            if self.block(*id).references == 0 && self.block(*id).hash.is_none() {
                self.push_front(*id);
            }
        }
    }

    /// Forgets everything cached; refused (false) while requests hold blocks, as in vLLM.
    pub(super) fn reset(&mut self) -> bool {
        if self.free != self.blocks.len() - 1 {
            return false;
        }
        self.cached.clear();
        for block in &mut self.blocks {
            block.hash = None;
            block.next_copy = NONE;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// Adds an event of the caller's, in order with the pool's own.
    pub(super) fn push_event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Takes the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// Takes one copy out of its hash's list.
    fn forget(&mut self, id: BlockId, hash: u64) {
        let next = std::mem::replace(&mut self.block_mut(id).next_copy, NONE);
        match self.cached.get(&hash).copied() {
            Some(first) if first == id && next == NONE => {
                self.cached.remove(&hash);
            }
            Some(first) if first == id => {
                self.cached.insert(hash, next);
            }
            Some(first) => {
                let mut at = first;
                while self.block(at).next_copy != id {
                    at = self.block(at).next_copy;
                }
                self.block_mut(at).next_copy = next;
            }
            None => {}
        }
    }

    fn push_back(&mut self, id: BlockId) {
        let last = std::mem::replace(&mut self.last_free, id);
        let block = self.block_mut(id);
        (block.previous, block.next) = (last, NONE);
        match last {
            NONE => self.first_free = id,
            last => self.block_mut(last).next = id,
        }
        self.free += 1;
    }

    fn push_front(&mut self, id: BlockId) {
        let first = std::mem::replace(&mut self.first_free, id);
        let block = self.block_mut(id);
        (block.previous, block.next) = (NONE, first);
        match first {
            NONE => self.last_free = id,
            first => self.block_mut(first).previous = id,
        }
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { previous, next, .. } = *self.block(id);
        match previous {
            NONE => self.first_free = next,
            previous => self.block_mut(previous).next = next,
        }
        match next {
            NONE => self.last_free = previous,
            next => self.block_mut(next).previous = previous,
        }
        self.free -= 1;
    }
}

/// Hash of a block after `parent`; `root` stands for the parent of a first block and differs at every engine start.
/// A LoRA name enters every block, a cache salt only the first: later ones carry it through the chain.
pub(super) fn block_hash(
    root: u64,
    parent: Option<u64>,
    tokens: &[u32],
    lora: Option<&str>,
    salt: Option<&str>,
) -> u64 {
    let mut seed = parent.unwrap_or(root);
    if let Some(lora) = lora {
        seed = xxh3_64_with_seed(lora.as_bytes(), seed ^ 0x6c6f_7261);
    }
    if let (None, Some(salt)) = (parent, salt) {
        seed = xxh3_64_with_seed(salt.as_bytes(), seed ^ 0x7361_6c74);
    }
    let mut bytes = [0; 4 * 64];
    let mut hash = seed;
    for part in tokens.chunks(64) {
        for (slot, token) in bytes.chunks_exact_mut(4).zip(part) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        hash = xxh3_64_with_seed(&bytes[..4 * part.len()], hash);
    }
    hash
}

/// Block hashes are already well mixed.
#[derive(Debug, Default)]
struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(pool: &mut BlockPool, count: usize) -> Vec<BlockId> {
        let mut ids = Vec::new();
        pool.allocate(count, &mut ids);
        ids
    }

    #[test]
    fn leaves_go_before_roots_and_unhashed_blocks_before_all() {
        let mut pool = BlockPool::new(5);
        let ids = allocate(&mut pool, 4);
        assert_eq!(pool.usage(), 1.0);
        for (id, hash) in ids.iter().zip([10, 20, 30]) {
            pool.store(*id, hash);
        }
        pool.release(&ids);
        assert_eq!(pool.free_blocks(), 4);
        assert_eq!(allocate(&mut pool, 4), [ids[3], ids[2], ids[1], ids[0]]);
        assert_eq!(pool.take_events(), [30, 20, 10].map(|hash| Event::Removed { hash }));
        assert_eq!(pool.lookup(10), None);
    }

    #[test]
    fn a_free_block_can_be_hit_and_is_then_not_evicted() {
        let mut pool = BlockPool::new(4);
        let ids = allocate(&mut pool, 2);
        pool.store(ids[0], 10);
        pool.store(ids[1], 20);
        pool.release(&ids);
        let hit = pool.lookup(10).unwrap();
        assert!(pool.is_free(hit));
        pool.touch(hit);
        assert_eq!(pool.free_blocks(), 2);
        allocate(&mut pool, 2);
        assert_eq!(pool.lookup(10), Some(hit));
        assert_eq!(pool.take_events(), [Event::Removed { hash: 20 }]);
    }

    #[test]
    fn copies_are_kept_and_the_hash_hits_until_the_last_is_gone() {
        let mut pool = BlockPool::new(4);
        let ids = allocate(&mut pool, 3);
        for id in &ids {
            pool.store(*id, 10);
        }
        // Middle, first, then last: each way to leave the list of copies.
        pool.release(&[ids[1]]);
        assert_eq!(allocate(&mut pool, 1), [ids[1]]);
        assert_eq!(pool.lookup(10), Some(ids[0]));
        pool.release(&[ids[0]]);
        assert_eq!(allocate(&mut pool, 1), [ids[0]]);
        assert_eq!(pool.lookup(10), Some(ids[2]));
        pool.release(&[ids[2]]);
        assert_eq!(allocate(&mut pool, 1), [ids[2]]);
        assert_eq!(pool.lookup(10), None);
        assert_eq!(pool.take_events().len(), 3);
    }

    #[test]
    fn reset_waits_for_running_requests() {
        let mut pool = BlockPool::new(3);
        let ids = allocate(&mut pool, 1);
        pool.store(ids[0], 10);
        assert!(!pool.reset());
        pool.release(&ids);
        assert!(pool.reset());
        assert_eq!(pool.lookup(10), None);
        assert_eq!(pool.take_events(), [Event::Cleared]);
    }

    #[test]
    fn hashes_chain_and_separate_namespaces() {
        let tokens: Vec<u32> = (0..100).collect();
        let first = block_hash(1, None, &tokens, None, None);
        let others = [
            block_hash(2, None, &tokens, None, None),
            block_hash(1, Some(first), &tokens, None, None),
            block_hash(1, None, &tokens[..99], None, None),
            block_hash(1, None, &tokens, Some("a"), None),
            block_hash(1, None, &tokens, None, Some("a")),
            block_hash(1, None, &tokens, Some("a"), Some("a")),
        ];
        for (at, hash) in others.iter().enumerate() {
            assert_ne!(*hash, first);
            assert!(!others[..at].contains(hash));
        }
        // The salt is in the chain already.
        assert_eq!(
            block_hash(1, Some(first), &tokens, None, Some("a")),
            block_hash(1, Some(first), &tokens, None, None)
        );
    }
}
