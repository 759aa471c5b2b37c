//! Prefix matching by bytes: prompts are cut on a fixed grid of chunks, each chunk has a chained hash, and an index knows
//! which workers hold which chunk.

mod hash;
mod index;
mod recent;
mod spread;
mod table;

pub use hash::{Chunks, hash_chunk, namespace_seed};
pub use index::{IndexError, PrefixIndex};
pub use recent::Recent;
pub use spread::SpreadHasher;
pub use table::Entry;

/// Workers of one page of the index.
pub const PAGE_WORKERS: u32 = 64;

/// The page of a worker, and its bit within the page.
#[must_use]
pub fn place(worker: u32) -> (u32, u64) {
    (worker / PAGE_WORKERS, 1 << (worker % PAGE_WORKERS))
}
