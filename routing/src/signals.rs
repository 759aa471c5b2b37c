//! Signals over windows: what a worker's figures were lately, as rules ask for it.
//!
//! A window of length `over` holds the samples of the last `over` milliseconds, both ends included. Every sample counts
//! once: with samples at a steady interval, as scrapes are, the mean of the samples is the mean over time. A window
//! without samples has no value, so that what is not known never looks like a figure.

use std::collections::VecDeque;

use kinference_protocol::v1;
use kinference_protocol::v1::{Aggregate, Signal};

/// Most samples that are kept of a signal; beyond it the oldest go.
pub const MAX_SAMPLES: usize = 1 << 17;

/// A worker's figures at one moment; `None` for what is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Requests that wait in the engine.
    pub queued_requests: Option<f64>,
    /// Requests that the engine works on.
    pub running_requests: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: Option<f64>,
}

/// The samples of one figure, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Window {
    samples: VecDeque<(u64, f64)>,
}

impl Window {
    /// Adds a sample, and forgets those older than `keep_ms` before it; the newest always stays. A sample that is no
    /// number, or older than the newest, is ignored.
    pub fn record(&mut self, at_ms: u64, value: f64, keep_ms: u64) {
        if value.is_nan() || self.samples.back().is_some_and(|(newest, _)| *newest > at_ms) {
            return;
        }
        self.samples.push_back((at_ms, value));
        let too_old = |(at, _): &(u64, f64)| at_ms - *at > keep_ms;
        while self.samples.len() > MAX_SAMPLES || self.samples.front().is_some_and(too_old) {
            self.samples.pop_front();
        }
    }

    /// The value over the last `over_ms` milliseconds before `now_ms`; `None` when there is no sample in them. With an
    /// `over_ms` of 0: the newest sample, however old.
    #[must_use]
    pub fn value(&self, aggregate: Aggregate, over_ms: u64, now_ms: u64) -> Option<f64> {
        let newest = self.samples.back()?;
        if over_ms == 0 {
            return Some(newest.1);
        }
        let since = now_ms.saturating_sub(over_ms);
        let inside = || self.samples.iter().rev().take_while(move |(at, _)| *at >= since).map(|(_, value)| *value);
        match aggregate {
            Aggregate::Last => inside().next(),
            Aggregate::Max => inside().reduce(f64::max),
            Aggregate::Min => inside().reduce(f64::min),
            Aggregate::Average => mean(inside()),
        }
    }
}

/// What a worker's figures were, as far back as the configured signals look.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    queued: Window,
    running: Window,
    usage: Window,
}

impl History {
    /// Adds a sample. `keep_ms` is what [`longest`] says of the configured signals.
    pub fn record(&mut self, at_ms: u64, sample: &Sample, keep_ms: u64) {
        let figures = [sample.queued_requests, sample.running_requests, sample.kv_cache_usage];
        for (window, value) in [&mut self.queued, &mut self.running, &mut self.usage].into_iter().zip(figures) {
            if let Some(value) = value {
                window.record(at_ms, value, keep_ms);
            }
        }
    }

    /// Values of the configured signals, in their order; NaN for missing ones, and for the predicted time to first
    /// token, which is of a request.
    #[must_use]
    pub fn values(&self, signals: &[v1::WindowedSignal], now_ms: u64) -> Vec<f32> {
        let value = |signal: &v1::WindowedSignal| {
            let window = match signal.signal() {
                Signal::QueuedRequests => &self.queued,
                Signal::RunningRequests => &self.running,
                Signal::KvCacheUsage => &self.usage,
                Signal::PredictedTtft => return None,
            };
            window.value(signal.aggregate(), signal.over_ms, now_ms)
        };
        signals.iter().map(|signal| value(signal).map_or(f32::NAN, |value| value as f32)).collect()
    }
}

/// A signal as people read it: `KvCacheUsage`, or `QueuedRequests (Max over 30000 ms)`.
#[must_use]
pub fn name(signal: &v1::WindowedSignal) -> String {
    let name = match signal.signal() {
        v1::Signal::QueuedRequests => "QueuedRequests",
        v1::Signal::RunningRequests => "RunningRequests",
        v1::Signal::KvCacheUsage => "KvCacheUsage",
        v1::Signal::PredictedTtft => "PredictedTTFT",
    };
    if signal.over_ms == 0 {
        return name.to_owned();
    }
    let how = match signal.aggregate() {
        Aggregate::Last => "Last",
        Aggregate::Average => "Average",
        Aggregate::Max => "Max",
        Aggregate::Min => "Min",
    };
    format!("{name} ({how} over {} ms)", signal.over_ms)
}

/// How far back the longest of the signals looks, in milliseconds.
#[must_use]
pub fn longest(signals: &[v1::WindowedSignal]) -> u64 {
    signals.iter().map(|signal| signal.over_ms).max().unwrap_or_default()
}

/// Values of the configured signals over a pool: for each the mean over its ready workers, of those where it is known;
/// NaN where it is known of none. `workers` are the workers' own values, in the order of the `count` signals.
#[must_use]
pub fn of_pool<'v>(workers: impl Iterator<Item = &'v [f32]> + Clone, count: usize) -> Vec<f32> {
    let known = |signal: usize| {
        let values = workers.clone().filter_map(move |values| values.get(signal));
        values.filter(|value| !value.is_nan()).map(|value| f64::from(*value))
    };
    (0..count).map(|signal| mean(known(signal)).map_or(f32::NAN, |value| value as f32)).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests;
