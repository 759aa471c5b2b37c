//! Routed mode: prefixes learned from where requests were sent, believed for a time.

use std::collections::VecDeque;

use super::hasher::Map;

/// Most chunks that are believed at once; the oldest go first. About 80 bytes each.
const MAX_LEARNED: usize = 1 << 21;

/// What was learned, and until when it is believed.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Worker and chunk to the time until which the worker is believed to hold the chunk.
    until_ms: Map<(u32, u64), u64>,
    /// By time of learning, for each time to live. A chunk that was learned anew has a later place too.
    order: Map<u64, VecDeque<(u64, u32, u64)>>,
}

impl Learned {
    /// Notes a chunk; returns whether it is new. A chunk that was noted just before keeps its place, so that a hot prefix
    /// does not fill the queue.
    pub(super) fn note(&mut self, worker: u32, hash: u64, now_ms: u64, ttl_ms: u64) -> bool {
        let until = now_ms.saturating_add(ttl_ms);
        let known = self.until_ms.get(&(worker, hash)).copied();
        if known.is_some_and(|known| until.saturating_sub(known) <= ttl_ms / 8) {
            return false;
        }
        self.until_ms.insert((worker, hash), until);
        self.order.entry(ttl_ms).or_default().push_back((until, worker, hash));
        known.is_none()
    }

    /// The next chunk that is past its time, or one of the oldest when there are too many.
    pub(super) fn next_expired(&mut self, now_ms: u64) -> Option<(u32, u64)> {
        let mut too_many = self.until_ms.len() > MAX_LEARNED;
        let mut found = None;
        for queue in self.order.values_mut() {
            while let Some(&(until, worker, hash)) = queue.front() {
                let current = self.until_ms.get(&(worker, hash)) == Some(&until);
                if current && until > now_ms && !too_many {
                    break;
                }
                queue.pop_front();
                if current {
                    self.until_ms.remove(&(worker, hash));
                    found = Some((worker, hash));
                    too_many = false;
                    break;
                }
            }
            if found.is_some() {
                break;
            }
        }
        self.order.retain(|_, queue| !queue.is_empty());
        found
    }

    /// Forgets all that was learned of a worker, and returns it.
    pub(super) fn forget_worker(&mut self, worker: u32) -> Vec<u64> {
        let hashes = self.until_ms.keys().filter(|(of, _)| *of == worker).map(|(_, hash)| *hash).collect();
        self.until_ms.retain(|(of, _), _| *of != worker);
        hashes
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
