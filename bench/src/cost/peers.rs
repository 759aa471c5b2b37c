//! What others cost, measured in the same way on another machine of two cores with client, workers and everything else on
//! them: llm-d's endpoint picker 0.10.0 (Envoy 1.40 asks it over ext_proc) and routers from PyPI.

/// llm-d's endpoint picker at one load point. Times are in milliseconds, processor time in seconds for 1,000 requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EndpointPicker {
    pub(super) kb: usize,
    pub(super) concurrency: usize,
    /// Median and 95th percentile of the bare Envoy, with round robin.
    pub(super) bare_ms: [f64; 2],
    /// Processor time of the bare Envoy: what a machine and a load generator make of the same thing.
    pub(super) bare_cpu_s: f64,
    /// The same with the picker in its default configuration, which knows of no events.
    pub(super) ms: [f64; 2],
    /// Requests a second then.
    pub(super) requests_per_s: f64,
    /// Processor time then: the picker, and Envoy with it.
    pub(super) cpu_s: [f64; 2],
    /// In the configuration that follows KV events.
    pub(super) precise: Precise,
}

/// The picker when it follows KV events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Precise {
    /// Median.
    pub(super) p50_ms: f64,
    /// Requests a second.
    pub(super) requests_per_s: f64,
    /// Processor time of the picker alone.
    pub(super) cpu_s: f64,
}

/// In the order of the fields.
const fn point(
    (kb, concurrency): (usize, usize),
    (bare_ms, bare_cpu_s): ([f64; 2], f64),
    ms: [f64; 2],
    requests_per_s: f64,
    cpu_s: [f64; 2],
    [p50_ms, precise_requests_per_s, precise_cpu_s]: [f64; 3],
) -> EndpointPicker {
    let precise = Precise { p50_ms, requests_per_s: precise_requests_per_s, cpu_s: precise_cpu_s };
    EndpointPicker { kb, concurrency, bare_ms, bare_cpu_s, ms, requests_per_s, cpu_s, precise }
}

pub(super) const ENDPOINT_PICKER: [EndpointPicker; 6] = [
    point((4, 1), ([0.46, 1.14], 0.25), [2.57, 4.21], 342.0, [1.62, 0.97], [3.7, 223.0, 2.7]),
    point((4, 20), ([4.1, 16.8], 0.15), [18.8, 37.7], 977.0, [0.78, 0.52], [63.0, 302.0, 1.7]),
    point((32, 1), ([0.66, 1.59], 0.28), [4.48, 9.32], 191.0, [3.83, 1.35], [12.0, 65.0, 9.4]),
    point((32, 20), ([6.6, 16.1], 0.22), [40.0, 67.0], 471.0, [2.07, 0.85], [224.0, 80.0, 7.9]),
    point((220, 1), ([1.10, 2.33], 0.37), [12.9, 24.8], 69.0, [12.7, 2.75], [62.0, 11.0, 52.0]),
    point((220, 20), ([10.6, 41.5], 0.44), [145.0, 235.0], 135.0, [9.4, 2.25], [1756.0, 10.0, 57.0]),
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
