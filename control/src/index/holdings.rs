//! What one worker holds: blocks by the engine's hash, copies counted, and which of them are rooted.

use super::domain::Domain;
use super::hasher::Map;
use super::store::Applied;
use super::table::Table;
use super::tree::{NONE, NodeId};
use crate::events::Stored;

/// Most blocks of one worker. An engine has no more than its cache holds (a million tokens are 62,500 blocks of 16);
/// past this, stores are not counted.
const MAX_BLOCKS: usize = 1 << 22;

#[derive(Debug)]
struct Block {
    /// Identical blocks that the engine holds; at least 1.
    copies: u32,
    at: Place,
}

#[derive(Debug)]
enum Place {
    /// Its text, and that of everything before it, is known.
    Node(NodeId),
    /// Its parent is not known (yet).
    Waiting(Box<Orphan>),
    /// Its text is not known: images, unknown tokens, or a block below such a one.
    Opaque,
}

#[derive(Debug)]
struct Orphan {
    parent: u64,
    tokens: Box<[u32]>,
}

/// Where the next block of a chain goes.
#[derive(Clone, Copy)]
enum Above {
    Node(NodeId),
    Unknown(u64),
    Opaque,
}

/// A node as one worker sees it: there while the worker holds it or a child of it.
#[derive(Debug, Default)]
struct Held {
    copies: u32,
    children: u32,
    rooted: bool,
}

/// The blocks of one worker.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    blocks: Map<u64, Block>,
    nodes: Map<NodeId, Held>,
    /// Unknown parent to the blocks that wait for it.
    waiting: Map<u64, Vec<u64>>,
    rooted_blocks: u64,
    rooted_tokens: u64,
}

impl Holdings {
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Tokens and blocks that are claimed.
    pub(super) fn rooted(&self) -> (u64, u64) {
        (self.rooted_tokens, self.rooted_blocks)
    }

    pub(super) fn store(&mut self, mut on: On<'_>, event: &Stored) -> Applied {
        let mut applied = Applied::default();
        let mut above = match event.parent {
            Some(parent) => self.above(parent),
            None => Above::Node(on.domain.root(&event.lora, &event.salt)),
        };
        let started = above;
        if let Above::Node(id) = started {
            on.domain.tree.hold(id);
        }
        let report = event.is_report();
        let block_size = event.block_size.max(1) as usize;
        for (index, &hash) in event.hashes.iter().enumerate() {
            let tokens = if index < event.mappable {
                event.token_ids.get(index * block_size..(index + 1) * block_size)
            } else {
                None
            };
            if tokens.is_none() {
                above = Above::Opaque;
            }
            self.store_block(&mut on, hash, above, tokens.unwrap_or_default(), report, &mut applied);
            above = self.above(hash);
        }
        if let Above::Node(id) = started {
            on.domain.release(id);
        }
        applied
    }

    fn store_block(
        &mut self,
        on: &mut On<'_>,
        hash: u64,
        above: Above,
        tokens: &[u32],
        report: bool,
        applied: &mut Applied,
    ) {
        // Kept while blocks are forgotten and made: a damaged event can name a block as its own parent.
        if let Above::Node(id) = above {
            on.domain.tree.hold(id);
        }
        if self.contradicts(on, hash, tokens) {
            self.forget(on, hash);
        }
        if self.blocks.contains_key(&hash) {
            if report {
                applied.reported += 1;
            } else {
                self.another_copy(hash);
                applied.copies += 1;
            }
            self.improve(on, hash, above, tokens);
        } else if self.blocks.len() >= MAX_BLOCKS {
            applied.over_limit += 1;
        } else {
            applied.stored += 1;
            self.insert(on, hash, above, tokens);
        }
        if let Above::Node(id) = above {
            on.domain.release(id);
        }
    }

    fn above(&self, hash: u64) -> Above {
        match self.blocks.get(&hash).map(|block| &block.at) {
            Some(Place::Node(id)) => Above::Node(*id),
            Some(Place::Opaque) => Above::Opaque,
            Some(Place::Waiting(_)) | None => Above::Unknown(hash),
        }
    }

