//! What the filter adds to requests: the same load through Envoy with and without it.

use std::time::Duration;

use serde::Serialize;

use super::bed::{Bed, SIZES, WORKERS};
use super::drive::{Driven, Load, drive, median};
use super::error::CostError;
use crate::load::{Client, Percentiles};
use crate::stack::{Balancing, Cpu, Stack};

/// Requests at any time, as with peers.
pub(super) const CONCURRENCIES: [usize; 2] = [1, 20];
/// The arms, the baseline first.
const ARMS: [Balancing; 2] = [Balancing::RoundRobin, Balancing::Kinference];
/// Chunks of an answer.
const CHUNKS: u32 = 8;

/// One load through one arm; medians over runs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// To the first bytes of the answer, in milliseconds.
    pub first_ms: Quantiles,
    /// To the end of the answer, in milliseconds.
    pub whole_ms: Quantiles,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Processor seconds of Envoy, with what runs inside, for 1,000 requests.
    pub envoy_cpu_s: f64,
    /// The same of the control service.
    pub control_cpu_s: f64,
    /// Requests in all runs.
    pub requests: usize,
}

/// Median and 95th percentile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
}

/// A load point through both arms.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Point {
    /// Prompt size in KB.
    pub kb: usize,
    /// Requests at any time.
    pub concurrency: usize,
    /// Workers hold the shared prefixes and publish no more.
    pub quiet: Pair,
    /// Workers publish what each prompt stores and evicts. Nobody listens when Envoy is alone.
    pub events: Pair,
}

/// Both arms.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pair {
    /// Envoy alone.
    pub bare: Figures,
    /// Envoy with our filter.
    pub kinference: Figures,
    /// What the filter adds to the time to the first bytes, in milliseconds: medians of the runs' differences.
    pub added_ms: Quantiles,
}

/// All load points of one run through one arm: without events, and with them.
type Measured = [Vec<Figures>; 2];

/// Memory after the load, in MB of 1,000,000 bytes; medians over runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Held {
    /// Envoy alone.
    pub envoy_bare_mb: f64,
    /// Envoy with our filter.
    pub envoy_mb: f64,
    /// The control service.
    pub control_mb: f64,
    /// Chunks in the index at that time.
    pub index_chunks: f64,
}

/// How much of it is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Runs; each with processes of its own.
    pub(super) runs: usize,
    /// Time for each load point.
    pub(super) time: Duration,
}

/// Measures every load point in every arm, run by run.
///
/// # Errors
/// A process or a request that fails.
pub(super) async fn measure(
    bed: &Bed,
    extent: Extent,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Point>, Held), CostError> {
    let mut runs: Vec<[Measured; 2]> = Vec::new();
    let mut held = Vec::new();
    for run in 0..extent.runs {
        let mut arms: [Measured; 2] = Default::default();
        let mut memory = Held::default();
        // Every other run the other way round, so that a machine that warms up or is slowed down favours none.
        let order = if run % 2 == 0 { [0, 1] } else { [1, 0] };
        for arm in order {
            say(&format!("gateway, run {} of {}: {}", run + 1, extent.runs, name(ARMS[arm])));
            arms[arm] = measure_arm(bed, ARMS[arm], extent.time, &mut memory).await?;
        }
        runs.push(arms);
        held.push(memory);
    }
    let points = SIZES.iter().flat_map(|kb| CONCURRENCIES.map(|concurrency| (*kb, concurrency)));
    let points = points.enumerate().map(|(at, (kb, concurrency))| point(kb, concurrency, &runs, at)).collect();
    let of = |field: fn(&Held) -> f64| median(held.iter().map(field));
    let held = Held {
        envoy_bare_mb: of(|held| held.envoy_bare_mb),
        envoy_mb: of(|held| held.envoy_mb),
        control_mb: of(|held| held.control_mb),
        index_chunks: of(|held| held.index_chunks),
    };
    Ok((points, held))
}

fn name(balancing: Balancing) -> &'static str {
    match balancing {
        Balancing::Kinference => "with the filter",
        Balancing::Random | Balancing::RoundRobin => "bare Envoy",
    }
}

async fn measure_arm(bed: &Bed, arm: Balancing, time: Duration, held: &mut Held) -> Result<Measured, CostError> {
    let mut rig = bed.rig(arm, WORKERS).await?;
    let client = rig.stack.client();
    let mut measured = Measured::default();
    for kb in SIZES {
        for concurrency in CONCURRENCIES {
            let load =
                Load { bytes: kb * 1024, concurrency, time, chunks: CHUNKS, pace_ms: 0, usage: false, events: true };
            // Connections, the shared prefixes, and the filter's compilation by V8.
            drive(&client, &bed.corpus, Load { time: time / 5, ..load }).await?;
            calm(&rig.stack).await;
            for (place, events) in measured.iter_mut().zip([false, true]) {
                let (driven, cpu) = spent(&rig.stack, &client, bed, Load { events, ..load }).await?;
                place.push(figures(&driven, cpu));
            }
        }
    }
    rig.check(arm)?;
    let memory = rig.stack.memory();
    let mb = |bytes: u64| bytes as f64 / 1e6;
    match arm {
        Balancing::Kinference => {
            (held.envoy_mb, held.control_mb) = (mb(memory.envoy), mb(memory.control));
            let status = rig.stack.status().await?;
            held.index_chunks =
                status["backends"]["default/main"]["prefixIndex"]["chunks"].as_f64().unwrap_or_default();
        }
        Balancing::Random | Balancing::RoundRobin => held.envoy_bare_mb = mb(memory.envoy),
    }
    Ok(measured)
}

