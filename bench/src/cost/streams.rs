//! What a chunk of a stream costs: many long streams at a pace at which each chunk comes by itself.

use std::time::Duration;

use serde::Serialize;

use super::bed::{Bed, WORKERS};
use super::drive::{Load, drive, median};
use super::error::CostError;
use super::gateway::spent;
use crate::stack::Balancing;

/// Chunks of a stream, as with peers.
const CHUNKS: u32 = 200;
/// Streams at any time, and the time between their chunks: 8,000 chunks a second.
const STREAMS: usize = 40;
const PACE_MS: u64 = 5;

/// Processor time for each chunk of a stream, in microseconds; medians over runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Streams {
    /// Envoy alone.
    pub envoy_bare_us: f64,
    /// Envoy with our filter, for requests that do not ask for usage.
    pub envoy_us: f64,
    /// The same for requests that ask for usage.
    pub envoy_usage_us: f64,
    /// The control service.
    pub control_us: f64,
    /// Chunks in all runs.
    pub chunks: u64,
    /// Pieces in which clients got them, per chunk: 1 when each came by itself.
    pub pieces_per_chunk: f64,
}

/// Measures both arms, run by run.
///
/// # Errors
/// A process or a request that fails.
pub(super) async fn measure(
    bed: &Bed,
    runs: usize,
    time: Duration,
    say: &mut dyn FnMut(&str),
) -> Result<Streams, CostError> {
    let mut all = Vec::new();
    for run in 0..runs {
        let mut streams = Streams::default();
        for (arm, usages) in [(Balancing::RoundRobin, &[false][..]), (Balancing::Kinference, &[false, true])] {
            let name = if arm == Balancing::Kinference { "with the filter" } else { "bare Envoy" };
            say(&format!("streams of {CHUNKS} chunks, run {} of {runs}: {name}", run + 1));
            measure_arm(bed, arm, usages, time, &mut streams).await?;
        }
        all.push(streams);
    }
    let of = |field: fn(&Streams) -> f64| median(all.iter().map(field));
    Ok(Streams {
        envoy_bare_us: of(|s| s.envoy_bare_us),
        envoy_us: of(|s| s.envoy_us),
        envoy_usage_us: of(|s| s.envoy_usage_us),
        control_us: of(|s| s.control_us),
        chunks: all.iter().map(|s| s.chunks).sum(),
        pieces_per_chunk: of(|s| s.pieces_per_chunk),
    })
}

async fn measure_arm(
    bed: &Bed,
    arm: Balancing,
    usages: &[bool],
    time: Duration,
    streams: &mut Streams,
) -> Result<(), CostError> {
    let mut rig = bed.rig(arm, WORKERS).await?;
    let client = rig.stack.client();
    let load =
        Load { bytes: 4096, concurrency: STREAMS, time, chunks: CHUNKS, pace_ms: PACE_MS, usage: false, events: true };
    // Connections, and the filter's compilation by V8.
    drive(&client, &bed.corpus, Load { chunks: 8, time: time / 5, ..load }).await?;
    for usage in usages {
        let (driven, cpu) = spent(&rig.stack, &client, bed, Load { usage: *usage, ..load }).await?;
        let chunks = driven.first_ms.len() as u64 * u64::from(CHUNKS);
        let each = |seconds: f64| seconds * 1e6 / chunks.max(1) as f64;
        match (arm, usage) {
            (Balancing::Kinference, false) => {
                (streams.envoy_us, streams.control_us) = (each(cpu.envoy), each(cpu.control))
            }
            (Balancing::Kinference, true) => streams.envoy_usage_us = each(cpu.envoy),
            _ => streams.envoy_bare_us = each(cpu.envoy),
        }
        streams.chunks += chunks;
        streams.pieces_per_chunk = driven.pieces as f64 / chunks.max(1) as f64;
    }
    rig.check(arm)
}
