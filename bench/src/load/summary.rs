//! The figures of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::percentiles::Percentiles;
use super::record::Record;
use super::run::Run;
use super::table::{Table, rows};

/// The figures of a run. Times are in milliseconds, of successful requests only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests of the workload.
    pub requests: usize,
    /// Those that failed.
    pub errors: usize,
    /// Failures by kind.
    pub errors_by_kind: BTreeMap<String, usize>,
    /// From the first request to the end of the last answer, in seconds.
    pub duration_s: f64,
    /// From sending a request to the first content of its answer.
    pub ttft_ms: Percentiles,
    /// Mean time between the tokens of a request, over requests.
    pub itl_ms: Percentiles,
    /// From sending a request to the end of its answer.
    pub e2e_ms: Percentiles,
    /// Successful requests a second.
    pub requests_per_s: f64,
    /// Answer tokens a second.
    pub answer_tokens_per_s: f64,
    /// The limit that goodput is counted under.
    pub ttft_limit_ms: f64,
    /// Successful requests a minute whose time to first token was within the limit.
    pub goodput_per_min: f64,
    /// Prompt tokens by the engines' count.
    pub prompt_tokens: u64,
    /// Of these, tokens found in caches.
    pub cached_tokens: u64,
    /// Their share, when the engines tell.
    pub cached_ratio: Option<f64>,
    /// Requests by destination, when the gateway's debug headers are on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub destinations: BTreeMap<String, usize>,
    /// How well the gateway predicted cached tokens, when its debug headers are on.
    pub prediction: Option<Prediction>,
    /// How late the load generator sent its latest request.
    pub latest_send_ms: f64,
}

/// Predicted cached tokens against the engines' own count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Requests for which both are known.
    pub requests: usize,
    /// Requests predicted exactly.
    pub exact: usize,
    /// Most tokens that were predicted but not cached.
    pub worst_above_tokens: u64,
    /// Most tokens that were cached but not predicted.
    pub worst_below_tokens: u64,
    /// Mean distance.
    pub mean_error_tokens: f64,
}

impl Prediction {
    /// Compares the requests that have both figures; none when there is no such request.
    #[must_use]
    pub fn of(records: &[Record]) -> Option<Self> {
        let mut prediction = Self::default();
        let mut distance = 0;
        for record in records {
            let cached = record.usage.and_then(|usage| usage.cached_tokens());
            let (Some(predicted), Some(cached)) = (record.predicted_cached, cached) else { continue };
            prediction.requests += 1;
            prediction.exact += usize::from(predicted == cached);
            prediction.worst_above_tokens = prediction.worst_above_tokens.max(predicted.saturating_sub(cached));
            prediction.worst_below_tokens = prediction.worst_below_tokens.max(cached.saturating_sub(predicted));
            distance += predicted.abs_diff(cached);
        }
        prediction.mean_error_tokens = distance as f64 / prediction.requests.max(1) as f64;
        (prediction.requests > 0).then_some(prediction)
    }
}

impl Summary {
    /// The figures of a run, with goodput under this time to first token.
    #[must_use]
    pub fn of(run: &Run, ttft_limit: Duration) -> Self {
        let succeeded: Vec<&Record> = run.records.iter().filter(|record| record.failure.is_none()).collect();
        let seconds = run.elapsed.as_secs_f64().max(1e-9);
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let times = |time: fn(&Record) -> Option<Duration>| {
            Percentiles::of(succeeded.iter().filter_map(|record| time(record)).map(ms).collect())
        };
        let good = succeeded.iter().filter(|record| record.first.is_some_and(|first| first <= ttft_limit)).count();
        let mut errors_by_kind = BTreeMap::new();
        for failure in run.records.iter().filter_map(|record| record.failure.as_ref()) {
            *errors_by_kind.entry(failure.to_string()).or_default() += 1;
        }
        let mut destinations = BTreeMap::new();
        for destination in run.records.iter().filter_map(|record| record.destination.as_ref()) {
            *destinations.entry(destination.clone()).or_default() += 1;
        }
        let usages = || succeeded.iter().filter_map(|record| record.usage);
        let prompt_tokens = usages().map(|usage| usage.prompt_tokens).sum();
        let cached_tokens = usages().filter_map(|usage| usage.cached_tokens()).sum();
        let told = usages().any(|usage| usage.cached_tokens().is_some());
        Self {
            requests: run.records.len(),
            errors: run.records.len() - succeeded.len(),
            errors_by_kind,
            duration_s: run.elapsed.as_secs_f64(),
            ttft_ms: times(|record| record.first),
            itl_ms: Percentiles::of(succeeded.iter().filter_map(|record| record.inter_token_ms()).collect()),
            e2e_ms: times(|record| Some(record.end)),
            requests_per_s: succeeded.len() as f64 / seconds,
            answer_tokens_per_s: succeeded.iter().map(|record| record.answer_tokens()).sum::<u64>() as f64 / seconds,
            ttft_limit_ms: ms(ttft_limit),
            goodput_per_min: good as f64 / seconds * 60.0,
            prompt_tokens,
            cached_tokens,
            cached_ratio: told.then(|| cached_tokens as f64 / (prompt_tokens as f64).max(1.0)),
            destinations,
            prediction: Prediction::of(&run.records),
            latest_send_ms: run
                .records
                .iter()
                .map(|record| ms(record.sent.saturating_sub(record.due)))
                .fold(0.0, f64::max),
        }
    }

    /// All figures, for people.
    #[must_use]
    pub fn table(&self, title: &str) -> String {
        let mut times = Table::new([title, "p50", "p95", "p99"]);
        for (name, Percentiles { p50, p95, p99 }) in [
            ("time to first token, ms", self.ttft_ms),
            ("between tokens, ms", self.itl_ms),
            ("whole answer, ms", self.e2e_ms),
        ] {
            times.row([name.to_owned(), figure(p50), figure(p95), figure(p99)]);
        }
        let mut list = vec![
            ("requests".to_owned(), self.requests.to_string()),
            ("seconds".to_owned(), figure(self.duration_s)),
            ("requests/s".to_owned(), figure(self.requests_per_s)),
            ("answer tokens/s".to_owned(), figure(self.answer_tokens_per_s)),
            (format!("goodput/min (first token within {} ms)", self.ttft_limit_ms), figure(self.goodput_per_min)),
            ("prompt tokens".to_owned(), self.prompt_tokens.to_string()),
        ];
        list.extend(self.cached_ratio.map(|ratio| ("of these cached".to_owned(), format!("{:.1} %", ratio * 100.0))));
        list.push(("latest send, ms after it was due".to_owned(), figure(self.latest_send_ms)));
        list.extend(self.destinations.iter().map(|(name, count)| (format!("sent to {name}"), count.to_string())));
        list.push(("failed".to_owned(), self.errors.to_string()));
        list.extend(self.errors_by_kind.iter().map(|(kind, count)| (format!("  {kind}"), count.to_string())));
        let prediction = self.prediction.map(|prediction| format!("\ncached tokens predicted: {prediction}\n"));
        format!("{times}\n{}{}", rows("figure", "value", list), prediction.unwrap_or_default())
    }
}

impl std::fmt::Display for Prediction {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "requests={} exact={} worst_above_tokens={} worst_below_tokens={} mean_error_tokens={:.2}",
            self.requests, self.exact, self.worst_above_tokens, self.worst_below_tokens, self.mean_error_tokens
        )
    }
}

/// A figure with about three digits.
pub(crate) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests;
