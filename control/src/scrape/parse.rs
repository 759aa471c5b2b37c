//! Reads the few figures that routing needs out of an engine's Prometheus text page, line by line as it arrives.
//!
//! A page has hundreds of kilobytes on a busy engine and is read several times a second, so lines of other metrics are
//! left after comparing their first bytes, and nothing is kept of them.

use std::collections::BTreeMap;

use kinference_api::kinds::Engine;

/// Longer lines are skipped: none that matters comes near.
const MAX_LINE: usize = 64 * 1024;
/// More ranks than any engine has; samples of higher ranks are ignored, so that a page cannot grow the map.
const MAX_RANK: u32 = 4096;

/// What one data-parallel rank of an engine says of itself. A figure is absent when the page did not have it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankMetrics {
    /// Requests being computed.
    pub running: Option<f64>,
    /// Requests that wait for a place.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// False while the engine sleeps.
    pub awake: Option<bool>,
    /// Tokens of one KV-cache block.
    pub block_tokens: Option<u32>,
    /// Prompt tokens since the process started; a smaller number than before is another process.
    pub prompt_tokens: Option<f64>,
    /// When the process started, in seconds since 1970. Engines of several processes do not say.
    pub started: Option<f64>,
}

/// A page of metrics, by rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineMetrics {
    /// By data-parallel rank; samples without a rank label are rank 0.
    pub ranks: BTreeMap<u32, RankMetrics>,
    /// When the process that answered started, in seconds since 1970.
    pub started: Option<f64>,
}

impl EngineMetrics {
    /// The figures of one worker.
    ///
    /// A worker without a rank stands for the whole process: counts of its ranks are added, and the fullest cache
    /// counts. Absent when the page says nothing of that rank.
    pub fn of(&self, rank: Option<u32>) -> Option<RankMetrics> {
        if let Some(rank) = rank {
            let figures = self.ranks.get(&rank)?.clone();
            return Some(RankMetrics { started: self.started, ..figures });
        }
        let mut ranks = self.ranks.values();
        let mut all = RankMetrics { started: self.started, ..ranks.next()?.clone() };
        for rank in ranks {
            all.running = add(all.running, rank.running);
            all.waiting = add(all.waiting, rank.waiting);
            all.kv_usage = larger(all.kv_usage, rank.kv_usage);
            all.awake = match (all.awake, rank.awake) {
                (Some(a), Some(b)) => Some(a && b),
                (a, b) => a.or(b),
            };
            all.block_tokens = all.block_tokens.or(rank.block_tokens);
            all.prompt_tokens = add(all.prompt_tokens, rank.prompt_tokens);
        }
        Some(all)
    }
}

fn add(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Figure {
    Running,
    Waiting,
    KvUsage,
    SleepState,
    CacheConfig,
    PromptTokens,
}

/// Names of an engine's metrics, its rank label, and what each means.
struct Names {
    prefix: &'static [u8],
    rank_label: &'static str,
    figures: &'static [(&'static str, Figure)],
}

/// The Prometheus client library's own figure, the same for every engine.
const PROCESS_START: &[u8] = b"process_start_time_seconds ";

const VLLM: Names = Names {
    prefix: b"vllm:",
    rank_label: "engine",
    figures: &[
        ("num_requests_running", Figure::Running),
        ("num_requests_waiting", Figure::Waiting),
        ("kv_cache_usage_perc", Figure::KvUsage),
        ("gpu_cache_usage_perc", Figure::KvUsage),
        ("engine_sleep_state", Figure::SleepState),
        ("cache_config_info", Figure::CacheConfig),
        ("prompt_tokens_total", Figure::PromptTokens),
    ],
};

const SGLANG: Names = Names {
    prefix: b"sglang:",
    rank_label: "dp_rank",
    figures: &[
        ("num_running_reqs", Figure::Running),
        ("num_queue_reqs", Figure::Waiting),
        ("token_usage", Figure::KvUsage),
        ("prompt_tokens_total", Figure::PromptTokens),
    ],
};

