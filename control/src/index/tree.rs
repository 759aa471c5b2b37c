//! The tree of blocks of one worker set. A node is a block of tokens after all the blocks above it; it exists while a
//! worker holds it or something below it.

use std::hash::{BuildHasher, RandomState};

use kinference_routing::prefix::hash_chunk;

use super::hasher::Map;
use crate::tokenizer::TokenBytes;

/// Number of a node within its tree.
pub(super) type NodeId = u32;
/// No node.
pub(super) const NONE: NodeId = u32::MAX;

/// A chunk that ends within a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) hash: u64,
    /// Tokens whose last byte lies in the chunk.
    pub(super) tokens: u32,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: NodeId,
    pub(super) first_child: NodeId,
    pub(super) next: NodeId,
    previous: NodeId,
    /// Workers that hold the node, and its children.
    references: u32,
    /// Where the node's text ends, in bytes from the start of the prompt.
    end: u32,
    /// Tokens that end after the last whole chunk.
    partial_tokens: u32,
    /// Hash of the last whole chunk that ends within or above the node; the namespace's seed when there is none.
    chain: u64,
    /// Key in the table of nodes.
    key: u64,
    pub(super) tokens: Box<[u32]>,
    /// Chunks that end within the node.
    pub(super) chunks: Box<[Chunk]>,
}

/// The blocks of one worker set.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Free places in `nodes`.
    free: Vec<NodeId>,
    /// By hash of parent and tokens.
    interned: Map<u64, NodeId>,
    hasher: RandomState,
    grid: u32,
    /// Reused for the bytes to hash.
    scratch: Vec<u8>,
}

