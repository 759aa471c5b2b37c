//! Whether a worker can take requests, from how its metrics answer and from what filters see.

use kinference_protocol::v1::WorkerState;

use crate::scrape::parse::RankMetrics;

/// Failures in a row, other than a refused connection, after which a worker counts as gone.
const FAILURES: u32 = 2;
/// Metrics older than this many intervals are not believed any more; at least `STALE_FLOOR_MS`.
const STALE_INTERVALS: u64 = 4;
const STALE_FLOOR_MS: u64 = 1_500;
/// Without any result for this long, good or bad, a worker is unknown.
const SILENCE_MS: u64 = 10_000;

/// Why metrics could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScrapeError {
    /// Nothing listens there.
    Refused,
    /// No complete answer in time.
    Timeout,
    /// An answer that is no page of metrics of the engine, or another fault of the network.
    Bad(String),
}

impl std::fmt::Display for ScrapeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused => write!(f, "connection refused"),
            Self::Timeout => write!(f, "no answer in time"),
            Self::Bad(why) => write!(f, "{why}"),
        }
    }
}

/// What is known of one worker's health.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// When the newest good read arrived, and what it said.
    pub(super) good: Option<(u64, RankMetrics)>,
    /// Why the newest read failed.
    pub(super) error: Option<ScrapeError>,
    failures: u32,
    /// When a filter last failed to connect.
    suspected: Option<u64>,
    /// Nothing listened since the newest good read.
    refused: bool,
    /// The latest start that the page told, in seconds since 1970.
    started: Option<f64>,
}

impl Health {
    /// Takes the result of a read that began at `began` and ended at `now`. True when it is not certain that the
    /// process is the one that answered before: whatever that one held may be gone.
    pub(super) fn scraped(&mut self, result: Result<RankMetrics, ScrapeError>, began: u64, now: u64) -> bool {
        match result {
            Ok(metrics) => {
                let another = self.is_another(&metrics);
                self.refused = false;
                self.started = later(self.started, metrics.started);
                // A read that began before the failed connect proves nothing.
                if self.suspected.is_some_and(|suspected| began > suspected) {
                    self.suspected = None;
                }
                self.good = Some((now, metrics));
                self.failures = 0;
                self.error = None;
                another
            }
            Err(error) => {
                self.refused |= error == ScrapeError::Refused;
                self.failures = match error {
                    ScrapeError::Refused => FAILURES,
                    _ => self.failures.saturating_add(1),
                };
                self.error = Some(error);
                false
            }
        }
    }

    /// Whether a page is of another process than the pages before. Only a later start counts, since several processes
    /// may share a port and answer in turn.
    fn is_another(&self, metrics: &RankMetrics) -> bool {
        let Some((_, before)) = &self.good else { return false };
        match (self.started, metrics.started) {
            (Some(before), Some(now)) => now > before,
            _ => self.refused || before.prompt_tokens.zip(metrics.prompt_tokens).is_some_and(|(then, now)| now < then),
        }
    }

    /// A filter could not connect.
    pub(super) fn suspect(&mut self, now: u64) {
        self.suspected = Some(now);
    }

    pub(super) fn state(&self, now: u64) -> WorkerState {
        let Some((at, metrics)) = &self.good else { return WorkerState::Unknown };
        if self.suspected.is_some() || self.failures >= FAILURES || now.saturating_sub(*at) > SILENCE_MS {
            return WorkerState::Unknown;
        }
        match metrics.awake {
            Some(false) => WorkerState::Unready,
            _ => WorkerState::Ready,
        }
    }

    /// The engine's figures, unless they are too old to mean anything.
    pub(super) fn metrics(&self, interval_ms: u64, now: u64) -> Option<&RankMetrics> {
        let (at, metrics) = self.good.as_ref()?;
        let limit = (interval_ms * STALE_INTERVALS).max(STALE_FLOOR_MS);
        (self.failures < FAILURES && now.saturating_sub(*at) <= limit).then_some(metrics)
    }
}

