//! How the source of the configuration fares, where it is elsewhere.

use serde::Serialize;

use super::Fleet;

/// What the source says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceReport {
    /// The API server.
    pub from: String,
    /// The namespaces that are followed; empty for all.
    pub namespaces: Vec<String>,
    /// It answers.
    pub connected: bool,
    /// What is in the way of following it.
    pub problems: Vec<String>,
}

/// The same, as `/status` has it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// The API server.
    pub kubernetes: String,
    /// The namespaces that are followed; empty for all.
    pub namespaces: Vec<String>,
    /// It answers.
    pub connected: bool,
    /// For how long what is in force may be out of date; absent before it was read at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_age_seconds: Option<f64>,
    /// What is in the way of following it.
    pub problems: Vec<String>,
}

/// What is remembered of it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) report: SourceReport,
    /// When it was last followed without a problem; milliseconds.
    synced_at: Option<u64>,
}

impl Fleet {
    pub(super) fn source_reported(&mut self, report: SourceReport, now: u64) {
        let in_order = report.connected && report.problems.is_empty();
        let before = self.source.as_ref().and_then(|source| source.synced_at);
        let synced_at = if in_order && self.config.read { Some(now) } else { before };
        // Whoever waits for a configuration is told why there is none.
        self.rewired |= !self.config.in_force;
        self.metrics.source_connected.set(i64::from(report.connected));
        self.source = Some(Source { report, synced_at });
        self.gauge_source(now);
    }

    pub(super) fn gauge_source(&self, now: u64) {
        if let Some(age) = self.source.as_ref().and_then(|source| source.age(now)) {
            self.metrics.source_sync_age.set(age);
        }
    }

    pub(super) fn source_status(&self, now: u64) -> Option<SourceStatus> {
        let source = self.source.as_ref()?;
        let SourceReport { from, namespaces, connected, problems } = source.report.clone();
        Some(SourceStatus { kubernetes: from, namespaces, connected, sync_age_seconds: source.age(now), problems })
    }
}

impl Source {
    fn age(&self, now: u64) -> Option<f64> {
        self.synced_at.map(|at| now.saturating_sub(at) as f64 / 1000.0)
    }
}
