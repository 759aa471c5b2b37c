//! Every metric of the service. Labels come from the configuration only, never from requests, so their number is
//! bounded by what users wrote. `control/README.md` has the table; a test keeps the two equal.

mod record;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Labels that name a worker set and one more thing of it.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SetLabels {
    /// "namespace/name"
    pub worker_set: String,
}

/// A worker set and a result, a state or a class.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SetKind {
    /// "namespace/name"
    pub worker_set: String,
    /// Which of a fixed few.
    pub kind: &'static str,
}

/// A worker of a set.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WorkerLabels {
    /// "namespace/name"
    pub worker_set: String,
    /// The worker's name in the configuration, with its rank.
    pub worker: String,
}

/// A provider.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ProviderLabels {
    /// "namespace/name"
    pub provider: String,
}

/// One of a fixed few, of a provider.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ProviderKind {
    /// "namespace/name"
    pub provider: String,
    /// Which.
    pub kind: &'static str,
}

/// A gateway backend.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BackendLabels {
    /// "namespace/name"
    pub backend: String,
}

/// A tenant of a gateway backend.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct TenantLabels {
    /// "namespace/name"
    pub backend: String,
    /// A tenant of the configuration, or "other".
    pub tenant: String,
}

/// One of a fixed few.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Kind {
    /// Which.
    pub kind: &'static str,
}

/// A kind of resource, and what became of a write of its status.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct StatusWrite {
    /// One of the five kinds.
    pub kind: &'static str,
    /// Which of a fixed few.
    pub result: &'static str,
}

type Histograms = Family<SetLabels, Histogram, fn() -> Histogram>;

/// The metrics. Counters count from the start of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// 1 while the files on disk are the configuration in force.
    pub config_valid: Gauge,
    /// Configurations read, by result: ok, error.
    pub config_loads: Family<Kind, Counter>,
    /// Problems of the newest configuration.
    pub config_problems: Gauge,
    /// 1 while the API server answers.
    pub source_connected: Gauge,
    /// For how long what is in force may be out of date; seconds.
    pub source_sync_age: Gauge<f64, AtomicU64>,
    /// Errors of watches by kind.
    pub source_errors: Family<Kind, Counter>,
    /// Objects in memory by kind.
    pub source_objects: Family<Kind, Gauge>,
    /// Workers by state.
    pub workers: Family<SetKind, Gauge>,
    /// Requests in flight.
    pub worker_in_flight: Family<WorkerLabels, Gauge>,
    /// Prefill tokens not yet computed.
    pub worker_pending_prefill: Family<WorkerLabels, Gauge>,
    /// Tokens believed cached.
    pub worker_cached_tokens: Family<WorkerLabels, Gauge>,
    /// Scrapes by result: ok, refused, timeout, bad.
    pub scrapes: Family<SetKind, Counter>,
    /// KV events and what befell their streams.
    pub kv_events: Family<SetKind, Counter>,
    /// 1 when the set's prompts were found equal, 0 when not.
    pub prompt_fidelity: Family<SetLabels, Gauge>,
    /// Chunks of the index.
    pub index_chunks: Family<BackendLabels, Gauge>,
    /// Bytes of the index in each filter.
    pub index_bytes: Family<BackendLabels, Gauge>,
    /// The grid in force.
    pub index_chunk_bytes: Family<BackendLabels, Gauge>,
    /// Rules in force.
    pub rules_in_force: Family<BackendLabels, Gauge>,
    /// Requests sent on, by tenant.
    pub tenant_requests: Family<TenantLabels, Counter>,
    /// 1 when policies may send requests to the provider, 0 when not.
    pub provider_ready: Family<ProviderLabels, Gauge>,
    /// Finished requests to providers.
    pub provider_requests: Family<ProviderKind, Counter>,
    /// Tokens that providers reported.
    pub provider_tokens: Family<ProviderKind, Counter>,
    /// Open streams.
    pub filters_connected: Family<BackendLabels, Gauge>,
    /// Streams that asked for a backend that is not configured.
    pub unknown_backend_streams: Counter,
    /// Full snapshots encoded.
    pub full_snapshots_built: Counter,
    /// Full snapshots begun, over all streams.
    pub full_snapshots_sent: Counter,
    /// Deltas encoded.
    pub deltas_built: Counter,
    /// Deltas sent, over all streams.
    pub deltas_sent: Counter,
    /// Heartbeats sent.
    pub heartbeats_sent: Counter,
    /// Bytes of messages sent.
    pub sent_bytes: Counter,
    /// Snapshots and deltas refused by filters: resync, content.
    pub rejections: Family<Kind, Counter>,
    /// Reports by event: started, first_token, finished, unknown.
    pub reports: Family<Kind, Counter>,
    /// Reports that filters dropped.
    pub reports_dropped: Counter,
    /// Finished requests by status class.
    pub requests: Family<SetKind, Counter>,
    /// Predicted minus reported cached tokens.
    pub cached_tokens_error: Histograms,
    /// Predicted minus observed TTFT.
    pub ttft_error_ms: Histograms,
    /// Observed TTFT.
    pub ttft_ms: Histograms,
    /// Reads of changed TLS files: ok, error.
    pub tls_reloads: Family<Kind, Counter>,
    /// When the certificates in force expire: server, client_ca.
    pub tls_expiry: Family<Kind, Gauge>,
    /// TLS handshakes: ok, refused, timeout, busy.
    pub tls_handshakes: Family<Kind, Counter>,
    /// Endpoint updates sent to Envoys.
    pub eds_updates: Counter,
    /// Endpoint updates that Envoys took.
    pub eds_acks: Counter,
    /// Endpoint updates that Envoys refused.
    pub eds_nacks: Counter,
    /// Writes of statuses to the API server, by result: ok, conflict, gone, error.
    pub status_writes: Family<StatusWrite, Counter>,
    /// 1 while this replica writes statuses.
    pub status_leader: Gauge,
}

