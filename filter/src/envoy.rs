//! The proxy, through proxy-wasm.
//!
//! The host calls are used directly, since the SDK's own methods panic on any failure, and one panic ends the VM. A call
//! that fails as it may gives nothing and changes nothing. What a call must not fail with panics here too (a header that is
//! set after the request was sent on), so the flows make each call only where the proxy has what it asks for.

use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use kinference_protocol::{METHOD, SERVICE};
use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, LogLevel, MapType, MetricType};

use crate::gateway::metrics::{Kind, Metric};
use crate::host::{Exchange, Host, Origin, Severity, Stream};

/// How the proxy says that an answer is a worker's own.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// How it says that no connection to a worker held until an answer began.
const UNREACHABLE: &[u8] = b"upstream_reset_before_response_started";
/// How it says that the connection to the worker broke during the answer.
const BROKE: &[u8] = b"upstream_reset_after_response_started";

/// The proxy. Cheap to copy; each context has one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Envoy {
    /// The proxy's numbers of the metrics, in the order of [`Metric::ALL`].
    metrics: Rc<[u32]>,
}

impl Envoy {
    /// Defines the metrics, which must be done once in a VM.
    pub(crate) fn with_metrics() -> Self {
        let define = |metric: Metric| {
            let kind = match metric.kind() {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            hostcalls::define_metric(kind, metric.name()).unwrap_or_default()
        };
        Self { metrics: Metric::ALL.into_iter().map(define).collect() }
    }

    /// The plugin's configuration.
    pub(crate) fn configuration(&self, length: usize) -> Vec<u8> {
        buffer(BufferType::PluginConfiguration, 0, length).unwrap_or_default()
    }

    /// The message of a stream that just arrived.
    pub(crate) fn message(&self, length: usize) -> Option<Vec<u8>> {
        buffer(BufferType::GrpcReceiveBuffer, 0, length)
    }

    /// The proxy's name.
    pub(crate) fn node_id(&self) -> Vec<u8> {
        property(&["node", "id"]).unwrap_or_default()
    }

    fn metric(&self, metric: Metric) -> Option<u32> {
        self.metrics.get(metric as usize).copied()
    }
}

fn buffer(kind: BufferType, start: usize, length: usize) -> Option<Vec<u8>> {
    hostcalls::get_buffer(kind, start, length).ok().flatten()
}

fn header_names(map: MapType) -> Vec<String> {
    // Values need not be UTF-8, names are.
    hostcalls::get_map_bytes(map).unwrap_or_default().into_iter().map(|(name, _)| name).collect()
}

fn property(path: &[&str]) -> Option<Vec<u8>> {
    hostcalls::get_property(path.to_vec()).ok().flatten()
}

impl Host for Envoy {
    fn now(&self) -> Duration {
        let now = hostcalls::get_current_time().unwrap_or(UNIX_EPOCH);
        now.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn count(&self, metric: Metric, by: u64) {
        if let Some(id) = self.metric(metric) {
            let _ = hostcalls::increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
        }
    }

    fn record(&self, metric: Metric, value: u64) {
        if let Some(id) = self.metric(metric) {
            let _ = hostcalls::record_metric(id, value);
        }
    }

    fn log(&self, severity: Severity, message: &str) {
        let level = match severity {
            Severity::Info => LogLevel::Info,
            Severity::Warning => LogLevel::Warn,
            Severity::Error => LogLevel::Error,
        };
        let _ = hostcalls::log(level, message);
    }

    fn tick_every(&self, period: Duration) {
        let _ = hostcalls::set_tick_period(period);
    }

    fn shared(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        let (value, version) = hostcalls::get_shared_data(key).ok()?;
        Some((value?, version.unwrap_or(0)))
    }

    fn share(&self, key: &str, value: &[u8], version: u32) -> bool {
        hostcalls::set_shared_data(key, Some(value), Some(version).filter(|version| *version != 0)).is_ok()
    }
}

impl Exchange for Envoy {
    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
    }

    fn request_header_lines<'n>(&self, names: &[&'n str]) -> Vec<(&'n str, Vec<u8>)> {
        let all = hostcalls::get_map_bytes(MapType::HttpRequestHeaders).unwrap_or_default();
        let wanted = |known: &str| names.iter().find(|name| **name == known).copied();
        all.into_iter().filter_map(|(known, value)| Some((wanted(&known)?, value))).collect()
    }

    fn set_request_header(&self, name: &str, value: &str) {
        let _ = hostcalls::set_map_value(MapType::HttpRequestHeaders, name, Some(value));
    }

    fn remove_request_header(&self, name: &str) {
        let _ = hostcalls::remove_map_value(MapType::HttpRequestHeaders, name);
    }

    fn request_headers(&self) -> Vec<String> {
        header_names(MapType::HttpRequestHeaders)
    }

    fn choose_route_anew(&self) {
        let _ = hostcalls::call_foreign_function("clear_route_cache", None);
    }

    fn request_body(&self, length: usize) -> Option<Vec<u8>> {
        buffer(BufferType::HttpRequestBody, 0, length)
    }

    fn replace_request_body(&self, length: usize, body: &[u8]) {
        let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, length, body);
    }

    fn respond(&self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        let _ = hostcalls::send_http_response(u32::from(status), headers.to_vec(), Some(body));
    }

    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, name).ok().flatten()
    }

    fn set_response_header(&self, name: &str, value: &str) {
        let _ = hostcalls::set_map_value(MapType::HttpResponseHeaders, name, Some(value));
    }

    fn response_headers(&self) -> Vec<String> {
        header_names(MapType::HttpResponseHeaders)
    }

    fn remove_response_header(&self, name: &str) {
        let _ = hostcalls::remove_map_value(MapType::HttpResponseHeaders, name);
    }

    fn response_body(&self, start: usize, length: usize) -> Option<Vec<u8>> {
        buffer(BufferType::HttpResponseBody, start, length)
    }

    fn origin(&self) -> Origin {
        let address = property(&["upstream", "address"]).and_then(|address| String::from_utf8(address).ok());
        let details = property(&["response", "code_details"]);
        let attempts = property(&["upstream", "request_attempt_count"]);
        let attempts = attempts.and_then(|bytes| bytes.first_chunk().copied()).map(u64::from_le_bytes);
        Origin {
            answered: details.as_ref().map_or(address.is_some(), |details| details == VIA_UPSTREAM),
            unreachable: details.is_some_and(|details| details.starts_with(UNREACHABLE)),
            attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()),
            address: address.filter(|address| !address.is_empty()),
        }
    }

    fn upstream_broke(&self) -> bool {
        property(&["response", "code_details"]).is_some_and(|details| details.starts_with(BROKE))
    }
}

impl Stream for Envoy {
    fn open(&self, cluster: &str) -> Option<u32> {
        hostcalls::open_grpc_stream(cluster, SERVICE, METHOD, Vec::new()).ok()
    }

    fn send(&self, token: u32, message: &[u8]) -> bool {
        hostcalls::send_grpc_stream_message(token, Some(message), false).is_ok()
    }

    fn cancel(&self, token: u32) {
        let _ = hostcalls::cancel_grpc_stream(token);
    }
}
