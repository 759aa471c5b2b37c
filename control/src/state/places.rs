//! Ids of worker sets and workers.
//!
//! A worker's id is also its place in the prefix index: page id / 64, bit id % 64, and all workers of one page are of
//! one set. An id is given out again only after filters were told that its worker is gone.

use std::collections::BTreeMap;

use kinference_api::ObjectKey;
use kinference_routing::prefix::{PAGE_WORKERS, place};

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    set: Option<u32>,
    /// Bits that are given out or not yet free again.
    used: u64,
}

/// Who has which id.
#[derive(Debug, Default)]
pub(super) struct Places {
    sets: BTreeMap<ObjectKey, u32>,
    pages: Vec<Page>,
    released: Vec<u32>,
}

impl Places {
    /// The id of a set, the same for the life of the process.
    pub(super) fn set(&mut self, key: &ObjectKey) -> u32 {
        let next = self.sets.len() as u32;
        *self.sets.entry(key.clone()).or_insert(next)
    }

    /// An id for a new worker of a set.
    pub(super) fn take(&mut self, set: u32) -> u32 {
        let own = self.pages.iter().position(|page| page.set == Some(set) && page.used != u64::MAX);
        let page = own.or_else(|| self.pages.iter().position(|page| page.set.is_none())).unwrap_or_else(|| {
            self.pages.push(Page::default());
            self.pages.len() - 1
        });
        let slot = &mut self.pages[page];
        slot.set = Some(set);
        let bit = slot.used.trailing_ones();
        slot.used |= 1 << bit;
        page as u32 * PAGE_WORKERS + bit
    }

    /// The worker of this id is gone; filters are yet to be told.
    pub(super) fn release(&mut self, id: u32) {
        self.released.push(id);
    }

    /// Filters were told of every release so far.
    pub(super) fn recycle(&mut self) {
        for id in self.released.drain(..) {
            let (page, bit) = place(id);
            if let Some(page) = self.pages.get_mut(page as usize) {
                page.used &= !bit;
                if page.used == 0 {
                    page.set = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_belong_to_one_set_each() {
        let mut places = Places::default();
        let (a, b) = (places.set(&ObjectKey::new("default", "a")), places.set(&ObjectKey::new("default", "b")));
        assert_ne!(a, b);
        assert_eq!(places.set(&ObjectKey::new("default", "a")), a);
        let of_a: Vec<u32> = (0..65).map(|_| places.take(a)).collect();
        assert_eq!(of_a[..64], (0..64).collect::<Vec<_>>());
        assert_eq!(of_a[64], 64);
        assert_eq!(places.take(b), 128);
    }

    #[test]
    fn an_id_is_used_again_only_after_filters_know() {
        let mut places = Places::default();
        let first = places.take(0);
        places.release(first);
        assert_eq!(places.take(0), first + 1);
        places.recycle();
        assert_eq!(places.take(0), first);
        places.release(first);
        places.release(first + 1);
        places.recycle();
        assert_eq!(places.take(9), 0, "a page without workers may go to another set");
    }
}
