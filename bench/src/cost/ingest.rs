//! Events through the control service: a worker that publishes as fast as it can, and the processor time until all of it is
//! taken in.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde::Serialize;

use super::bed::{Bed, Rig};
use super::corpus::Corpus;
use super::drive::metric;
use super::error::CostError;
use super::instant::hash;
use super::kv::{BLOCK, Event, encode};
use crate::load::Random;
use crate::stack::{Balancing, until};

/// Sequences that decode at the same time.
const SEQUENCES: usize = 256;
/// Time to take everything in.
const LIMIT: Duration = Duration::from_secs(120);

/// One kind of events through the control service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Ingest {
    /// "prefill": many blocks an event; "decode": one block an event; "evict": one removed block an event.
    pub kind: &'static str,
    /// Filters that were told of it meanwhile.
    pub filters: usize,
    /// Events.
    pub events: usize,
    /// Blocks stored or removed.
    pub blocks: usize,
    /// From the first event until all were counted.
    pub seconds: f64,
    /// Processor seconds of the control service.
    pub cpu_s: f64,
    /// Events for each processor second.
    pub events_per_core_s: f64,
    /// Blocks for each processor second.
    pub blocks_per_core_s: f64,
}

/// The index after everything was stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Index {
    /// Chunks.
    pub chunks: f64,
    /// Bytes for each chunk in a filter, by its own figures.
    pub filter_bytes_per_chunk: f64,
    /// Bytes of resident memory that the control service gained for each chunk.
    pub control_bytes_per_chunk: f64,
    /// The same for each block.
    pub control_bytes_per_block: f64,
    /// Bytes of text that the stored blocks hold, for each byte of the index.
    pub text_bytes_per_index_byte: f64,
}

/// Batches of events of one kind.
struct Batches {
    kind: &'static str,
    batches: Vec<Bytes>,
    events: usize,
    blocks: usize,
}

/// Measures all kinds, with and without filters that are told. `batches`: of 32 blocks, and as much of the others.
///
/// # Errors
/// A process that fails, or events that were lost or left out.
pub(super) async fn measure(
    bed: &Bed,
    batches: usize,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Ingest>, Index), CostError> {
    let (mut all, mut index) = (Vec::new(), Index::default());
    let work = work(&bed.corpus, batches);
    for arm in [Balancing::RoundRobin, Balancing::Kinference] {
        let mut rig = bed.rig_with_control(arm, 1).await?;
        let empty = rig.stack.memory().control;
        for batches in &work {
            let filters = if arm == Balancing::Kinference { "with filters" } else { "without filters" };
            say(&format!("{} {} events through the control service, {filters}", batches.events, batches.kind));
            all.push(take_in(&rig, batches).await?);
            if arm == Balancing::Kinference && batches.kind == "decode" {
                index = weigh(&rig, empty, &work).await?;
            }
        }
        rig.check(Balancing::Kinference)?;
    }
    Ok((all, index))
}

fn work(corpus: &Corpus, count: usize) -> [Batches; 3] {
    const BLOCKS: usize = 32;
    let tokens = |seed: u64, blocks: usize| {
        let mut tokens = corpus.piece(seed, blocks * BLOCK * 9).tokens;
        tokens.truncate(blocks * BLOCK);
        tokens
    };
    let chain = |number: u64, blocks: usize| (0..blocks).map(|block| hash(1, 0, number, block)).collect::<Vec<_>>();
    let stored = |number: u64| {
        let (hashes, tokens) = (chain(number, BLOCKS), tokens(number, BLOCKS));
        encode(&[Event::Stored { hashes: &hashes, parent: None, tokens: &tokens }])
    };
    let prefill: Vec<_> = (0..count as u64).map(stored).collect();

    // Sequences that grow a block at a time, sixteen of them in each step.
    let grown = count / 8;
    let sequences: Vec<_> =
        (0..SEQUENCES as u64).map(|number| (chain(1 << 20 | number, grown), tokens(1 << 20 | number, grown))).collect();
    let step = |block: usize, part: &[(Vec<u64>, Vec<u32>)]| {
        let events: Vec<_> = part
            .iter()
            .map(|(hashes, tokens)| Event::Stored {
                hashes: &hashes[block..=block],
                parent: block.checked_sub(1).map(|before| hashes[before]),
                tokens: &tokens[block * BLOCK..(block + 1) * BLOCK],
            })
            .collect();
        encode(&events)
    };
    let decode: Vec<_> = (0..grown).flat_map(|block| sequences.chunks(16).map(move |part| step(block, part))).collect();

    // Leaves first, in another order than they came.
    let mut numbers: Vec<u64> = (0..count as u64).collect();
    Random::new(1, 5).shuffle(&mut numbers);
    let evict: Vec<_> = numbers
        .into_iter()
        .map(|number| encode(&chain(number, BLOCKS).into_iter().rev().map(Event::Removed).collect::<Vec<_>>()))
        .collect();
    [
        Batches { kind: "prefill", batches: prefill, events: count, blocks: count * BLOCKS },
        Batches { kind: "decode", batches: decode, events: grown * SEQUENCES, blocks: grown * SEQUENCES },
        Batches { kind: "evict", batches: evict, events: count * BLOCKS, blocks: count * BLOCKS },
    ]
}

