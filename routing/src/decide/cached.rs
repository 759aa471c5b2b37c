//! How much of a prompt each worker of a set has cached.

use std::collections::BTreeMap;

use crate::prefix::{Chunks, PAGE_WORKERS, Recent, place};
use crate::snapshot::{Snapshot, WorkerSet};

/// What a worker holds of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cached {
    /// Bytes of the prompt, a multiple of the chunk.
    pub bytes: usize,
    /// Tokens that the engine will find cached: whole blocks, and never the whole prompt.
    pub tokens: u32,
}

/// Walks the chunks of a prompt for every page of a set's workers. Gives what each worker that has anything holds, and an
/// estimate of the prompt's tokens.
pub(super) fn of_set(
    snapshot: &Snapshot,
    recent: &Recent,
    set: &WorkerSet,
    chunks: &mut Chunks<'_>,
    now_ms: u64,
) -> (BTreeMap<u32, Cached>, u32) {
    let workers = snapshot.workers.values().filter(|worker| worker.set == set.wire.id);
    let mut pages: BTreeMap<u32, u64> = BTreeMap::new();
    for worker in workers {
        let (page, bit) = place(worker.id);
        *pages.entry(page).or_default() |= bit;
    }
    let mut held: Vec<(u32, Cached)> = Vec::new();
    let mut longest = Cached::default();
    let per_chunk = chunks.chunk_bytes() as f32 / set.bytes_per_token();
    for (page, mut alive) in pages {
        let mut reached = Cached::default();
        let mut tokens = 0.0f32;
        let mut index = 0;
        while alive != 0 {
            let Some(hash) = chunks.get(index) else { break };
            let entry = snapshot.index.get(page, hash);
            let told = alive & entry.map_or(0, |entry| entry.workers);
            // What was just sent matters only where the engines have not said so themselves.
            let holders = if told == alive { told } else { told | (alive & recent.workers(page, hash, now_ms)) };
            drop_out(page, alive & !holders, reached, &mut held);
            alive = holders;
            if alive == 0 {
                break;
            }
            index += 1;
            tokens += entry.map_or(per_chunk, |entry| f32::from(entry.tokens));
            reached = Cached { bytes: index * chunks.chunk_bytes(), tokens: tokens as u32 };
        }
        drop_out(page, alive, reached, &mut held);
        if reached.bytes > longest.bytes {
            longest = reached;
        }
    }
    let rest = (chunks.text_bytes() - longest.bytes.min(chunks.text_bytes())) as f32;
    let prompt_tokens = longest.tokens + (rest / set.bytes_per_token()).ceil() as u32;
    let block = set.block_tokens();
    let held = held.into_iter().map(|(worker, cached)| {
        (worker, Cached { tokens: cached_tokens(cached.tokens, prompt_tokens, block), ..cached })
    });
    (held.collect(), prompt_tokens)
}

fn drop_out(page: u32, workers: u64, reached: Cached, held: &mut Vec<(u32, Cached)>) {
    if reached.bytes == 0 {
        return;
    }
    let bits = (0..PAGE_WORKERS).filter(|bit| workers >> bit & 1 == 1);
    held.extend(bits.map(|bit| (page * PAGE_WORKERS + bit, reached)));
}

/// Tokens that an engine finds cached when it holds `held` tokens of a prompt of `prompt` tokens: whole blocks, and at
/// least one token is always computed.
#[must_use]
pub fn cached_tokens(held: u32, prompt: u32, block: u32) -> u32 {
    let block = block.max(1);
    held.min(prompt.saturating_sub(1)) / block * block
}