    /// Whether the block is known with other tokens than these: then one of the two is wrong, and the older one is
    /// forgotten.
    fn contradicts(&self, on: &On<'_>, hash: u64, tokens: &[u32]) -> bool {
        let known: &[u32] = match self.blocks.get(&hash).map(|block| &block.at) {
            Some(Place::Node(id)) => &on.domain.tree.node(*id).tokens,
            Some(Place::Waiting(orphan)) => &orphan.tokens,
            Some(Place::Opaque) | None => return false,
        };
        !tokens.is_empty() && known != tokens
    }

    fn another_copy(&mut self, hash: u64) {
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        block.copies = block.copies.saturating_add(1);
        if let Place::Node(id) = block.at
            && let Some(held) = self.nodes.get_mut(&id)
        {
            held.copies = held.copies.saturating_add(1);
        }
    }

    /// A block that was stored before may have its parent known only now.
    fn improve(&mut self, on: &mut On<'_>, hash: u64, above: Above, tokens: &[u32]) {
        let Some(block) = self.blocks.get(&hash) else { return };
        let better = match (&block.at, above) {
            (Place::Node(_), _) | (_, Above::Opaque) => false,
            (Place::Waiting(_) | Place::Opaque, Above::Node(_)) => true,
            (Place::Waiting(orphan), Above::Unknown(parent)) => orphan.parent != parent,
            (Place::Opaque, Above::Unknown(_)) => true,
        };
        if better {
            let copies = block.copies;
            self.forget(on, hash);
            self.insert(on, hash, above, tokens);
            if let Some(block) = self.blocks.get_mut(&hash) {
                block.copies = copies;
                if let Place::Node(id) = block.at
                    && let Some(held) = self.nodes.get_mut(&id)
                {
                    held.copies += copies - 1;
                }
            }
        }
    }

    /// Adds a block that is not there, with one copy, and what waited for it.
    fn insert(&mut self, on: &mut On<'_>, hash: u64, above: Above, tokens: &[u32]) {
        let at = match above {
            Above::Node(parent) => match on.domain.intern(parent, tokens) {
                Some(id) => Place::Node(id),
                None => Place::Opaque,
            },
            Above::Unknown(parent) if parent != hash => {
                self.waiting.entry(parent).or_default().push(hash);
                Place::Waiting(Box::new(Orphan { parent, tokens: tokens.into() }))
            }
            Above::Unknown(_) | Above::Opaque => Place::Opaque,
        };
        if let Place::Node(id) = at {
            self.attach(on, id, 1);
        }
        let is_node = matches!(at, Place::Node(_));
        self.blocks.insert(hash, Block { copies: 1, at });
        if is_node {
            self.adopt(on, hash);
        }
    }

    /// Gives blocks that waited for `hash` their place in the tree, and what waited for them.
    fn adopt(&mut self, on: &mut On<'_>, hash: u64) {
        let mut parents = vec![hash];
        while let Some(parent) = parents.pop() {
            let Some(Place::Node(above)) = self.blocks.get(&parent).map(|block| &block.at) else { continue };
            let above = *above;
            for child in self.waiting.remove(&parent).unwrap_or_default() {
                let Some(block) = self.blocks.get_mut(&child) else { continue };
                let Place::Waiting(orphan) = &block.at else { continue };
                let copies = block.copies;
                match on.domain.intern(above, &orphan.tokens) {
                    Some(id) => {
                        block.at = Place::Node(id);
                        self.attach(on, id, copies);
                        parents.push(child);
                    }
                    None => block.at = Place::Opaque,
                }
            }
        }
    }

    /// The worker holds `copies` more of a node.
    fn attach(&mut self, on: &mut On<'_>, id: NodeId, copies: u32) {
        let held = self.nodes.entry(id).or_default();
        let before = held.copies;
        held.copies = held.copies.saturating_add(copies);
        if before > 0 {
            return;
        }
        on.domain.tree.hold(id);
        let parent = on.domain.tree.node(id).parent;
        let rooted = if on.domain.tree.is_root(parent) {
            true
        } else {
            let above = self.nodes.entry(parent).or_default();
            above.children += 1;
            above.rooted
        };
        if rooted {
            self.set_rooted(on, id, true);
        }
    }

