//! Which cache groups say what prefill can skip.
//!
//! Models with several kinds of attention keep one group of blocks for each. Only full attention (MLA and attention sinks
//! included) needs every block of a prefix, so only such a group tells what is cached. When there are several of them, the
//! first one that stores is counted; a removal from any of them counts, because a hit needs all.

use std::collections::BTreeMap;

use dynamo_kv_router::zmq_wire::KvCacheSpecKind;

/// More groups than any model has.
const MAX_GROUPS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Whether a group is one of full attention, as its stored blocks said.
    main: BTreeMap<u32, bool>,
    /// The group that is counted.
    counted: Option<u32>,
}

fn is_main(kind: KvCacheSpecKind) -> bool {
    use KvCacheSpecKind::{FullAttention, MlaAttention, SinkFullAttention};
    matches!(kind, FullAttention | MlaAttention | SinkFullAttention)
}

impl Groups {
    /// Whether blocks stored in this group count. A group of unknown kind is taken as one of full attention, unless it is
    /// known to be another: engines without hybrid models do not name the kind.
    pub(super) fn stored(&mut self, group: Option<u32>, kind: Option<KvCacheSpecKind>) -> bool {
        let group = group.unwrap_or(0);
        let main = match kind {
            Some(kind) => is_main(kind),
            None => self.main.get(&group).copied().unwrap_or(true),
        };
        if self.main.len() < MAX_GROUPS || self.main.contains_key(&group) {
            self.main.insert(group, main);
        }
        main && *self.counted.get_or_insert(group) == group
    }

    /// Whether a removal from this group counts. One that names no group always does.
    pub(super) fn removed(&self, group: Option<u32>, kind: Option<KvCacheSpecKind>) -> bool {
        match (kind, group) {
            (Some(kind), _) => is_main(kind),
            (None, None) => true,
            (None, Some(group)) => self.main.get(&group).copied().unwrap_or(false),
        }
    }
}
