//! Settings of a simulated fleet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::StepLoad;
use super::error::SimError;

/// Every setting of a simulated fleet. All workers of a fleet are alike.
///
/// The defaults describe an 8-billion-parameter model in bf16 on one current data-centre GPU (80 GB, 3.35 TB/s,
/// 990 TFLOP/s dense); each field says how its default follows from that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of workers, 1 to 1024. Worker i uses port `http_port + i`, and so on.
    pub workers: usize,
    /// Address that all sockets bind, and the host part of the default event topic.
    pub host: IpAddr,
    /// Whether worker i has the address `host` + i to itself, with the same ports as all others, as Pods have. Otherwise all
    /// share one address and differ in their ports. On Linux all of 127.0.0.0/8 can be bound.
    pub own_addresses: bool,
    /// OpenAI HTTP port of worker 0; 0 gives every worker a free port of its own.
    pub http_port: u16,
    /// Port of worker 0's KV event publisher; 0 gives every worker a free port.
    pub kv_port: u16,
    /// Port of worker 0's event replay socket; 0 gives every worker a free port.
    pub replay_port: u16,
    /// Port of the fleet's control endpoint (faults, reset, statistics); 0 is any free port, absent is none.
    pub control_port: Option<u16>,
    /// Name of the served model.
    pub model: String,
    /// Names of LoRA adapters served beside the model; an adapter's id is its position plus one.
    pub lora_modules: Vec<String>,
    /// Folder with `tokenizer.json` and `tokenizer_config.json` (and `chat_template.jinja`); absent: the small built-in one.
    pub tokenizer: Option<PathBuf>,

    /// Tokens in a KV cache block. vLLM's default on GPUs is 16.
    pub block_size: usize,
    /// Blocks in the KV cache; as in vLLM the first one is reserved. The default holds 400,000 tokens:
    /// 80 GB x 0.92 less 16 GB of weights and 5 GB of activations, at 131 KB a token (32 layers, 8 KV heads of 128, bf16).
    pub num_blocks: usize,
    /// Longest prompt plus answer in tokens; absent: 131,072 or what the cache holds, whichever is less.
    pub max_model_len: Option<usize>,
    /// Tokens that one engine step may process. vLLM's default for serving on such a GPU is 8192.
    pub max_num_batched_tokens: usize,
    /// Requests that may run at once.
    pub max_num_seqs: usize,

    /// Fixed time of a step in microseconds: reading 16 GB of weights takes 4.8 ms; launch and sampling take the rest.
    pub step_base_us: f64,
    /// Time per prefill token in microseconds: 16 GFLOP a token at 40 % of the peak, about 25,000 tokens/s.
    pub prefill_token_us: f64,
    /// Time per running request and step in microseconds: reading 2,000 tokens of its KV cache (0.26 GB).
    pub seq_us: f64,
    /// Factor on all step times: 1 is as calibrated, 0.1 ten times faster, 0 instant.
    pub time_scale: f64,

    /// Length of an answer, end token included, when the request does not say `ignore_eos`.
    pub answer_tokens: usize,
    /// Tokens in one chunk of a stream (vLLM's `--stream-interval`); the first token always comes alone.
    pub stream_interval: usize,
    /// Whether usage has `prompt_tokens_details` (vLLM's `--enable-prompt-tokens-details`).
    pub prompt_tokens_details: bool,

    /// Whether workers publish KV cache events.
    pub kv_events: bool,
    /// Event batches kept for replay.
    pub replay_buffer: usize,
    /// Topic of event messages; absent: `kv@HOST@MODEL`.
    pub topic: Option<String>,
    /// Workers that refuse connections from the start, until they are revived.
    pub refuse: Vec<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 3,
            host: IpAddr::from([127, 0, 0, 1]),
            own_addresses: false,
            http_port: 18200,
            kv_port: 18300,
            replay_port: 18400,
            control_port: None,
            model: "tiny".into(),
            lora_modules: Vec::new(),
            tokenizer: None,
            block_size: 16,
            num_blocks: 25_000,
            max_model_len: None,
            max_num_batched_tokens: 8192,
            max_num_seqs: 256,
            step_base_us: 7000.0,
            prefill_token_us: 40.0,
            seq_us: 80.0,
            time_scale: 1.0,
            answer_tokens: 128,
            stream_interval: 1,
            prompt_tokens_details: true,
            kv_events: true,
            replay_buffer: 10_000,
            topic: None,
            refuse: Vec::new(),
        }
    }
}

impl Config {
    /// Defaults with free ports everywhere and a control endpoint: what tests want.
    pub fn ephemeral() -> Self {
        Self { http_port: 0, kv_port: 0, replay_port: 0, control_port: Some(0), ..Self::default() }
    }

