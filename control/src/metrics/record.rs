//! Recording: what happened, to the metrics it shows in.

use std::collections::BTreeMap;

use kinference_api::ObjectKey;
use kinference_protocol::v1::{self, report::Event};
use prometheus_client::metrics::histogram::Histogram;

use super::{
    BackendLabels, Histograms, Kind, Metrics, ProviderKind, ProviderLabels, SetKind, SetLabels, StatusWrite,
    TenantLabels, WorkerLabels,
};
use crate::events::Skip;
use crate::index::StoreStats;
use crate::state::{ScrapeError, WorkerName};
use crate::tls::material::Material;

fn set_kind(set: &ObjectKey, kind: &'static str) -> SetKind {
    SetKind { worker_set: set.to_string(), kind }
}

fn observe(histograms: &Histograms, set: &ObjectKey, value: f64) {
    let histogram = histograms.get_or_create(&SetLabels { worker_set: set.to_string() });
    Histogram::observe(&histogram, value);
}

fn worker_labels(worker: &WorkerName) -> WorkerLabels {
    WorkerLabels { worker_set: worker.set.to_string(), worker: worker.name.clone() }
}

fn tenant_labels(backend: &ObjectKey, tenant: &str) -> TenantLabels {
    TenantLabels { backend: backend.to_string(), tenant: tenant.to_owned() }
}

/// What became of a request, as metrics name it.
fn outcome(finished: &v1::Finished) -> &'static str {
    match finished.status {
        _ if finished.connect_failure => "connect_failure",
        _ if finished.aborted => "aborted",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500..=599 => "5xx",
        _ => "none",
    }
}

impl Metrics {
    pub(crate) fn config_read(&self, problems: usize) {
        let kind = if problems == 0 { "ok" } else { "error" };
        self.config_loads.get_or_create(&Kind { kind }).inc();
        self.config_problems.set(problems as i64);
        // The gauge also goes to 0 when the last good configuration stays in force.
        self.config_valid.set(i64::from(problems == 0));
    }

