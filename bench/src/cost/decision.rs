//! Decision time: from the complete body to the choice, in V8 inside Envoy, by the filter's own clock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::bed::{Bed, SIZES, WORKERS};
use super::drive::{Load, drive};
use super::error::CostError;
use crate::stack::{Balancing, Stack, until};

/// The filter's histogram.
const HISTOGRAM: &str = "kinference_filter_decision_us";
/// Decisions so far; counted at once, while Envoy merges histograms every five seconds.
const COUNTER: &str = "kinference_filter_decisions";
/// Time for Envoy to merge them.
const MERGED: Duration = Duration::from_secs(20);

/// Decision times for prompts of one size, in microseconds. Envoy keeps two digits of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Decision {
    /// Prompt size in KB.
    pub kb: usize,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Decisions.
    pub count: u64,
}

/// Counts by the bucket's lower bound and width, in the order of their bounds.
type Buckets = BTreeMap<(u64, u64), u64>;

/// Measures every size, one request at a time.
///
/// # Errors
/// A process or a request that fails, or a histogram that does not come.
pub(super) async fn measure(bed: &Bed, time: Duration, say: &mut dyn FnMut(&str)) -> Result<Vec<Decision>, CostError> {
    let mut rig = bed.rig(Balancing::Kinference, WORKERS).await?;
    let client = rig.stack.client();
    let mut decisions = Vec::new();
    for kb in SIZES {
        say(&format!("decision time, {kb} KB"));
        let load = Load { bytes: kb * 1024, concurrency: 1, time, chunks: 8, pace_ms: 0, usage: false, events: true };
        drive(&client, &bed.corpus, Load { time: time / 4, ..load }).await?;
        let before = merged(&rig.stack).await?;
        drive(&client, &bed.corpus, load).await?;
        let after = merged(&rig.stack).await?;
        decisions.push(decision(kb, &before, &after));
    }
    rig.check(Balancing::Kinference)?;
    Ok(decisions)
}

/// The histogram with everything decided so far.
async fn merged(stack: &Stack) -> Result<Buckets, CostError> {
    let decided = stack.envoy_stats(COUNTER).await?;
    let decided: u64 = decided.iter().filter(|(name, _)| name.ends_with(COUNTER)).map(|(_, count)| *count).sum();
    let path = format!("/stats?format=json&histogram_buckets=detailed&filter={HISTOGRAM}");
    let found = until("Envoy's histogram of decision times", MERGED, async || {
        let page = stack.envoy_admin().get(&path).await.map_err(|error| error.to_string())?.json();
        let mut buckets = Buckets::new();
        totals(&page, &mut buckets);
        let counted: u64 = buckets.values().sum();
        if counted >= decided { Ok(buckets) } else { Err(format!("{counted} of {decided} decisions")) }
    });
    Ok(found.await?)
}

/// Adds up all lists named "totals", wherever they are: the page has one for each histogram that it shows.
fn totals(page: &Value, buckets: &mut Buckets) {
    match page {
        Value::Array(list) => list.iter().for_each(|part| totals(part, buckets)),
        Value::Object(fields) => {
            for (name, part) in fields {
                match part {
                    Value::Array(list) if name == "totals" => list.iter().for_each(|bucket| {
                        // Bounds are small numbers; as tenths they are exact.
                        let field = |name: &str| (bucket[name].as_f64().unwrap_or_default() * 10.0).round() as u64;
                        let count = bucket["count"].as_u64().unwrap_or_default();
                        *buckets.entry((field("lower_bound"), field("width"))).or_default() += count;
                    }),
                    part => totals(part, buckets),
                }
            }
        }
        _ => {}
    }
}

fn decision(kb: usize, before: &Buckets, after: &Buckets) -> Decision {
    let new = |bucket: &(u64, u64), count: u64| count.saturating_sub(before.get(bucket).copied().unwrap_or_default());
    let new: Vec<((u64, u64), u64)> = after.iter().map(|(bucket, count)| (*bucket, new(bucket, *count))).collect();
    let count: u64 = new.iter().map(|(_, count)| count).sum();
    let quantile = |part: f64| {
        let rank = ((part * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for ((lower, width), count) in &new {
            if seen + count >= rank {
                let within = (rank - seen) as f64 / *count as f64;
                return (*lower as f64 + *width as f64 * within) / 10.0;
            }
            seen += count;
        }
        0.0
    };
    Decision { kb, p50_us: quantile(0.50), p99_us: quantile(0.99), count }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantiles_are_of_what_is_new() {
        let page = |counts: [u64; 3]| {
            let buckets = [(10, 1), (12, 1), (100, 10)].iter().zip(counts);
            let buckets: Vec<_> = buckets
                .map(|((lower, width), count)| json!({"lower_bound": lower, "width": width, "count": count}))
                .collect();
            let mut found = Buckets::new();
            totals(
                &json!({"stats": [{"histograms": {"details": [{"name": "x", "totals": buckets, "intervals": [1]}]}}]}),
                &mut found,
            );
            found
        };
        let decision = decision(4, &page([500, 0, 7]), &page([500, 98, 9]));
        assert_eq!((decision.kb, decision.count), (4, 100));
        assert!((12.0..=13.0).contains(&decision.p50_us) && (100.0..=110.0).contains(&decision.p99_us), "{decision:?}");
    }
}
