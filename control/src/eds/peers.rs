//! Which Envoys are connected, and what they said of the endpoints they were given.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// One Envoy's endpoint stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Envoy's node id.
    pub node: String,
    /// The version it runs with; empty before its first acknowledgement.
    pub acknowledged: String,
    /// The newest version it was sent.
    pub sent: String,
    /// Why it refused the newest version; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// All of them, by a number of the stream.
#[derive(Debug, Default)]
pub struct Peers {
    inner: Mutex<(u64, BTreeMap<u64, Peer>)>,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Peer>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(&self, node: &str) -> u64 {
        let mut inner = self.lock();
        inner.0 += 1;
        let id = inner.0;
        inner.1.insert(id, Peer { node: node.to_owned(), ..Peer::default() });
        id
    }

    pub(super) fn update(&self, id: u64, change: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.lock().1.get_mut(&id) {
            change(peer);
        }
    }

    pub(super) fn leave(&self, id: u64) {
        self.lock().1.remove(&id);
    }

    /// The connected ones.
    pub fn list(&self) -> Vec<Peer> {
        self.lock().1.values().cloned().collect()
    }
}