    pub(crate) fn source_error(&self, kind: &'static str) {
        self.source_errors.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn source_holds(&self, kind: &'static str, objects: usize) {
        self.source_objects.get_or_create(&Kind { kind }).set(objects as i64);
    }

    pub(crate) fn tls_loaded(&self, material: &Material) {
        self.tls_reloads.get_or_create(&Kind { kind: "ok" }).inc();
        self.tls_expiry.get_or_create(&Kind { kind: "server" }).set(material.expires);
        if let Some(expires) = material.client_ca_expires {
            self.tls_expiry.get_or_create(&Kind { kind: "client_ca" }).set(expires);
        }
    }

    pub(crate) fn tls_refused_files(&self) {
        self.tls_reloads.get_or_create(&Kind { kind: "error" }).inc();
    }

    pub(crate) fn tls_handshake(&self, kind: &'static str) {
        self.tls_handshakes.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn scraped(&self, set: &ObjectKey, error: Option<&ScrapeError>) {
        let kind = match error {
            None => "ok",
            Some(ScrapeError::Refused) => "refused",
            Some(ScrapeError::Timeout) => "timeout",
            Some(ScrapeError::Bad(_)) => "bad",
        };
        self.scrapes.get_or_create(&set_kind(set, kind)).inc();
    }

    pub(crate) fn events(&self, set: &ObjectKey, stored: u64, other: u64, skipped: impl Iterator<Item = (Skip, u32)>) {
        self.kv_events.get_or_create(&set_kind(set, "batch")).inc();
        if stored > 0 {
            self.kv_events.get_or_create(&set_kind(set, "stored")).inc_by(stored);
        }
        if other > 0 {
            self.kv_events.get_or_create(&set_kind(set, "removed")).inc_by(other);
        }
        for (reason, count) in skipped {
            self.kv_events.get_or_create(&set_kind(set, reason.label())).inc_by(count.into());
        }
    }

    pub(crate) fn status_written(&self, kind: kinference_api::Kind, result: &'static str) {
        self.status_writes.get_or_create(&StatusWrite { kind: kind.as_str(), result }).inc();
    }

    pub(crate) fn event(&self, set: &ObjectKey, kind: &'static str) {
        self.kv_events.get_or_create(&set_kind(set, kind)).inc();
    }

    pub(crate) fn rejected(&self, resync: bool) {
        let kind = if resync { "resync" } else { "content" };
        self.rejections.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn reported(&self, event: Option<&Event>) {
        let kind = match event {
            Some(Event::Started(_)) => "started",
            Some(Event::FirstToken(_)) => "first_token",
            Some(Event::Finished(_)) => "finished",
            None => "unknown",
        };
        self.reports.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn finished(&self, set: &ObjectKey, finished: &v1::Finished) {
        self.requests.get_or_create(&set_kind(set, outcome(finished))).inc();
    }

    pub(crate) fn finished_outside(&self, provider: &ObjectKey, finished: &v1::Finished) {
        let labels = |kind| ProviderKind { provider: provider.to_string(), kind };
        self.provider_requests.get_or_create(&labels(outcome(finished))).inc();
        for (kind, tokens) in [
            ("prompt", finished.prompt_tokens),
            ("cached", finished.cached_tokens),
            ("completion", finished.completion_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.provider_tokens.get_or_create(&labels(kind)).inc_by(tokens.into());
            }
        }
    }

    pub(crate) fn provider(&self, provider: &ObjectKey, ready: bool) {
        self.provider_ready.get_or_create(&ProviderLabels { provider: provider.to_string() }).set(ready.into());
    }

    pub(crate) fn forget_provider(&self, provider: &ObjectKey) {
        self.provider_ready.remove(&ProviderLabels { provider: provider.to_string() });
    }

    pub(crate) fn cached_tokens_seen(&self, set: &ObjectKey, predicted: u32, actual: u32) {
        observe(&self.cached_tokens_error, set, f64::from(predicted) - f64::from(actual));
    }

    pub(crate) fn first_token_seen(&self, set: &ObjectKey, predicted_ms: f32, actual_ms: u32) {
        observe(&self.ttft_error_ms, set, f64::from(predicted_ms) - f64::from(actual_ms));
        observe(&self.ttft_ms, set, f64::from(actual_ms));
    }

    pub(crate) fn worker(&self, worker: &WorkerName, in_flight: u32, pending: u64, cached: u64) {
        let labels = worker_labels(worker);
        let clamp = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.worker_in_flight.get_or_create(&labels).set(in_flight.into());
        self.worker_pending_prefill.get_or_create(&labels).set(clamp(pending));
        self.worker_cached_tokens.get_or_create(&labels).set(clamp(cached));
    }

    pub(crate) fn forget_worker(&self, worker: &WorkerName) {
        let labels = worker_labels(worker);
        self.worker_in_flight.remove(&labels);
        self.worker_pending_prefill.remove(&labels);
        self.worker_cached_tokens.remove(&labels);
    }

    pub(crate) fn set(&self, set: &ObjectKey, states: BTreeMap<&'static str, i64>, fidelity: Option<bool>) {
        for (state, count) in states {
            self.workers.get_or_create(&set_kind(set, state)).set(count);
        }
        let labels = SetLabels { worker_set: set.to_string() };
        match fidelity {
            Some(equal) => {
                self.prompt_fidelity.get_or_create(&labels).set(equal.into());
            }
            None => {
                self.prompt_fidelity.remove(&labels);
            }
        }
    }

    pub(crate) fn forget_set(&self, set: &ObjectKey) {
        for state in ["ready", "unready", "unknown"] {
            self.workers.remove(&set_kind(set, state));
        }
        self.prompt_fidelity.remove(&SetLabels { worker_set: set.to_string() });
    }

    pub(crate) fn backend(&self, backend: &ObjectKey, index: &StoreStats, filters: usize, rules: usize) {
        let labels = BackendLabels { backend: backend.to_string() };
        let clamp = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.index_chunks.get_or_create(&labels).set(clamp(index.chunks));
        self.index_bytes.get_or_create(&labels).set(clamp(index.filter_bytes));
        self.index_chunk_bytes.get_or_create(&labels).set(index.chunk_bytes.into());
        self.filters_connected.get_or_create(&labels).set(filters as i64);
        self.rules_in_force.get_or_create(&labels).set(rules as i64);
    }

    pub(crate) fn tenant_request(&self, backend: &ObjectKey, tenant: &str) {
        self.tenant_requests.get_or_create(&tenant_labels(backend, tenant)).inc();
    }

    pub(crate) fn forget_tenant(&self, backend: &ObjectKey, tenant: &str) {
        self.tenant_requests.remove(&tenant_labels(backend, tenant));
    }

    pub(crate) fn forget_backend(&self, backend: &ObjectKey) {
        let labels = BackendLabels { backend: backend.to_string() };
        self.index_chunks.remove(&labels);
        self.index_bytes.remove(&labels);
        self.index_chunk_bytes.remove(&labels);
        self.filters_connected.remove(&labels);
        self.rules_in_force.remove(&labels);
    }
}