/// Sends a load, and gives the processor time that it took.
///
/// # Errors
/// A request that fails.
pub(super) async fn spent(stack: &Stack, client: &Client, bed: &Bed, load: Load) -> Result<(Driven, Cpu), CostError> {
    let before = stack.cpu();
    let driven = drive(client, &bed.corpus, load).await?;
    let after = calm(stack).await;
    let cpu = Cpu { envoy: after.envoy - before.envoy, control: after.control - before.control, sim: 0.0 };
    Ok((driven, cpu))
}

/// Waits until the control service has taken in what was published, and gives the processor time until then.
async fn calm(stack: &Stack) -> Cpu {
    const LOOKS: usize = 100;
    const EVERY: Duration = Duration::from_millis(100);
    let mut last = stack.cpu();
    for _ in 0..LOOKS {
        tokio::time::sleep(EVERY).await;
        let now = stack.cpu();
        // Idle, it takes a hundredth of a second now and then, which is also what the system counts in.
        if now.control - last.control < 0.015 {
            return now;
        }
        last = now;
    }
    last
}

fn figures(driven: &Driven, cpu: Cpu) -> Figures {
    let quantiles = |values: &[f64]| {
        let Percentiles { p50, p95, .. } = Percentiles::of(values.to_vec());
        Quantiles { p50, p95 }
    };
    let requests = driven.first_ms.len();
    let per_thousand = |seconds: f64| seconds * 1000.0 / requests.max(1) as f64;
    Figures {
        first_ms: quantiles(&driven.first_ms),
        whole_ms: quantiles(&driven.whole_ms),
        requests_per_s: requests as f64 / driven.seconds,
        envoy_cpu_s: per_thousand(cpu.envoy),
        control_cpu_s: per_thousand(cpu.control),
        requests,
    }
}

fn point(kb: usize, concurrency: usize, runs: &[[Measured; 2]], at: usize) -> Point {
    let of = |events: usize| {
        let figures = |arm: &Measured| arm[events].get(at).cloned();
        pair(&runs.iter().filter_map(|[bare, ours]| Some([figures(bare)?, figures(ours)?])).collect::<Vec<_>>())
    };
    Point { kb, concurrency, quiet: of(0), events: of(1) }
}

fn pair(runs: &[[Figures; 2]]) -> Pair {
    let arm = |arm: usize| {
        let of = |field: fn(&Figures) -> f64| median(runs.iter().map(|run| field(&run[arm])));
        Figures {
            first_ms: Quantiles { p50: of(|f| f.first_ms.p50), p95: of(|f| f.first_ms.p95) },
            whole_ms: Quantiles { p50: of(|f| f.whole_ms.p50), p95: of(|f| f.whole_ms.p95) },
            requests_per_s: of(|f| f.requests_per_s),
            envoy_cpu_s: of(|f| f.envoy_cpu_s),
            control_cpu_s: of(|f| f.control_cpu_s),
            requests: runs.iter().map(|run| run[arm].requests).sum(),
        }
    };
    let added = |field: fn(&Figures) -> f64| median(runs.iter().map(|[bare, ours]| field(ours) - field(bare)));
    let added_ms = Quantiles { p50: added(|f| f.first_ms.p50), p95: added(|f| f.first_ms.p95) };
    Pair { bare: arm(0), kinference: arm(1), added_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_over_runs_and_additions_within_them() {
        let figures = |p50: f64, requests| Figures {
            first_ms: Quantiles { p50, p95: 2.0 * p50 },
            requests,
            ..Figures::default()
        };
        // A slow second run slows both arms: what is added in it is little.
        let runs = [(1.0, 1.2), (5.0, 5.1), (1.1, 1.4)].map(|(bare, ours)| {
            [[vec![figures(bare, 1)], vec![figures(bare, 10)]], [vec![figures(bare, 2)], vec![figures(ours, 20)]]]
        });
        let Point { quiet, events, .. } = point(4, 1, &runs, 0);
        assert_eq!((events.bare.first_ms.p50, events.kinference.first_ms.p50), (1.1, 1.4));
        assert!((events.added_ms.p50 - 0.2).abs() < 1e-9 && (events.added_ms.p95 - 0.4).abs() < 1e-9);
        assert_eq!((events.bare.requests, events.kinference.requests), (30, 60));
        assert_eq!((quiet.added_ms.p50, quiet.bare.requests, quiet.kinference.requests), (0.0, 3, 6));
    }
}
