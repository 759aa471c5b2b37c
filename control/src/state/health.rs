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
}

impl Health {
    /// Takes the result of a read that began at `began` and ended at `now`.
    pub(super) fn scraped(&mut self, result: Result<RankMetrics, ScrapeError>, began: u64, now: u64) {
        match result {
            Ok(metrics) => {
                // A read that began before the failed connect proves nothing.
                if self.suspected.is_some_and(|suspected| began > suspected) {
                    self.suspected = None;
                }
                self.good = Some((now, metrics));
                self.failures = 0;
                self.error = None;
            }
            Err(error) => {
                self.failures = match error {
                    ScrapeError::Refused => FAILURES,
                    _ => self.failures.saturating_add(1),
                };
                self.error = Some(error);
            }
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
}
