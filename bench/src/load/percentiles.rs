//! Percentiles of measured values.

use serde::{Deserialize, Serialize};

/// Median, 95th and 99th percentile (nearest rank). All 0 when there was nothing to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// Of values in any order.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |part: f64| {
            let at = (part * values.len() as f64).ceil() as usize;
            values.get(at.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: rank(0.50), p95: rank(0.95), p99: rank(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_nearest() {
        let of = |count: u32| Percentiles::of((1..=count).rev().map(f64::from).collect());
        assert_eq!(of(100), Percentiles { p50: 50.0, p95: 95.0, p99: 99.0 });
        assert_eq!(of(3), Percentiles { p50: 2.0, p95: 3.0, p99: 3.0 });
        assert_eq!(of(1), Percentiles { p50: 1.0, p95: 1.0, p99: 1.0 });
        assert_eq!(of(0), Percentiles::default());
    }
}
