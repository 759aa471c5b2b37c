//! How long it takes from an event to the first decision that knows of it.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::bed::{Bed, Rig};
use super::corpus::{Corpus, Piece};
use super::drive::ask;
use super::error::CostError;
use super::instant::{Order, hash};
use super::kv::{BLOCK, Event, encode};
use crate::load::{Client, Percentiles};
use crate::stack::Balancing;

/// Prompts of one batch of events. Each is asked for once: the filter believes in what it has sent itself, so that the
/// second time would say nothing about events.
const PROMPTS: u64 = 120;
/// Length of a prompt: some chunks.
const BYTES: usize = 1024;
/// Time between two requests.
const EVERY: Duration = Duration::from_millis(1);

/// From publishing an event to the answer of the first request that was decided by it, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Lag {
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// Trials.
    pub trials: usize,
}

/// Measures with one worker, so that what is known of it decides nothing else.
///
/// # Errors
/// A process or a request that fails, or events that never arrive.
pub(super) async fn measure(bed: &Bed, trials: usize, say: &mut dyn FnMut(&str)) -> Result<Lag, CostError> {
    say(&format!("from event to filter, {trials} times"));
    let mut rig = bed.rig(Balancing::Kinference, 1).await?;
    let mut times = Vec::new();
    for trial in 0..trials as u64 {
        // New connections: Envoy gives them to its threads in turn, and each thread has its own filter.
        let client = rig.stack.client();
        times.push(once(&rig, &client, &bed.corpus, trial).await?);
        // Trials begin anywhere between two ticks of the control service.
        tokio::time::sleep(Duration::from_millis(5 + trial * 7 % 20)).await;
    }
    rig.check(Balancing::Kinference)?;
    let Percentiles { p50, p95, .. } = Percentiles::of(times);
    Ok(Lag { p50_ms: p50, p95_ms: p95, trials })
}

async fn once(rig: &Rig, client: &Client, corpus: &Corpus, trial: u64) -> Result<f64, CostError> {
    let prompts: Vec<Piece> = (0..PROMPTS).map(|at| corpus.piece(1 << 50 | trial << 20 | at, BYTES)).collect();
    let chains: Vec<(Vec<u64>, Vec<u32>)> = prompts
        .iter()
        .zip(0..)
        .map(|(prompt, at)| {
            let mut tokens = corpus.message(prompt);
            let blocks = tokens.len() / BLOCK;
            tokens.truncate(blocks * BLOCK);
            ((0..blocks).map(|block| hash(BYTES, 1, trial << 8 | at, block)).collect(), tokens)
        })
        .collect();
    let events: Vec<_> = chains.iter().map(|(hashes, tokens)| Event::Stored { hashes, parent: None, tokens }).collect();
    let batch = encode(&events);
    let order = Order { prompt: None, chunks: 1, pace_ms: 0, usage: false };
    // The connection is there before the clock runs.
    let other = corpus.piece(1 << 51 | trial, BYTES);
    known(client, corpus, &other, &order).await?;
    let publisher = rig.workers.events.first().ok_or_else(|| CostError::Unexpected("there is no worker".into()))?;
    let start = Instant::now();
    publisher.publish(batch);
    for prompt in &prompts {
        if known(client, corpus, prompt, &order).await? {
            return Ok(start.elapsed().as_secs_f64() * 1000.0);
        }
        tokio::time::sleep(EVERY).await;
    }
    let ms = start.elapsed().as_millis();
    Err(CostError::Unexpected(format!("an event was not known to the filter after {ms} ms")))
}

/// Whether a decision knows that some of the prompt is cached.
async fn known(client: &Client, corpus: &Corpus, prompt: &Piece, order: &Order) -> Result<bool, CostError> {
    let answered = ask(client, corpus.body(&prompt.text, false), order).await?;
    let predicted = answered.predicted.ok_or_else(|| CostError::Unexpected("the gateway predicts nothing".into()))?;
    Ok(predicted > 0)
}