    /// Checks every setting against its range and against the others.
    ///
    /// # Errors
    /// [`SimError::Config`] names the setting, its value and what it must be.
    pub fn validate(&self) -> Result<(), SimError> {
        let fail = |message: String| Err(SimError::Config(message));
        if !(1..=1024).contains(&self.workers) {
            return fail(format!("workers is {}; it must be 1 to 1024", self.workers));
        }
        for (name, port) in
            [("http-port", self.http_port), ("kv-port", self.kv_port), ("replay-port", self.replay_port)]
        {
            if !self.own_addresses && usize::from(port) + self.workers - 1 > usize::from(u16::MAX) {
                return fail(format!(
                    "{name} {port} plus {} workers goes past port 65535; use a lower port",
                    self.workers
                ));
            }
        }
        for (name, value) in [
            ("block-size", self.block_size),
            ("max-num-batched-tokens", self.max_num_batched_tokens),
            ("max-num-seqs", self.max_num_seqs),
            ("answer-tokens", self.answer_tokens),
            ("stream-interval", self.stream_interval),
            ("replay-buffer", self.replay_buffer),
        ] {
            if !(1..=1 << 30).contains(&value) {
                return fail(format!("{name} is {value}; it must be 1 to {}", 1 << 30));
            }
        }
        if !(2..=1 << 26).contains(&self.num_blocks) {
            return fail(format!(
                "num-blocks is {}; it must be 2 to {} (the first block is reserved)",
                self.num_blocks,
                1 << 26
            ));
        }
        if self.own_addresses && self.worker_host(self.workers - 1).is_none() {
            return fail(format!(
                "host {} plus {} workers goes past the last address; use a lower one",
                self.host, self.workers
            ));
        }
        let capacity = self.cache_tokens();
        if let Some(length) = self.max_model_len
            && !(2..=capacity).contains(&length)
        {
            return fail(format!(
                "max-model-len is {length}, but the cache holds {capacity} tokens; use 2 to {capacity} or raise num-blocks"
            ));
        }
        for (name, value) in [
            ("step-base-us", self.step_base_us),
            ("prefill-token-us", self.prefill_token_us),
            ("seq-us", self.seq_us),
            ("time-scale", self.time_scale),
        ] {
            if !(0.0..=1e9).contains(&value) {
                return fail(format!("{name} is {value}; it must be 0 to 1e9"));
            }
        }
        if self.model.is_empty() || self.lora_modules.iter().any(|name| name.is_empty() || *name == self.model) {
            return fail("model and lora-modules need names that are not empty and differ from each other".into());
        }
        if let Some(worker) = self.refuse.iter().find(|worker| **worker >= self.workers) {
            return fail(format!("refuse names worker {worker}, but workers are 0 to {}", self.workers - 1));
        }
        Ok(())
    }

    /// The address of a worker; none when there is no such address.
    pub fn worker_host(&self, worker: usize) -> Option<IpAddr> {
        if !self.own_addresses {
            return Some(self.host);
        }
        let number = u32::try_from(worker).ok()?;
        match self.host {
            IpAddr::V4(host) => host.to_bits().checked_add(number).map(|bits| Ipv4Addr::from_bits(bits).into()),
            IpAddr::V6(host) => host.to_bits().checked_add(number.into()).map(|bits| Ipv6Addr::from_bits(bits).into()),
        }
    }

    /// What a worker's ports are above those of worker 0.
    pub(super) fn port_offset(&self, worker: usize) -> u16 {
        if self.own_addresses { 0 } else { worker as u16 }
    }

    /// The longest prompt plus answer in tokens.
    pub(super) fn model_len(&self) -> usize {
        self.max_model_len.unwrap_or_else(|| self.cache_tokens().min(131_072))
    }

    /// The topic of event messages.
    pub(super) fn event_topic(&self) -> String {
        self.topic.clone().unwrap_or_else(|| format!("kv@{}@{}", self.host, self.model))
    }

    /// How long a step with this load takes.
    pub(super) fn step_time(&self, load: StepLoad) -> Duration {
        let micros = self.step_base_us
            + self.prefill_token_us * load.prefill_tokens as f64
            + self.seq_us * load.sequences as f64;
        Duration::from_secs_f64(micros * self.time_scale / 1e6)
    }

    fn cache_tokens(&self) -> usize {
        (self.num_blocks - 1).saturating_mul(self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_round_trip() {
        let config = Config::default();
        config.validate().unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
        assert!(serde_json::from_str::<Config>(r#"{"wokers":3}"#).is_err());
    }

    #[test]
    fn a_bad_setting_is_named() {
        let last = IpAddr::from([255, 255, 255, 254]);
        let cases: [(Config, &str); 6] = [
            (Config { host: last, own_addresses: true, ..Config::default() }, "host"),
            (Config { workers: 0, ..Config::default() }, "workers"),
            (Config { http_port: 65_535, ..Config::default() }, "http-port"),
            (Config { num_blocks: 10, max_model_len: Some(145), ..Config::default() }, "max-model-len"),
            (Config { time_scale: f64::NAN, ..Config::default() }, "time-scale"),
            (Config { refuse: vec![3], ..Config::default() }, "refuse"),
        ];
        for (config, name) in cases {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn workers_differ_in_ports_or_in_addresses() {
        let shared = Config::default();
        assert_eq!((shared.worker_host(2), shared.port_offset(2)), (Some([127, 0, 0, 1].into()), 2));
        let own = Config { own_addresses: true, http_port: 65_535, ..Config::default() };
        own.validate().unwrap();
        assert_eq!((own.worker_host(2), own.port_offset(2)), (Some([127, 0, 0, 3].into()), 0));
        let six = Config { host: "fd00::ffff".parse().unwrap(), ..own };
        assert_eq!(six.worker_host(1), "fd00::1:0".parse().ok());
    }

    #[test]
    fn step_time_is_linear_and_scaled() {
        let config = Config { time_scale: 0.5, ..Config::default() };
        let load = StepLoad { prefill_tokens: 1000, sequences: 10 };
        assert_eq!(config.step_time(load), Duration::from_micros((7000 + 40_000 + 800) / 2));
    }
}
