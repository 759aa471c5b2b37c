//! The filter's metrics. The proxy adds them up over its VMs; a gauge shows the VM that wrote last.

/// A metric. Names are documented in the crate's README.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Requests that were sent to a chosen worker.
    Decisions,
    /// Requests that were sent on undecided (failure mode Open).
    Undecided,
    /// Requests refused with 400.
    RejectedInvalid,
    /// Requests refused with 404 or 405 for their path or method.
    RejectedPath,
    /// Requests refused with 404 for their model.
    RejectedModel,
    /// By a rule, or because the tenant is unknown or may not use the model.
    RejectedPolicy,
    /// Requests refused with 413.
    RejectedTooLarge,
    /// Requests refused with 503: no worker of the model, or nothing to decide with (failure mode Closed).
    RejectedUnavailable,
    /// Requests that were sent to a provider, in the first place.
    ProviderDecisions,
    /// Requests that a provider's side of the filter refused, and answers of providers that it kept from clients.
    ProviderRefused,
    /// Workers that the proxy could not reach, and providers that failed.
    ConnectFailures,
    /// Full snapshots that took force.
    SnapshotsApplied,
    /// Deltas that took force.
    DeltasApplied,
    /// Messages of the control service that could not be applied.
    MessagesRejected,
    /// Streams to the control service that were opened.
    StreamsOpened,
    /// Streams to the control service that ended or could not be opened.
    StreamsLost,
    /// Reports that were dropped because their buffer was full.
    ReportsDropped,
    /// Decisions by hashing alone, because the snapshot was stale.
    StaleDecisions,
    /// Time from the complete body to the choice, in microseconds.
    DecisionTime,
    /// Bytes of the prefix index.
    IndexBytes,
    /// Chunks of the prefix index.
    IndexChunks,
    /// Sequence of the snapshot in force.
    SnapshotSequence,
    /// Milliseconds since the snapshot in force was last known to be current.
    SnapshotAge,
}

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Metric {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 23] = [
        Self::Decisions,
        Self::Undecided,
        Self::RejectedInvalid,
        Self::RejectedPath,
        Self::RejectedModel,
        Self::RejectedPolicy,
        Self::RejectedTooLarge,
        Self::RejectedUnavailable,
        Self::ProviderDecisions,
        Self::ProviderRefused,
        Self::ConnectFailures,
        Self::SnapshotsApplied,
        Self::DeltasApplied,
        Self::MessagesRejected,
        Self::StreamsOpened,
        Self::StreamsLost,
        Self::ReportsDropped,
        Self::StaleDecisions,
        Self::DecisionTime,
        Self::IndexBytes,
        Self::IndexChunks,
        Self::SnapshotSequence,
        Self::SnapshotAge,
    ];

    /// Name under which the proxy shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Decisions => "kinference_filter_decisions",
            Self::Undecided => "kinference_filter_undecided",
            Self::RejectedInvalid => "kinference_filter_rejected_invalid",
            Self::RejectedPath => "kinference_filter_rejected_path",
            Self::RejectedModel => "kinference_filter_rejected_model",
            Self::RejectedPolicy => "kinference_filter_rejected_policy",
            Self::RejectedTooLarge => "kinference_filter_rejected_too_large",
            Self::RejectedUnavailable => "kinference_filter_rejected_unavailable",
            Self::ProviderDecisions => "kinference_filter_provider_decisions",
            Self::ProviderRefused => "kinference_filter_provider_refused",
            Self::ConnectFailures => "kinference_filter_connect_failures",
            Self::SnapshotsApplied => "kinference_filter_snapshots_applied",
            Self::DeltasApplied => "kinference_filter_deltas_applied",
            Self::MessagesRejected => "kinference_filter_messages_rejected",
            Self::StreamsOpened => "kinference_filter_streams_opened",
            Self::StreamsLost => "kinference_filter_streams_lost",
            Self::ReportsDropped => "kinference_filter_reports_dropped",
            Self::StaleDecisions => "kinference_filter_stale_decisions",
            Self::DecisionTime => "kinference_filter_decision_us",
            Self::IndexBytes => "kinference_filter_index_bytes",
            Self::IndexChunks => "kinference_filter_index_chunks",
            Self::SnapshotSequence => "kinference_filter_snapshot_sequence",
            Self::SnapshotAge => "kinference_filter_snapshot_age_ms",
        }
    }

    /// How it behaves.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::DecisionTime => Kind::Histogram,
            Self::IndexBytes | Self::IndexChunks | Self::SnapshotSequence | Self::SnapshotAge => Kind::Gauge,
            _ => Kind::Counter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_number_and_a_name_of_its_own() {
        for (number, metric) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(metric as usize, number);
            assert_eq!(Metric::ALL.iter().filter(|other| other.name() == metric.name()).count(), 1);
            let documented = include_str!("../../README.md").contains(&format!("| `{}` |", metric.name()));
            assert!(documented, "README.md does not tell of {}", metric.name());
        }
    }
}