fn cached_tokens_buckets() -> Histogram {
    Histogram::new([
        -16384.0, -4096.0, -1024.0, -512.0, -256.0, -128.0, -64.0, -32.0, -16.0, 0.0, 16.0, 32.0, 64.0, 128.0, 256.0,
        512.0, 1024.0, 4096.0, 16384.0,
    ])
}

fn ttft_error_buckets() -> Histogram {
    Histogram::new([
        -10000.0, -3000.0, -1000.0, -300.0, -100.0, -30.0, -10.0, 0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0,
        10000.0,
    ])
}

fn ttft_buckets() -> Histogram {
    Histogram::new([5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0])
}

/// A registry that hands out what it registers.
struct Registrar(Registry);

impl Registrar {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.put(name, help, M::default())
    }

    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        // The encoder adds the full stop.
        self.0.register(name, help.trim_end_matches('.'), metric.clone());
        metric
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut r = Registrar(Registry::with_prefix("kinference"));
        Self {
            config_valid: r.add("config_valid", "1 while the files on disk are the configuration in force, 0 while the last good one is kept or there is none."),
            config_loads: r.add("config_loads", "Configurations read, by result: ok, error."),
            config_problems: r.add("config_problems", "Problems of the configuration that was read last."),
            source_connected: r.add("source_connected", "1 while the Kubernetes API server answers, 0 while it does not."),
            source_sync_age: r.add("source_sync_age_seconds", "For how long what is in force may be out of date: since the cluster was last followed without a problem."),
            source_errors: r.add("source_errors", "Errors of Kubernetes watches, by kind: unreachable, forbidden, missing (CRDs), expired (listed again), other."),
            source_objects: r.add("source_objects", "Kubernetes objects in memory: resources, pods, config_maps, secrets."),
            workers: r.add("workers", "Workers by state: ready, unready, unknown."),
            worker_in_flight: r.add("worker_in_flight", "Requests that filters sent to the worker and that have not finished."),
            worker_pending_prefill: r.add("worker_pending_prefill_tokens", "Uncached prompt tokens sent to the worker that have not produced a first token."),
            worker_cached_tokens: r.add("worker_cached_tokens", "Prompt tokens that the worker is believed to hold in its cache."),
            scrapes: r.add("scrapes", "Reads of engine metrics, by result: ok, refused, timeout, bad."),
            kv_events: r.add("kv_events", "What the workers' KV-event streams carried (batch, stored, removed), what was left out of it (unknown_kind, malformed, other_medium, other_group, not_local, block_size, opaque, masked), and what befell them (connected, current, incomplete, disconnected, strange, restart, gap)."),
            prompt_fidelity: r.add("prompt_fidelity", "1 when the filter's prompt text was found equal to the engine's, 0 when it was not; absent before the first answer."),
            index_chunks: r.add("index_chunks", "Chunks of the backend's prefix index."),
            index_bytes: r.add("index_bytes", "Bytes that the backend's prefix index takes in each filter."),
            index_chunk_bytes: r.add("index_chunk_bytes", "Bytes of a chunk: the grid in force."),
            rules_in_force: r.add("rules_in_force", "Rules of policies that filters were told."),
            tenant_requests: r.add("tenant_requests", "Requests sent on, by tenant of the configuration; all others are other."),
            provider_ready: r.add("provider_ready", "1 when policies may send requests to the provider, 0 when not."),
            provider_requests: r.add("provider_requests", "Finished requests to providers, by kind as in requests; connect_failure also when a provider failed or refused and the request went on elsewhere."),
            provider_tokens: r.add("provider_tokens", "Tokens that providers reported: prompt, cached (part of prompt), completion."),
            filters_connected: r.add("filters_connected", "Filters with an open stream."),
            unknown_backend_streams: r.add("unknown_backend_streams", "Streams turned away because their gateway backend is not configured."),
            full_snapshots_built: r.add("full_snapshots_built", "Full snapshots encoded; each serves every stream that needs one."),
            full_snapshots_sent: r.add("full_snapshots_sent", "Full snapshots that streams began to send."),
            deltas_built: r.add("deltas_built", "Deltas encoded; each serves every stream."),
            deltas_sent: r.add("deltas_sent", "Deltas sent, over all streams."),
            heartbeats_sent: r.add("heartbeats_sent", "Heartbeats sent, over all streams."),
            sent_bytes: r.add("sent_bytes", "Bytes of snapshots, deltas and heartbeats sent, over all streams."),
            rejections: r.add("rejections", "Snapshots and deltas that filters refused: resync (out of order), content (cannot be applied)."),
            reports: r.add("reports", "Reports from filters, by event: started, first_token, finished, unknown."),
            reports_dropped: r.add("reports_dropped", "Reports that filters dropped because their buffer was full."),
            requests: r.add("requests", "Finished requests by class of their HTTP status: 2xx, 3xx, 4xx, 5xx; aborted (broke off), connect_failure (the chosen worker could not be reached; the proxy may have gone elsewhere), none."),
            cached_tokens_error: r.put("predicted_cached_tokens_error", "Cached prompt tokens: predicted minus what the engine reported.", Family::new_with_constructor(cached_tokens_buckets)),
            ttft_error_ms: r.put("predicted_ttft_error_ms", "Time to first token in milliseconds: predicted minus observed.", Family::new_with_constructor(ttft_error_buckets)),
            ttft_ms: r.put("ttft_ms", "Observed time to first token in milliseconds.", Family::new_with_constructor(ttft_buckets)),
            tls_reloads: r.add("tls_reloads", "Reads of the files of TLS: ok, error (the last good ones stay in force)."),
            tls_expiry: r.add("tls_certificate_expiry_timestamp_seconds", "When what is in force expires, in seconds since 1970: server (the certificate), client_ca (the last of the authorities)."),
            tls_handshakes: r.add("tls_handshakes", "TLS handshakes: ok, refused, timeout, busy (too many at once)."),
            eds_updates: r.add("eds_updates", "Endpoint updates sent to Envoys."),
            eds_acks: r.add("eds_acks", "Endpoint updates that Envoys took."),
            eds_nacks: r.add("eds_nacks", "Endpoint updates that Envoys refused."),
            status_writes: r.add("status_writes", "Writes of resources' statuses to the API server, by result: ok, conflict (the resource changed meanwhile), gone, error."),
            status_leader: r.add("status_leader", "1 while this replica is the one that writes statuses."),
            registry: r.0,
        }
    }
}

impl Metrics {
    /// All of them in OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(error) => format!("# the metrics could not be written: {error}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A metric without a value yet is not in the text, so the names are taken from the source.
    #[test]
    fn the_readme_has_every_metric_and_no_other() {
        let registered: BTreeSet<String> = include_str!("metrics.rs")
            .split("r.add(")
            .skip(1)
            .chain(include_str!("metrics.rs").split("r.put(").skip(1))
            .filter_map(|call| Some(call.split('"').nth(1)?.to_owned()))
            .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .collect();
        assert!(registered.len() > 28, "{registered:?}");
        let documented: BTreeSet<String> = include_str!("../README.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `kinference_")?.split('`').next())
            .map(|name| name.trim_end_matches("_total").to_owned())
            .collect();
        assert_eq!(registered, documented);
        let text = Metrics::default().text();
        assert!(text.contains("# HELP kinference_config_valid 1 while") && text.ends_with("# EOF\n"), "{text}");
    }
}