async fn take_in(rig: &Rig, work: &Batches) -> Result<Ingest, CostError> {
    let name = counter("batch");
    let page = async || rig.stack.control_admin().get("/metrics").await.map(|page| page.text());
    let counted = async || page().await.map(|page| metric(&page, &name).unwrap_or_default());
    let publisher = rig.workers.events.first().ok_or_else(|| CostError::Unexpected("there is no worker".into()))?;
    let before = counted().await?;
    let wanted = before + work.batches.len() as f64;
    let (start, cpu) = (Instant::now(), rig.stack.cpu().control);
    work.batches.iter().for_each(|batch| publisher.publish(batch.clone()));
    until("all batches taken in", LIMIT, async || match counted().await {
        Ok(count) if count >= wanted => Ok(()),
        Ok(count) => Err(format!("{} of {}", count - before, work.batches.len())),
        Err(error) => Err(error.to_string()),
    })
    .await?;
    let seconds = start.elapsed().as_secs_f64();
    // The last change is told to filters within the next ticks.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let cpu_s = rig.stack.cpu().control - cpu;
    sound(&page().await?)?;
    let filters = rig.stack.status().await?["filters"].as_array().map_or(0, Vec::len);
    let per_core_s = |count: usize| count as f64 / cpu_s.max(0.01);
    let (events_per_core_s, blocks_per_core_s) = (per_core_s(work.events), per_core_s(work.blocks));
    let Batches { kind, events, blocks, .. } = *work;
    Ok(Ingest { kind, filters, events, blocks, seconds, cpu_s, events_per_core_s, blocks_per_core_s })
}

/// A line of the control service's metrics.
fn counter(kind: &str) -> String {
    format!("kinference_kv_events_total{{worker_set=\"default/simulated\",kind=\"{kind}\"}}")
}

/// Fails when the control service lost events or left some out: it would have had less to do.
fn sound(page: &str) -> Result<(), CostError> {
    for kind in ["gap", "restart", "malformed", "unknown_kind", "opaque", "masked", "block_size"] {
        if let Some(count) = metric(page, &counter(kind)).filter(|count| *count > 0.0) {
            return Err(CostError::Unexpected(format!("the control service counts {count} events as {kind}")));
        }
    }
    Ok(())
}

async fn weigh(rig: &Rig, empty: u64, work: &[Batches]) -> Result<Index, CostError> {
    let index = until("filters that hold the whole index", Duration::from_secs(10), async || {
        let status = rig.stack.status().await.map_err(|error| error.to_string())?;
        let chunks = status["backends"]["default/main"]["prefixIndex"]["chunks"].as_f64().unwrap_or_default();
        let filters = status["filters"].as_array().cloned().unwrap_or_default();
        let held = filters.iter().map(|filter| (filter["indexChunks"].as_f64(), filter["indexBytes"].as_f64()));
        let held: Vec<_> = held.filter_map(|(chunks, bytes)| Some((chunks?, bytes?))).collect();
        match held.first() {
            Some((_, bytes)) if held.iter().all(|(held, _)| *held == chunks) => Ok((chunks, *bytes)),
            _ => Err(format!("{chunks} chunks; filters have {held:?}")),
        }
    });
    let (chunks, bytes) = index.await?;
    let status = rig.stack.status().await?;
    let per_token = status["workerSets"]["default/simulated"]["bytesPerToken"].as_f64().unwrap_or_default();
    let blocks: usize = work.iter().filter(|work| work.kind != "evict").map(|work| work.blocks).sum();
    let gained = rig.stack.memory().control.saturating_sub(empty);
    Ok(Index {
        chunks,
        filter_bytes_per_chunk: bytes / chunks.max(1.0),
        control_bytes_per_chunk: gained as f64 / chunks.max(1.0),
        control_bytes_per_block: gained as f64 / (blocks as f64).max(1.0),
        text_bytes_per_index_byte: (blocks * BLOCK) as f64 * per_token / bytes.max(1.0),
    })
}
