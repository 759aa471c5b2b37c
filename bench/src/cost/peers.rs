//! What others cost, measured in the same way on another machine of two cores with client, workers and everything else on
//! them: llm-d's endpoint picker 0.10.0 (Envoy 1.40 asks it over ext_proc, default configuration) and routers from PyPI.

/// llm-d's endpoint picker at one load point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EndpointPicker {
    pub(super) kb: usize,
    pub(super) concurrency: usize,
    /// Medians of the bare Envoy and with the picker, in milliseconds.
    pub(super) p50_ms: [f64; 2],
    /// 95th percentiles.
    pub(super) p95_ms: [f64; 2],
    /// Requests a second with the picker.
    pub(super) requests_per_s: f64,
    /// Processor seconds for 1,000 requests: the picker, and Envoy with it.
    pub(super) cpu_s: [f64; 2],
}

const fn point(
    kb: usize,
    concurrency: usize,
    p50_ms: [f64; 2],
    p95_ms: [f64; 2],
    requests_per_s: f64,
    cpu_s: [f64; 2],
) -> EndpointPicker {
    EndpointPicker { kb, concurrency, p50_ms, p95_ms, requests_per_s, cpu_s }
}

pub(super) const ENDPOINT_PICKER: [EndpointPicker; 6] = [
    point(4, 1, [0.46, 2.57], [1.14, 4.21], 342.0, [1.62, 0.97]),
    point(4, 20, [4.1, 18.8], [16.8, 37.7], 977.0, [0.78, 0.52]),
    point(32, 1, [0.66, 4.48], [1.59, 9.32], 191.0, [3.83, 1.35]),
    point(32, 20, [6.6, 40.0], [16.1, 67.0], 471.0, [2.07, 0.85]),
    point(220, 1, [1.10, 12.9], [2.33, 24.8], 69.0, [12.7, 2.75]),
    point(220, 20, [10.6, 145.0], [41.5, 235.0], 135.0, [9.4, 2.25]),
];

/// Its processor time for each chunk of a stream, and Envoy's with it, in microseconds.
pub(super) const ENDPOINT_PICKER_CHUNK_US: [f64; 2] = [95.0, 52.0];
/// Its processor time while idle with 100 workers, in percent of a core: at least this.
pub(super) const ENDPOINT_PICKER_IDLE_PERCENT: f64 = 30.0;

/// The strongest router from PyPI, SMG 1.13.0 `cache_aware`: added median time to first token at concurrency 1 and 20 in
/// milliseconds, and processor seconds for 1,000 requests, by prompt size in KB.
pub(super) const SMG: [(usize, [f64; 2], f64); 3] =
    [(4, [0.54, 3.1], 0.36), (32, [0.65, 4.7], 0.57), (220, [0.87, 7.8], 1.49)];

/// Processor seconds for 1,000 requests that Envoy and the filter together are to stay below, by prompt size in KB: a
/// little less than the strongest of these routers take.
pub(super) const GOALS: [(usize, f64); 3] = [(4, 0.30), (32, 0.5), (220, 1.0)];
