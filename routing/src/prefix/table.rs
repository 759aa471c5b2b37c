//! The hash table behind the index: chunk hash to the workers that hold it.
//!
//! Open addressing with linear probing and deletion by shifting back, in three parallel arrays of 18 bytes an entry. The
//! place of a hash is the share of the capacity that its upper half says (`upper * capacity / 2^32`), so that the capacity
//! can grow by a half instead of doubling, and memory stays close to what is in use.

/// What is known of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Bit i: worker i of the page holds the chunk.
    pub workers: u64,
    /// Tokens that end within the chunk.
    pub tokens: u16,
}

/// Bytes of one place in the table.
const PLACE_BYTES: usize = 8 + 8 + 2;
/// Smallest capacity that is allocated.
const SMALLEST: usize = 16;

#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    /// 0 marks an empty place.
    hashes: Vec<u64>,
    workers: Vec<u64>,
    tokens: Vec<u16>,
    len: usize,
}

impl Table {
    /// Capacity that holds `entries` at a load of at most 7/8.
    pub(super) fn capacity_for(entries: usize) -> usize {
        if entries == 0 {
            return 0;
        }
        let mut capacity = SMALLEST;
        while capacity / 8 * 7 < entries {
            capacity += capacity / 2;
        }
        capacity
    }

    /// Bytes of a table with `entries` entries.
    pub(super) fn bytes_for(entries: usize) -> usize {
        Self::capacity_for(entries) * PLACE_BYTES
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.hashes.len() * PLACE_BYTES
    }

    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.hashes.len() as u64) >> 32) as usize
    }

    fn next(&self, place: usize) -> usize {
        if place + 1 == self.hashes.len() { 0 } else { place + 1 }
    }

    /// The place of `hash`, or the empty one where it would go.
    fn find(&self, hash: u64) -> Option<(usize, bool)> {
        if self.hashes.is_empty() {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            match self.hashes.get(place).copied() {
                Some(0) => return Some((place, false)),
                Some(found) if found == hash => return Some((place, true)),
                Some(_) => place = self.next(place),
                None => return None,
            }
        }
    }

    pub(super) fn get(&self, hash: u64) -> Option<Entry> {
        let (place, found) = self.find(hash)?;
        if !found {
            return None;
        }
        Some(Entry { workers: *self.workers.get(place)?, tokens: *self.tokens.get(place)? })
    }

    /// Sets or, when no worker holds it, forgets a chunk. `hash` is not 0.
    pub(super) fn set(&mut self, hash: u64, entry: Entry) {
        if entry.workers == 0 {
            self.remove(hash);
            return;
        }
        if let Some((place, true)) = self.find(hash) {
            self.write(place, hash, entry);
            return;
        }
        if self.hashes.len() / 8 * 7 <= self.len {
            self.resize(Self::capacity_for(self.len + 1));
        }
        if let Some((place, false)) = self.find(hash) {
            self.write(place, hash, entry);
            self.len += 1;
        }
    }

    fn write(&mut self, place: usize, hash: u64, entry: Entry) {
        if let (Some(h), Some(w), Some(t)) =
            (self.hashes.get_mut(place), self.workers.get_mut(place), self.tokens.get_mut(place))
        {
            *h = hash;
            *w = entry.workers;
            *t = entry.tokens;
        }
    }

    fn remove(&mut self, hash: u64) {
        let Some((mut hole, true)) = self.find(hash) else { return };
        self.len -= 1;
        let mut place = hole;
        loop {
            place = self.next(place);
            let Some(&moved) = self.hashes.get(place) else { break };
            if moved == 0 {
                break;
            }
            // An entry may move back to the hole unless its home lies between the hole and where it is.
            let home = self.home(moved);
            let stays = if hole <= place { hole < home && home <= place } else { hole < home || home <= place };
            if !stays {
                let entry = Entry {
                    workers: self.workers.get(place).copied().unwrap_or_default(),
                    tokens: self.tokens.get(place).copied().unwrap_or_default(),
                };
                self.write(hole, moved, entry);
                hole = place;
            }
        }
        self.write(hole, 0, Entry::default());
    }

    fn resize(&mut self, capacity: usize) {
        let old = std::mem::take(self);
        self.hashes = vec![0; capacity];
        self.workers = vec![0; capacity];
        self.tokens = vec![0; capacity];
        for (hash, entry) in old.iter() {
            if let Some((place, false)) = self.find(hash) {
                self.write(place, hash, entry);
                self.len += 1;
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.hashes
            .iter()
            .zip(&self.workers)
            .zip(&self.tokens)
            .filter(|((hash, _), _)| **hash != 0)
            .map(|((&hash, &workers), &tokens)| (hash, Entry { workers, tokens }))
    }

    /// Takes `workers` out of every entry, and gives memory back when little is left.
    pub(super) fn clear_workers(&mut self, workers: u64) {
        let mut kept = Self::default();
        let left = self.iter().filter(|(_, entry)| entry.workers & !workers != 0).count();
        if left > 0 {
            kept.resize(Self::capacity_for(left));
        }
        for (hash, entry) in self.iter() {
            kept.set(hash, Entry { workers: entry.workers & !workers, ..entry });
        }
        *self = kept;
    }
}
