//! One worker set: its tree of blocks, and the namespaces that its chains start from.

use std::collections::HashMap;
use std::sync::Arc;

use kinference_routing::prefix::namespace_seed;

use super::tree::{NodeId, Tree};
use crate::tokenizer::TokenBytes;

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) prefix_domain: String,
    /// `None` when the tokenizer is of a kind whose tokens do not say the text: nothing is claimed from events.
    pub(super) tokens: Option<Arc<TokenBytes>>,
    pub(super) tree: Tree,
    /// LoRA adapter and cache salt to the root of their chains.
    roots: HashMap<(String, String), NodeId>,
    /// Text and tokens of all blocks made, halved now and then: the measure of bytes per token.
    measured_bytes: u64,
    measured_tokens: u64,
}

impl Domain {
    pub(super) fn new(prefix_domain: &str, tokens: Option<Arc<TokenBytes>>, grid: u32) -> Self {
        Self {
            prefix_domain: prefix_domain.to_owned(),
            tokens,
            tree: Tree::new(grid),
            roots: HashMap::new(),
            measured_bytes: 0,
            measured_tokens: 0,
        }
    }

    /// Where the chains of a LoRA adapter and a cache salt ("" for none) start.
    pub(super) fn root(&mut self, lora: &str, salt: &str) -> NodeId {
        let key = (lora.to_owned(), salt.to_owned());
        match self.roots.get(&key) {
            Some(&root) => root,
            None => {
                let root = self.tree.add_root(namespace_seed(&self.prefix_domain, lora, salt));
                self.roots.insert(key, root);
                root
            }
        }
    }

    /// The node for these tokens below `parent`, or `None` when its text is not known.
    pub(super) fn intern(&mut self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let bytes = self.tokens.as_deref()?;
        let id = self.tree.intern(parent, tokens, bytes)?;
        self.measured_bytes += u64::from(self.tree.text_bytes(id));
        self.measured_tokens += tokens.len() as u64;
        if self.measured_tokens > 1 << 24 {
            self.measured_bytes /= 2;
            self.measured_tokens /= 2;
        }
        Some(id)
    }

    /// One worker less holds the node; it goes when nothing needs it, and so do its namespace's root and all between.
    pub(super) fn release(&mut self, id: NodeId) {
        if let Some(gone) = self.tree.release(id) {
            self.roots.retain(|_, root| *root != gone);
        }
    }

    pub(super) fn regrid(&mut self, grid: u32) {
        match &self.tokens {
            Some(bytes) => self.tree.regrid(grid, self.roots.values().copied(), bytes),
            None => self.tree = Tree::new(grid),
        }
    }

    /// Average bytes of text a token, over the blocks of late; `None` before the first.
    pub(super) fn bytes_per_token(&self) -> Option<f32> {
        (self.measured_tokens > 0).then(|| self.measured_bytes as f32 / self.measured_tokens as f32)
    }
}
