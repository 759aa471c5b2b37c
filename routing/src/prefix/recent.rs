//! Prefixes that this filter has just sent somewhere: believed to be cached there for a moment, by which the engine's own
//! word has arrived, or for the whole time to live where the engine sends no events.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use super::place;
use super::spread::SpreadHasher;

/// Most chunks that are remembered at once; the oldest go first. About 50 bytes each.
const CAPACITY: usize = 65_536;

/// What was sent where, with a time to live.
#[derive(Debug, Default)]
pub struct Recent {
    /// The keys are hashes already; hashing them well again would take a good part of a decision.
    chunks: HashMap<(u32, u64), Sent, BuildHasherDefault<SpreadHasher>>,
    /// In the order of sending, to forget the oldest; an entry that was renewed since then is skipped.
    order: VecDeque<(u32, u64, u64)>,
}

/// Workers of a page that a chunk was sent to, by their place in it, each until its own time: what one worker is sent says
/// nothing of the others' caches. Most chunks were sent to one.
#[derive(Debug)]
struct Sent {
    first: (u64, u64),
    others: Vec<(u64, u64)>,
}

impl Sent {
    fn all(&self) -> impl Iterator<Item = &(u64, u64)> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn renew(&mut self, bit: u64, until_ms: u64) {
        let mut all = std::iter::once(&mut self.first).chain(&mut self.others);
        match all.find(|(of, _)| *of == bit) {
            Some((_, until)) => *until = until_ms.max(*until),
            None => self.others.push((bit, until_ms)),
        }
    }

    fn forget(&mut self, bit: u64) {
        self.others.retain(|(of, _)| *of != bit);
        if self.first.0 == bit {
            self.first.1 = 0;
        }
    }

    fn until_ms(&self) -> u64 {
        self.all().map(|(_, until)| *until).max().unwrap_or_default()
    }
}

impl Recent {
    /// Notes that the chunks with these hashes were sent to `worker`, and are believed to be there until `until_ms`.
    pub fn sent(&mut self, worker: u32, hashes: &[u64], until_ms: u64) {
        let (page, bit) = place(worker);
        for &hash in hashes.iter().take(CAPACITY) {
            let fresh = || Sent { first: (bit, until_ms), others: Vec::new() };
            self.chunks.entry((page, hash)).or_insert_with(fresh).renew(bit, until_ms);
            self.order.push_back((page, hash, until_ms));
        }
        while self.order.len() > CAPACITY {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((page, hash, until_ms)) = self.order.pop_front()
            && self.chunks.get(&(page, hash)).is_some_and(|sent| sent.until_ms() <= until_ms)
        {
            self.chunks.remove(&(page, hash));
        }
    }

    /// Forgets what is past its time.
    pub fn expire(&mut self, now_ms: u64) {
        while self.order.front().is_some_and(|oldest| oldest.2 <= now_ms) {
            self.forget_oldest();
        }
    }

    /// Forgets all that was sent to `worker`: it lost its cache, or is another process now.
    pub fn forget_worker(&mut self, worker: u32) {
        let (page, bit) = place(worker);
        for (_, sent) in self.chunks.iter_mut().filter(|((of, _), _)| *of == page) {
            sent.forget(bit);
        }
    }

    /// Workers of the page that the chunk was sent to and that are believed to hold it still.
    #[must_use]
    pub fn workers(&self, page: u32, hash: u64, now_ms: u64) -> u64 {
        if self.chunks.is_empty() {
            return 0;
        }
        let sent = self.chunks.get(&(page, hash)).into_iter().flat_map(Sent::all);
        sent.filter(|(_, until)| *until > now_ms).fold(0, |workers, (bit, _)| workers | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_believed_until_its_time() {
        let mut recent = Recent::default();
        recent.sent(65, &[10, 11], 100);
        recent.sent(66, &[10], 200);
        assert_eq!(recent.workers(1, 10, 50), 0b110);
        assert_eq!(recent.workers(1, 11, 50), 0b010);
        assert_eq!(recent.workers(0, 10, 50), 0);
        assert_eq!(recent.workers(1, 11, 100), 0);
        recent.expire(150);
        assert_eq!(recent.workers(1, 10, 150), 0b100, "what the other was sent does not count");
        recent.expire(200);
        assert!(recent.chunks.is_empty() && recent.order.is_empty());
    }

    #[test]
    fn a_worker_can_be_forgotten() {
        let mut recent = Recent::default();
        recent.sent(1, &[10], 100);
        recent.sent(2, &[10], 100);
        recent.forget_worker(1);
        assert_eq!(recent.workers(0, 10, 0), 0b100);
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        for i in 0..3 * CAPACITY as u64 {
            recent.sent(0, &[i + 1], 1000);
        }
        assert!(recent.chunks.len() <= CAPACITY && recent.order.len() <= CAPACITY);
        assert_eq!(recent.workers(0, 3 * CAPACITY as u64, 0), 1);
        assert_eq!(recent.workers(0, 1, 0), 0);
    }
}
