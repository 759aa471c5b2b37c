//! `kinference-demo`: what `cargo xtask demo` runs once everything is built.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use kinference_bench::demo::{compare, points, print, start};
use kinference_bench::stack::{Balancing, Stack};

/// Compares our filter with random balancing: a real Envoy, the control service and simulated vLLM workers, three workloads,
/// the same requests for both.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Write the figures to a file as JSON: workload, arm, figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep a stack up after the tables, to send requests of your own; Ctrl-C ends it
    #[arg(long)]
    hold: bool,
    /// Where the gateway listens with --hold; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18080")]
    listen: SocketAddr,
    /// Simulated workers; the load grows with them
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=64))]
    workers: u16,
    /// Seeds all prompts and arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only this workload; may be repeated
    #[arg(long, value_name = "NAME", value_parser = ["control", "shared-prefix", "multiturn"])]
    only: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tokio::select! {
        done = demo(&arguments) => done,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn demo(arguments: &Arguments) -> anyhow::Result<()> {
    let (begin, workers) = (Instant::now(), usize::from(arguments.workers));
    let all = points(workers, arguments.seed);
    let wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only.replace('-', " ") == name);
    let chosen: Vec<_> = all.into_iter().filter(|point| wanted(point.name())).collect();
    let report = compare(&chosen, workers, |what| eprintln!("[{:>3} s] {what}", begin.elapsed().as_secs())).await?;
    let mut out = std::io::stdout();
    writeln!(out, "\n{}", print(&report))?;
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.hold {
        let stack = start(Balancing::Kinference, workers, arguments.listen).await?;
        writeln!(out, "{}", invitation(&stack))?;
        hold(stack).await?;
    }
    Ok(())
}

/// What to do with a stack that is up.
fn invitation(stack: &Stack) -> String {
    let model = stack.model();
    format!(
        "The gateway is at http://{gateway} (model {model}); try\n\n  \
         curl -si http://{gateway}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\": \"{model}\", \"max_tokens\": 20, \"messages\": [{{\"role\": \"user\", \"content\": \"Which worker has this?\"}}]}}'\n\n\
         Status: http://{admin}/status and /metrics. Configuration and logs: {folder}\n\
         Ctrl-C ends everything.",
        gateway = stack.gateway(),
        admin = stack.control_address(),
        folder = stack.folder().display(),
    )
}

/// Waits until a process ends that should not; Ctrl-C ends the whole program.
async fn hold(mut stack: Stack) -> anyhow::Result<()> {
    loop {
        if let Some(error) = stack.ended() {
            bail!(error);
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}
