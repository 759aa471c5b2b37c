//! What processes use while nothing is asked.

use std::time::Duration;

use serde::Serialize;

use super::error::CostError;
use crate::sim::Config;
use crate::stack::{Balancing, Stack, StackOptions};

/// Until what happens only at the start is over.
const CALM: Duration = Duration::from_secs(3);

/// Processor time while idle, in percent of one core, and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Idle {
    /// Workers.
    pub workers: usize,
    /// Whether Envoy had our filter.
    pub filter: bool,
    /// Envoy.
    pub envoy_percent: f64,
    /// The control service.
    pub control_percent: f64,
    /// Envoy's memory in MB of 1,000,000 bytes.
    pub envoy_mb: f64,
    /// The control service's.
    pub control_mb: f64,
}

/// Measures simulated fleets of several sizes, and Envoy alone.
///
/// # Errors
/// A process that fails.
pub(super) async fn measure(time: Duration, say: &mut dyn FnMut(&str)) -> Result<Vec<Idle>, CostError> {
    let mut all = Vec::new();
    for (balancing, workers) in [(Balancing::RoundRobin, 3), (Balancing::Kinference, 3), (Balancing::Kinference, 64)] {
        let filter = balancing == Balancing::Kinference;
        say(&format!("idle, {workers} workers, {}", if filter { "with the filter" } else { "bare Envoy" }));
        let sim = Config { workers, num_blocks: 1000, ..Config::ephemeral() };
        let mut stack = Stack::start(StackOptions { sim, balancing, ..StackOptions::default() }).await?;
        if !filter {
            stack.kill_control();
        }
        tokio::time::sleep(CALM).await;
        let before = stack.cpu();
        tokio::time::sleep(time).await;
        let (after, memory) = (stack.cpu(), stack.memory());
        if let Some(error) = stack.ended().filter(|_| filter) {
            return Err(error.into());
        }
        let percent = |seconds: f64| seconds / time.as_secs_f64() * 100.0;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        all.push(Idle {
            workers,
            filter,
            envoy_percent: percent(after.envoy - before.envoy),
            control_percent: percent(after.control - before.control),
            envoy_mb: mb(memory.envoy),
            control_mb: mb(memory.control),
        });
    }
    Ok(all)
}
