//! What the gateway costs: time and processor time that the filter adds to Envoy, what the control service needs for events,
//! and memory. `cargo xtask bench` runs it.

mod bed;
mod corpus;
mod decision;
mod drive;
mod error;
mod gateway;
mod idle;
mod ingest;
mod instant;
mod kv;
mod lag;
mod machine;
mod peers;
mod report;
mod streams;

use std::time::Duration;

pub use decision::Decision;
pub use error::CostError;
pub use gateway::{Figures, Held, Pair, Point, Quantiles};
pub use idle::Idle;
pub use ingest::{Index, Ingest};
pub use lag::Lag;
pub use machine::niceness;
pub use report::{Report, into_results, markdown, tables};
pub use streams::Streams;

use bed::Bed;

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Latency, throughput and processor time of requests, with and without the filter.
    Gateway,
    /// Decision time inside Envoy.
    Decision,
    /// Processor time for each streamed chunk.
    Streams,
    /// Events through the control service, and the index.
    Events,
    /// Time from an event to the filter.
    Lag,
    /// Processor time while nothing is asked.
    Idle,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Only these parts; empty: all.
    pub parts: Vec<Part>,
    /// A small run: figures are rough.
    pub quick: bool,
    /// Runs of the parts that compare with bare Envoy, each with processes of its own.
    pub runs: usize,
}

/// Measures. `say` is told what is being done.
///
/// # Errors
/// A process that does not start or ends by itself, a request that fails, or events that get lost.
pub async fn measure(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report, CostError> {
    let say: &mut dyn FnMut(&str) = &mut say;
    let watch = machine::Watch::start();
    say("making prompts");
    let bed = Bed::new().await?;
    let wanted = |part: Part| plan.parts.is_empty() || plan.parts.contains(&part);
    let scaled = |full_ms: u64, quick_ms: u64| Duration::from_millis(if plan.quick { quick_ms } else { full_ms });
    let count = |full: usize, quick: usize| if plan.quick { quick } else { full };
    let mut report = Report::new(plan.runs, plan.quick);
    if wanted(Part::Decision) {
        report.decisions = decision::measure(&bed, scaled(2500, 700), say).await?;
    }
    if wanted(Part::Gateway) {
        let extent = gateway::Extent { runs: plan.runs, time: scaled(2000, 700) };
        let (points, held) = gateway::measure(&bed, extent, say).await?;
        (report.gateway, report.memory) = (points, Some(held));
    }
    if wanted(Part::Streams) {
        report.streams = Some(streams::measure(&bed, plan.runs, scaled(2000, 1000), say).await?);
    }
    if wanted(Part::Events) {
        let (events, index) = ingest::measure(&bed, count(6000, 600), say).await?;
        (report.events, report.index) = (events, Some(index));
    }
    if wanted(Part::Lag) {
        report.lag = Some(lag::measure(&bed, count(60, 15), say).await?);
    }
    if wanted(Part::Idle) {
        report.idle = idle::measure(scaled(8000, 3000), say).await?;
    }
    report.others_cores = watch.others();
    Ok(report)
}