impl Tree {
    pub(super) fn new(grid: u32) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            interned: Map::default(),
            hasher: RandomState::new(),
            grid,
            scratch: Vec::new(),
        }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Nodes in use, roots included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// A root: what the chunks of one namespace start from.
    pub(super) fn add_root(&mut self, seed: u64) -> NodeId {
        self.place(Node {
            parent: NONE,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            references: 0,
            end: 0,
            partial_tokens: 0,
            chain: seed,
            key: 0,
            tokens: Box::default(),
            chunks: Box::default(),
        })
    }

    pub(super) fn is_root(&self, id: NodeId) -> bool {
        self.node(id).parent == NONE
    }

    fn place(&mut self, node: Node) -> NodeId {
        match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        }
    }

    /// The node for these tokens below `parent`, made if need be. `None` when the text is not known: a token that the
    /// vocabulary does not have, more than 4 GiB of text, or (never seen) two blocks with one 64-bit hash.
    ///
    /// A new node has no references yet: the caller [`hold`](Self::hold)s it.
    pub(super) fn intern(&mut self, parent: NodeId, tokens: &[u32], bytes: &TokenBytes) -> Option<NodeId> {
        let key = self.hasher.hash_one((parent, tokens));
        if let Some(&id) = self.interned.get(&key) {
            let node = self.node(id);
            return (node.parent == parent && *node.tokens == *tokens).then_some(id);
        }
        let (end, chain, partial_tokens, chunks) = self.cut(parent, tokens, bytes)?;
        let next = self.node(parent).first_child;
        let id = self.place(Node {
            parent,
            first_child: NONE,
            next,
            previous: NONE,
            references: 0,
            end,
            partial_tokens,
            chain,
            key,
            tokens: tokens.into(),
            chunks,
        });
        if next != NONE {
            self.node_mut(next).previous = id;
        }
        let above = self.node_mut(parent);
        above.first_child = id;
        above.references += 1;
        self.interned.insert(key, id);
        Some(id)
    }

    /// Length of a node's text.
    pub(super) fn text_bytes(&self, id: NodeId) -> u32 {
        let node = self.node(id);
        if node.parent == NONE { 0 } else { node.end - self.node(node.parent).end }
    }

    /// Where the text of `tokens` below `parent` ends, and the chunks that end within it.
    fn cut(&mut self, parent: NodeId, tokens: &[u32], bytes: &TokenBytes) -> Option<(u32, u64, u32, Box<[Chunk]>)> {
        let grid = self.grid;
        let above = self.node(parent);
        let (start, mut chain, mut partial) = (above.end, above.chain, above.partial_tokens);
        let mut end = start;
        let mut counts = Vec::new();
        for &token in tokens {
            let length = u32::try_from(bytes.get(token)?.len()).ok()?;
            let before = end;
            end = end.checked_add(length)?;
            // A token belongs to the chunk of its last byte; long ones can leave chunks in which none ends.
            let last = end.saturating_sub(1).max(before) / grid;
            while start / grid + (counts.len() as u32) < last {
                counts.push(std::mem::take(&mut partial));
            }
            partial += 1;
            if length > 0 && end.is_multiple_of(grid) {
                counts.push(std::mem::take(&mut partial));
            }
        }
        if counts.is_empty() {
            return Some((end, chain, partial, Box::default()));
        }
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        self.tail(parent, start % grid, bytes, &mut text);
        for &token in tokens {
            text.extend_from_slice(bytes.get(token).unwrap_or_default());
        }
        let pieces = text.chunks_exact(grid as usize).zip(counts);
        let chunks = pieces.map(|(piece, tokens)| {
            chain = hash_chunk(piece, chain);
            Chunk { hash: chain, tokens }
        });
        let chunks: Box<[Chunk]> = chunks.collect();
        self.scratch = text;
        Some((end, chain, partial, chunks))
    }

    /// Puts the last `wanted` bytes of the text that ends with `id` into `text`.
    fn tail(&self, id: NodeId, wanted: u32, bytes: &TokenBytes, text: &mut Vec<u8>) {
        if wanted == 0 {
            return;
        }
        let until = self.node(id).end - wanted;
        let mut path = vec![id];
        let mut top = id;
        while self.node(self.node(top).parent).end > until {
            top = self.node(top).parent;
            path.push(top);
        }
        for &id in path.iter().rev() {
            for &token in &*self.node(id).tokens {
                text.extend_from_slice(bytes.get(token).unwrap_or_default());
            }
        }
        let surplus = text.len() - wanted as usize;
        text.drain(..surplus);
    }

    /// One more worker holds the node.
    pub(super) fn hold(&mut self, id: NodeId) {
        self.node_mut(id).references += 1;
    }

    /// One worker less holds the node. Nodes that nobody needs go; the return value is the root, when that went too.
    pub(super) fn release(&mut self, mut id: NodeId) -> Option<NodeId> {
        self.node_mut(id).references -= 1;
        while self.node(id).references == 0 {
            let node = self.node(id);
            let (parent, next, previous, key) = (node.parent, node.next, node.previous, node.key);
            self.free.push(id);
            let gone = self.node_mut(id);
            gone.tokens = Box::default();
            gone.chunks = Box::default();
            if parent == NONE {
                return Some(id);
            }
            self.interned.remove(&key);
            if next != NONE {
                self.node_mut(next).previous = previous;
            }
            if previous == NONE {
                self.node_mut(parent).first_child = next;
            } else {
                self.node_mut(previous).next = next;
            }
            self.node_mut(parent).references -= 1;
            id = parent;
        }
        None
    }

    /// Cuts all text anew on another grid, from these roots down.
    pub(super) fn regrid(&mut self, grid: u32, roots: impl Iterator<Item = NodeId>, bytes: &TokenBytes) {
        self.grid = grid;
        let mut todo: Vec<NodeId> = roots.map(|root| self.node(root).first_child).filter(|&id| id != NONE).collect();
        while let Some(id) = todo.pop() {
            let tokens = std::mem::take(&mut self.node_mut(id).tokens);
            let parent = self.node(id).parent;
            let cut = self.cut(parent, &tokens, bytes);
            let node = self.node_mut(id);
            node.tokens = tokens;
            if let Some((_, chain, partial_tokens, chunks)) = cut {
                (node.chain, node.partial_tokens, node.chunks) = (chain, partial_tokens, chunks);
            }
            todo.extend([node.next, node.first_child].into_iter().filter(|&id| id != NONE));
        }
    }
}