fn later(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Result<RankMetrics, ScrapeError> {
        Ok(RankMetrics { running: Some(1.0), waiting: Some(0.0), ..Default::default() })
    }

    #[test]
    fn a_worker_is_unknown_until_it_answers() {
        let mut health = Health::default();
        assert_eq!(health.state(0), WorkerState::Unknown);
        health.scraped(Err(ScrapeError::Timeout), 0, 10);
        assert_eq!(health.state(10), WorkerState::Unknown);
        health.scraped(good(), 10, 20);
        assert_eq!(health.state(20), WorkerState::Ready);
    }

    #[test]
    fn a_refused_connection_counts_at_once_and_a_timeout_twice() {
        let mut health = Health::default();
        health.scraped(good(), 0, 1);
        health.scraped(Err(ScrapeError::Timeout), 1, 2);
        assert_eq!(health.state(2), WorkerState::Ready);
        health.scraped(Err(ScrapeError::Bad("500".into())), 2, 3);
        assert_eq!(health.state(3), WorkerState::Unknown);
        health.scraped(good(), 3, 4);
        assert_eq!(health.state(4), WorkerState::Ready);
        health.scraped(Err(ScrapeError::Refused), 4, 5);
        assert_eq!(health.state(5), WorkerState::Unknown);
        assert!(health.metrics(250, 5).is_none());
    }

    #[test]
    fn a_failed_connect_holds_until_a_later_read_succeeds() {
        let mut health = Health::default();
        health.scraped(good(), 0, 5);
        health.suspect(10);
        assert_eq!(health.state(10), WorkerState::Unknown);
        health.scraped(good(), 9, 12);
        assert_eq!(health.state(12), WorkerState::Unknown, "that read began before the connect failed");
        health.scraped(good(), 13, 15);
        assert_eq!(health.state(15), WorkerState::Ready);
    }

    #[test]
    fn a_sleeping_engine_is_unready() {
        let mut health = Health::default();
        health.scraped(Ok(RankMetrics { awake: Some(false), ..Default::default() }), 0, 1);
        assert_eq!(health.state(1), WorkerState::Unready);
    }

    #[test]
    fn old_metrics_are_not_believed() {
        let mut health = Health::default();
        health.scraped(good(), 0, 1000);
        assert!(health.metrics(250, 2500).is_some());
        assert!(health.metrics(250, 2501).is_none());
        assert!(health.metrics(1000, 5000).is_some());
        assert_eq!(health.state(11_001), WorkerState::Unknown);
    }
    fn of_process(started: Option<f64>, prompt_tokens: f64) -> Result<RankMetrics, ScrapeError> {
        good().map(|metrics| RankMetrics { started, prompt_tokens: Some(prompt_tokens), ..metrics })
    }

    #[test]
    fn a_later_start_is_another_process_and_an_earlier_one_is_not() {
        let mut health = Health::default();
        assert!(!health.scraped(of_process(Some(100.0), 50.0), 0, 1), "the first one");
        assert!(!health.scraped(of_process(Some(100.0), 50.0), 1, 2));
        assert!(!health.scraped(Err(ScrapeError::Refused), 2, 3));
        assert!(!health.scraped(of_process(Some(100.0), 60.0), 3, 4), "it says that it is the same");
        assert!(health.scraped(of_process(Some(100.5), 60.0), 4, 5));
        assert!(!health.scraped(of_process(Some(100.0), 10.0), 5, 6), "processes that answer in turn");
        assert!(!health.scraped(of_process(Some(100.5), 60.0), 6, 7));
    }

    #[test]
    fn without_a_start_a_counter_that_falls_or_a_refused_connection_tells() {
        let mut health = Health::default();
        assert!(!health.scraped(of_process(None, 50.0), 0, 1));
        assert!(!health.scraped(Err(ScrapeError::Timeout), 1, 2));
        assert!(!health.scraped(of_process(None, 50.0), 2, 3));
        assert!(health.scraped(of_process(None, 49.0), 3, 4));
        assert!(!health.scraped(of_process(None, 49.0), 4, 5));
        assert!(!health.scraped(Err(ScrapeError::Refused), 5, 6));
        assert!(!health.scraped(Err(ScrapeError::Timeout), 6, 7));
        assert!(health.scraped(of_process(None, 49.0), 7, 8));
        assert!(!health.scraped(of_process(None, 49.0), 8, 9), "once");
    }
}
