//! `kinference-sim`: a fleet of simulated vLLM workers.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use kinference_bench::sim::{Config, Fleet};
use tokio::signal::unix::{SignalKind, signal};

/// Simulates vLLM workers: OpenAI HTTP, KV cache events, metrics, and step times of an 8B model on one current GPU.
///
/// Prints where everything listens and then `ready workers=N`. Ends on SIGINT or SIGTERM.
///
/// Faults, on the control endpoint as `POST /fault {"worker": 1, "kind": KIND}` or on a worker's own port as
/// `POST /sim/fault {"kind": KIND}`:
///   die             close listeners and connections at once, like a killed process
///   refuse          like die, and stay so through a reset: a listed worker that never answers
///   revive          start a dead worker: empty cache, new block hashes, event numbers from 0 (control endpoint only)
///   restart         die, then revive
///   hang, resume    accept connections but answer nothing, until resumed
///   drop_events     lose the next "count" event batches (with "from_replay": true in replay as well)
///   reorder_events  send the next "count" pairs of event batches the wrong way round
/// `POST /reset` there restarts every worker; `GET /stats` shows state and figures.
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    /// JSON file of settings, named as the flags are with _ for -; flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of workers [default: 3]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Address to bind [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// Give worker i the address HOST + i and all of them the same ports, as Pods have
    #[arg(long)]
    own_addresses: bool,
    /// HTTP port of worker 0, worker i has this plus i; 0: free ports [default: 18200]
    #[arg(long, value_name = "PORT")]
    http_port: Option<u16>,
    /// KV event port of worker 0; 0: free ports [default: 18300]
    #[arg(long, value_name = "PORT")]
    kv_port: Option<u16>,
    /// Event replay port of worker 0; 0: free ports [default: 18400]
    #[arg(long, value_name = "PORT")]
    replay_port: Option<u16>,
    /// Port of the control endpoint; 0: a free one [default: none]
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// Name of the served model [default: tiny]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Name of a LoRA adapter to serve as well; may be repeated
    #[arg(long = "lora-module", value_name = "NAME")]
    lora_modules: Vec<String>,
    /// Folder with tokenizer.json and tokenizer_config.json [default: a small one, built in]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Tokens in a KV cache block [default: 16]
    #[arg(long, value_name = "N")]
    block_size: Option<usize>,
    /// Blocks in the KV cache [default: 25000, which is 400,000 tokens on an 80 GB GPU]
    #[arg(long, value_name = "N")]
    num_blocks: Option<usize>,
    /// Longest prompt plus answer in tokens [default: 131072, or what the cache holds]
    #[arg(long, value_name = "N")]
    max_model_len: Option<usize>,
    /// Tokens that one step may process [default: 8192]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<usize>,
    /// Requests that may run at once [default: 256]
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<usize>,
    /// Fixed time of a step in microseconds [default: 7000]
    #[arg(long, value_name = "US")]
    step_base_us: Option<f64>,
    /// Time per prefill token in microseconds [default: 40]
    #[arg(long, value_name = "US")]
    prefill_token_us: Option<f64>,
    /// Time per running request and step in microseconds [default: 80]
    #[arg(long, value_name = "US")]
    seq_us: Option<f64>,
    /// Factor on all step times [default: 1]
    #[arg(long, value_name = "FACTOR")]
    time_scale: Option<f64>,
    /// Steps take no time, the same as --time-scale 0
    #[arg(long, conflicts_with = "time_scale")]
    instant: bool,
    /// Length of answers to requests that do not set ignore_eos, end token included [default: 128]
    #[arg(long, value_name = "N")]
    answer_tokens: Option<usize>,
    /// Tokens in one chunk of a stream [default: 1]
    #[arg(long, alias = "stream-chunk", value_name = "N")]
    stream_interval: Option<usize>,
    /// Leave prompt_tokens_details out of usage
    #[arg(long)]
    no_prompt_tokens_details: bool,
    /// Publish no KV cache events
    #[arg(long)]
    no_kv_events: bool,
    /// Event batches kept for replay [default: 10000]
    #[arg(long, value_name = "N")]
    replay_buffer: Option<usize>,
    /// Topic of event messages [default: kv@HOST@MODEL]
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// A worker that refuses connections from the start; may be repeated
    #[arg(long, value_name = "WORKER")]
    refuse: Vec<usize>,
}

impl Arguments {
    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                serde_json::from_str(&text).with_context(|| format!("{} is not a file of settings", path.display()))?
            }
        };
        macro_rules! take {
            ($($field:ident)*) => { $(if let Some(value) = self.$field { config.$field = value; })* };
        }
        take!(workers host http_port kv_port replay_port model block_size num_blocks max_num_batched_tokens max_num_seqs);
        take!(step_base_us prefill_token_us seq_us time_scale answer_tokens stream_interval replay_buffer);
        config.control_port = self.control_port.or(config.control_port);
        config.tokenizer = self.tokenizer.or(config.tokenizer);
        config.max_model_len = self.max_model_len.or(config.max_model_len);
        config.topic = self.topic.or(config.topic);
        config.lora_modules.extend(self.lora_modules);
        config.refuse.extend(self.refuse);
        config.own_addresses |= self.own_addresses;
        if self.instant {
            config.time_scale = 0.0;
        }
        config.prompt_tokens_details &= !self.no_prompt_tokens_details;
        config.kv_events &= !self.no_kv_events;
        Ok(config)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let config = Arguments::parse().into_config()?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let fleet = Fleet::start(config).await?;
    let mut out = std::io::stdout().lock();
    for (index, addresses) in fleet.workers().iter().enumerate() {
        writeln!(out, "worker={index} http={} kv={} replay={}", addresses.http, addresses.kv, addresses.replay)?;
    }
    if let Some(control) = fleet.control() {
        writeln!(out, "control={control}")?;
    }
    writeln!(out, "ready workers={}", fleet.workers().len())?;
    out.flush()?;
    drop(out);
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    fleet.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent_and_win_over_defaults() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
        let config = |flags: &[&str]| {
            Arguments::try_parse_from(["kinference-sim"].iter().chain(flags))
                .map(|arguments| arguments.into_config().unwrap())
        };
        assert_eq!(config(&[]).unwrap(), Config::default());
        let told =
            config(&["--workers", "5", "--instant", "--refuse", "1", "--refuse", "2", "--no-kv-events"]).unwrap();
        let expected =
            Config { workers: 5, time_scale: 0.0, refuse: vec![1, 2], kv_events: false, ..Config::default() };
        assert_eq!(told, expected);
        assert!(config(&["--instant", "--time-scale", "1"]).is_err());
    }
}