const TRTLLM: Names = Names {
    prefix: b"trtllm_",
    rank_label: "rank",
    figures: &[
        ("num_requests_running", Figure::Running),
        ("num_requests_waiting", Figure::Waiting),
        ("kv_cache_utilization", Figure::KvUsage),
    ],
};

fn names(engine: Engine) -> &'static Names {
    match engine {
        Engine::Vllm => &VLLM,
        Engine::Sglang => &SGLANG,
        Engine::TensorRtLlm => &TRTLLM,
    }
}

/// Takes a page in pieces of any size.
#[derive(Debug)]
pub struct PageParser {
    engine: Engine,
    partial: Vec<u8>,
    skipping: bool,
    metrics: EngineMetrics,
}

impl PageParser {
    /// For a page of this engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine, partial: Vec::new(), skipping: false, metrics: EngineMetrics::default() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&piece[..end], &piece[end + 1..]);
            if self.skipping {
                self.skipping = false;
            } else if self.partial.is_empty() {
                line_of(self.engine, line, &mut self.metrics);
            } else {
                self.partial.extend_from_slice(line);
                line_of(self.engine, &self.partial, &mut self.metrics);
            }
            self.partial.clear();
            piece = rest;
        }
        if self.skipping {
            return;
        }
        if self.partial.len() + piece.len() > MAX_LINE {
            self.partial.clear();
            self.skipping = true;
        } else {
            self.partial.extend_from_slice(piece);
        }
    }

    /// The page is complete.
    pub fn finish(mut self) -> EngineMetrics {
        if !self.skipping && !self.partial.is_empty() {
            line_of(self.engine, &self.partial, &mut self.metrics);
        }
        self.metrics
    }
}

fn line_of(engine: Engine, line: &[u8], metrics: &mut EngineMetrics) {
    if let Some(rest) = line.strip_prefix(PROCESS_START) {
        let value = std::str::from_utf8(rest).ok().and_then(|text| text.trim().parse::<f64>().ok());
        metrics.started = value.filter(|value| value.is_finite()).or(metrics.started);
        return;
    }
    let names = names(engine);
    let Some(rest) = line.strip_prefix(names.prefix) else { return };
    let end = rest.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t')).unwrap_or(rest.len());
    let Some((_, figure)) = names.figures.iter().find(|(name, _)| name.as_bytes() == &rest[..end]) else { return };
    let Ok(tail) = std::str::from_utf8(&rest[end..]) else { return };
    let Some((labels, value)) = split_labels(tail) else { return };

    let rank = match label(labels, names.rank_label) {
        None => 0,
        Some(text) => match text.parse::<u32>() {
            Ok(rank) if rank <= MAX_RANK => rank,
            _ => return,
        },
    };
    let value = value.split_ascii_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) else { return };
    let rank = metrics.ranks.entry(rank).or_default();
    match figure {
        Figure::Running => rank.running = larger(rank.running, Some(value)),
        Figure::Waiting => rank.waiting = larger(rank.waiting, Some(value)),
        Figure::KvUsage => rank.kv_usage = larger(rank.kv_usage, Some(value.min(1.0))),
        // One of several models' counters may be missing at first: their sum still only grows.
        Figure::PromptTokens => rank.prompt_tokens = add(rank.prompt_tokens, Some(value)),
        Figure::SleepState => {
            if label(labels, "sleep_state").as_deref() == Some("awake") {
                rank.awake = Some(value != 0.0);
            }
        }
        Figure::CacheConfig => {
            let size = label(labels, "block_size").and_then(|text| text.parse().ok()).filter(|size| *size > 0);
            rank.block_tokens = rank.block_tokens.or(size);
        }
    }
}

/// `{labels} value` to labels and value; labels are empty where there are none.
fn split_labels(tail: &str) -> Option<(&str, &str)> {
    let Some(inner) = tail.strip_prefix('{') else { return Some(("", tail)) };
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some((&inner[..at], &inner[at + 1..])),
            _ => {}
        }
    }
    None
}

/// The value of a label, with escapes resolved.
fn label(labels: &str, wanted: &str) -> Option<String> {
    let mut rest = labels;
    loop {
        let (name, tail) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = tail.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        if name.trim_matches([',', ' ']) == wanted {
            return Some(value);
        }
        rest = tail.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests;
