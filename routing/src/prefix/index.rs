//! The prefix index of a filter: for each page of 64 workers, which chunks they hold.

use std::collections::BTreeMap;

use kinference_protocol::v1;
use thiserror::Error;

use super::table::{Entry, Table};

/// Why a prefix section cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IndexError {
    /// The lists of a page differ in length.
    #[error(
        "prefix page {page}: {hashes} hashes, {workers} worker sets and {tokens} token counts; they must be equally many"
    )]
    Lengths {
        /// The page.
        page: u32,
        /// Length of the list of hashes.
        hashes: usize,
        /// Length of the list of worker masks.
        workers: usize,
        /// Length of the list of token counts.
        tokens: usize,
    },
    /// A chunk hash of 0.
    #[error("prefix page {page}: a chunk hash is 0")]
    ZeroHash {
        /// The page.
        page: u32,
    },
    /// The index would outgrow its budget.
    #[error("the prefix index would take {bytes} bytes, its budget is {budget}")]
    Budget {
        /// Bytes that it would take.
        bytes: usize,
        /// Bytes that it may take.
        budget: usize,
    },
}

/// Which workers hold which chunks.
#[derive(Debug, Clone, Default)]
pub struct PrefixIndex {
    pages: BTreeMap<u32, Table>,
}

impl PrefixIndex {
    /// Bytes that one page with this many chunks takes. The control service keeps to the budget with the same figure.
    #[must_use]
    pub fn bytes_for(chunks: usize) -> usize {
        Table::bytes_for(chunks)
    }

    /// Number of chunks, counted once for each page.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.pages.values().map(Table::len).sum()
    }

    /// Bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.values().map(Table::bytes).sum()
    }

    /// What is known of a chunk.
    #[must_use]
    pub fn get(&self, page: u32, hash: u64) -> Option<Entry> {
        self.pages.get(&page)?.get(hash)
    }

    /// Checks a section without changing anything: well-formed, and within `budget` bytes once applied. The size is
    /// bounded from above, as if every entry were new.
    ///
    /// # Errors
    /// See [`IndexError`].
    pub fn check(&self, section: &v1::Prefix, budget: usize) -> Result<(), IndexError> {
        let mut added: BTreeMap<u32, usize> = BTreeMap::new();
        for page in &section.pages {
            let (hashes, workers, tokens) = (page.hashes.len(), page.workers.len(), page.tokens.len());
            if hashes != workers || hashes != tokens {
                return Err(IndexError::Lengths { page: page.page, hashes, workers, tokens });
            }
            if page.hashes.contains(&0) {
                return Err(IndexError::ZeroHash { page: page.page });
            }
            *added.entry(page.page).or_default() += self.new_entries(page);
        }
        let grown: usize = added
            .iter()
            .map(|(page, new)| {
                let table = self.pages.get(page);
                let (len, bytes) = table.map_or((0, 0), |table| (table.len(), table.bytes()));
                Table::bytes_for(len + new).saturating_sub(bytes)
            })
            .sum();
        let bytes = self.bytes() + grown;
        if bytes > budget { Err(IndexError::Budget { bytes, budget }) } else { Ok(()) }
    }

    fn new_entries(&self, page: &v1::PrefixPage) -> usize {
        let table = self.pages.get(&page.page);
        let entries = page.hashes.iter().zip(&page.workers);
        entries
            .filter(|(hash, workers)| **workers != 0 && table.is_none_or(|table| table.get(**hash).is_none()))
            .count()
    }

    /// Applies a section that [`check`](Self::check) accepted.
    pub fn apply(&mut self, section: &v1::Prefix) {
        for clear in &section.clears {
            self.clear(clear.page, clear.workers);
        }
        for page in &section.pages {
            let table = self.pages.entry(page.page).or_default();
            for ((&hash, &workers), &tokens) in page.hashes.iter().zip(&page.workers).zip(&page.tokens) {
                if hash != 0 {
                    table.set(hash, Entry { workers, tokens: u16::try_from(tokens).unwrap_or(u16::MAX) });
                }
            }
            if table.len() == 0 {
                self.pages.remove(&page.page);
            }
        }
    }

    /// Forgets all that these workers of a page hold.
    pub fn clear(&mut self, page: u32, workers: u64) {
        if let Some(table) = self.pages.get_mut(&page) {
            table.clear_workers(workers);
            if table.len() == 0 {
                self.pages.remove(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests;