    /// The worker holds `copies` less of a node.
    fn detach(&mut self, on: &mut On<'_>, id: NodeId, copies: u32) {
        let Some(held) = self.nodes.get_mut(&id) else { return };
        held.copies = held.copies.saturating_sub(copies);
        if held.copies > 0 {
            return;
        }
        if held.rooted {
            self.set_rooted(on, id, false);
        }
        self.drop_if_unused(id);
        let parent = on.domain.tree.node(id).parent;
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children -= 1;
            self.drop_if_unused(parent);
        }
        on.domain.release(id);
    }

    fn drop_if_unused(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|held| held.copies == 0 && held.children == 0) {
            self.nodes.remove(&id);
        }
    }

    /// Marks a node, and what the worker holds below it without a hole, as rooted or not, and claims or drops its chunks.
    fn set_rooted(&mut self, on: &mut On<'_>, id: NodeId, rooted: bool) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let Some(held) = self.nodes.get_mut(&id) else { continue };
            held.rooted = rooted;
            let children = held.children;
            let node = on.domain.tree.node(id);
            for &chunk in &*node.chunks {
                if rooted {
                    on.table.add(on.worker, chunk);
                } else {
                    on.table.remove(on.worker, chunk.hash);
                }
            }
            let tokens = node.tokens.len() as u64;
            if rooted {
                self.rooted_blocks += 1;
                self.rooted_tokens += tokens;
            } else {
                self.rooted_blocks -= 1;
                self.rooted_tokens -= tokens;
            }
            if children == 0 {
                continue;
            }
            let mut child = node.first_child;
            while child != NONE {
                if self.nodes.get(&child).is_some_and(|held| held.copies > 0 && held.rooted != rooted) {
                    todo.push(child);
                }
                child = on.domain.tree.node(child).next;
            }
        }
    }

    /// One copy of each of these blocks is gone.
    pub(super) fn remove(&mut self, mut on: On<'_>, hashes: &[u64]) -> Applied {
        let mut applied = Applied::default();
        for &hash in hashes {
            let Some(block) = self.blocks.get_mut(&hash) else {
                applied.unknown += 1;
                continue;
            };
            applied.removed += 1;
            if block.copies == 1 {
                self.forget(&mut on, hash);
                continue;
            }
            block.copies -= 1;
            if let Place::Node(id) = block.at {
                self.detach(&mut on, id, 1);
            }
        }
        applied
    }

    /// Forgets a block with all its copies.
    fn forget(&mut self, on: &mut On<'_>, hash: u64) {
        let Some(block) = self.blocks.remove(&hash) else { return };
        match block.at {
            Place::Node(id) => self.detach(on, id, block.copies),
            Place::Waiting(orphan) => {
                if let Some(children) = self.waiting.get_mut(&orphan.parent) {
                    if let Some(place) = children.iter().position(|child| *child == hash) {
                        children.swap_remove(place);
                    }
                    if children.is_empty() {
                        self.waiting.remove(&orphan.parent);
                    }
                }
            }
            Place::Opaque => {}
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, on: On<'_>) {
        let claimed = self.rooted_blocks > 0;
        for (&id, held) in self.nodes.iter().filter(|(_, held)| held.copies > 0) {
            if held.rooted {
                for chunk in &*on.domain.tree.node(id).chunks {
                    on.table.drop_quietly(on.worker, chunk.hash);
                }
            }
            on.domain.release(id);
        }
        *self = Self::default();
        if claimed {
            on.table.cleared(on.worker);
        }
    }

    /// Claims the chunks of all rooted blocks again, after the table was emptied.
    pub(super) fn claim_again(&self, on: On<'_>) {
        for (&id, _) in self.nodes.iter().filter(|(_, held)| held.rooted) {
            for &chunk in &*on.domain.tree.node(id).chunks {
                on.table.add(on.worker, chunk);
            }
        }
    }
}

/// What a worker's holdings act on.
pub(super) struct On<'a> {
    pub(super) worker: u32,
    pub(super) domain: &'a mut Domain,
    pub(super) table: &'a mut Table,
}
