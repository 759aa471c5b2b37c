//! The demo's figures, as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::points::{Point, TIME_SCALE};
use crate::load::{Percentiles, Summary, Table, figure};
use crate::stack::{Balancing, Cpu};

/// Above this many busy cores the machine, not the engines, may set the times (on the two cores that this is made for).
const BUSY_CORES: f64 = 1.5;

/// One workload through one arm.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Arm {
    /// What clients saw.
    #[serde(flatten)]
    pub summary: Summary,
    /// Processor seconds used meanwhile.
    pub cpu: Cpu,
    /// Processor seconds of the load generator.
    pub load_cpu: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// All figures: workload, arm, figures.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Report {
    workloads: BTreeMap<&'static str, BTreeMap<&'static str, Arm>>,
    #[serde(skip)]
    order: Vec<&'static str>,
}

impl Arm {
    /// Busy cores on average.
    #[must_use]
    pub fn cores(&self) -> f64 {
        (self.cpu.envoy + self.cpu.control + self.cpu.sim + self.load_cpu) / self.seconds.max(1e-9)
    }
}

impl Report {
    pub(super) fn add(&mut self, point: &Point, balancing: Balancing, arm: Arm) {
        let name = key(point.name());
        if !self.order.contains(&name) {
            self.order.push(name);
        }
        self.workloads.entry(name).or_default().insert(balancing.name(), arm);
    }

    /// One arm's figures.
    #[must_use]
    pub fn arm(&self, workload: &str, balancing: Balancing) -> Option<&Arm> {
        self.workloads.get(workload)?.get(balancing.name())
    }

    /// The workloads, in the order in which they ran.
    pub fn workloads(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.order.iter().copied()
    }
}

/// The name of a workload in JSON.
fn key(name: &'static str) -> &'static str {
    match name {
        "shared prefix" => "shared_prefix",
        name => name,
    }
}

/// Everything, for people.
#[must_use]
pub fn print(report: &Report) -> String {
    let mut table = Table::new([
        "workload",
        "arm",
        "TTFT p50 ms",
        "p95",
        "p99",
        "e2e p50 ms",
        "p95",
        "p99",
        "goodput/min",
        "cached",
        "requests",
        "errors",
    ]);
    let mut notes = String::new();
    for workload in report.workloads() {
        let arms =
            [Balancing::Random, Balancing::Kinference].map(|balancing| (balancing, report.arm(workload, balancing)));
        for (balancing, arm) in arms {
            if let Some(arm) = arm {
                table.row(row(workload, balancing, &arm.summary));
            }
        }
        if let [(_, Some(random)), (_, Some(ours))] = arms {
            table.row(ratios(&random.summary, &ours.summary));
        }
        table.gap();
        for (balancing, arm) in arms {
            let Some(arm) = arm else { continue };
            for (kind, count) in &arm.summary.errors_by_kind {
                notes += &format!("{workload}, {}: {count} requests failed: {kind}\n", balancing.name());
            }
            if arm.cores() > BUSY_CORES {
                notes += &format!(
                    "{workload}, {}: {:.1} cores were busy; on a machine of two the times are partly its own\n",
                    balancing.name(),
                    arm.cores()
                );
            }
        }
        if let Some(prediction) = arms[1].1.and_then(|arm| arm.summary.prediction) {
            notes +=
                &format!("{workload}: cached tokens predicted by the filter against the engine's own: {prediction}\n");
        }
    }
    let cores = report.workloads.values().flat_map(BTreeMap::values).map(Arm::cores).fold(0.0, f64::max);
    let limit = report.workloads.values().flat_map(BTreeMap::values).map(|arm| arm.summary.ttft_limit_ms).next();
    format!(
        "{table}{notes}Times are as measured; engines run at {} times the calibrated speed. Goodput counts requests whose first token came \
         within {} ms. At most {cores:.1} cores were busy.\n",
        1.0 / TIME_SCALE,
        limit.unwrap_or_default(),
    )
}

fn row(workload: &str, balancing: Balancing, summary: &Summary) -> Vec<String> {
    let mut cells = vec![workload.to_owned(), balancing.name().to_owned()];
    for Percentiles { p50, p95, p99 } in [summary.ttft_ms, summary.e2e_ms] {
        cells.extend([p50, p95, p99].map(figure));
    }
    cells.push(figure(summary.goodput_per_min));
    cells.push(summary.cached_ratio.map_or_else(|| "?".into(), |ratio| format!("{:.1} %", ratio * 100.0)));
    cells.extend([summary.requests.to_string(), summary.errors.to_string()]);
    cells
}

/// Times: how much lower ours are. Goodput: how many times as much.
fn ratios(random: &Summary, ours: &Summary) -> Vec<String> {
    let change = |random: f64, ours: f64| match random {
        0.0 => "?".to_owned(),
        random => format!("{:+.1} %", (ours / random - 1.0) * 100.0),
    };
    let mut cells = vec![String::new(), "change".to_owned()];
    for (random, ours) in [(random.ttft_ms, ours.ttft_ms), (random.e2e_ms, ours.e2e_ms)] {
        cells.extend([change(random.p50, ours.p50), change(random.p95, ours.p95), change(random.p99, ours.p99)]);
    }
    cells.push(match random.goodput_per_min {
        0.0 => "none before".to_owned(),
        random => format!("x {:.1}", ours.goodput_per_min / random),
    });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::points;

    #[test]
    fn the_table_has_ratios_and_json_the_promised_form() {
        let arm = |ttft: f64, goodput: f64| Arm {
            summary: Summary {
                requests: 600,
                ttft_ms: Percentiles { p50: ttft, p95: 2.0 * ttft, p99: 3.0 * ttft },
                e2e_ms: Percentiles { p50: 1000.0, p95: 1000.0, p99: 1000.0 },
                goodput_per_min: goodput,
                cached_ratio: Some(0.5),
                ..Summary::default()
            },
            ..Arm::default()
        };
        let point = points(3, 1)[1];
        let mut report = Report::default();
        report.add(&point, Balancing::Random, arm(200.0, 100.0));
        report.add(&point, Balancing::Kinference, arm(20.0, 550.0));
        let text = print(&report);
        assert!(text.contains("-90.0 %") && text.contains("x 5.5"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        let ours = &json["shared_prefix"]["kinference"];
        assert_eq!(
            (&ours["ttft_ms"]["p50"], &ours["requests"], &ours["errors"]),
            (&20.0.into(), &600.into(), &0.into())
        );
        for field in ["e2e_ms", "goodput_per_min", "cached_ratio", "prediction"] {
            assert!(ours.get(field).is_some(), "{field}");
        }
    }
}
