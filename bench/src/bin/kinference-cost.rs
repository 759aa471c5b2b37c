//! `kinference-cost`: what `cargo xtask bench` runs once everything is built.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use kinference_bench::cost::{Part, Plan, into_results, markdown, measure, niceness, tables};

/// Measures what the gateway costs: a real Envoy with and without the filter, the control service, and workers that answer at
/// once. Prints tables, each with ratios to bare Envoy or to what peers were measured with. Takes about five minutes; other
/// programs that run meanwhile spoil the figures.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only this part; may be repeated
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// A small run of a minute: figures are rough
    #[arg(long)]
    quick: bool,
    /// Runs of the parts that compare with bare Envoy, of which medians are given [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    runs: Option<u16>,
    /// Write the figures to a file as JSON; - is standard output, then without tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the tables into the section on cost of a Markdown file, such as bench/RESULTS.md
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runs = arguments.runs.map_or(if arguments.quick { 1 } else { 3 }, usize::from);
    let plan = Plan { parts: arguments.only.clone(), quick: arguments.quick, runs };
    let begin = Instant::now();
    let report = tokio::select! {
        report = measure(&plan, |what| eprintln!("[{:>3} s] {what}", begin.elapsed().as_secs())) => report?,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted; nothing is reported"),
    };
    let json = serde_json::to_string_pretty(&report)? + "\n";
    let mut out = std::io::stdout();
    match arguments.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => out.write_all(json.as_bytes())?,
        path => {
            if let Some(path) = path {
                std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
            }
            writeln!(out, "\n{}", tables(&report))?;
        }
    }
    if let Some(path) = &arguments.results {
        let file = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            file => file.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let priority = match niceness() {
            0 => String::new(),
            other => format!("nice -n {other} "),
        };
        let command =
            std::env::args().skip(1).fold(priority + "cargo xtask bench", |command, word| command + " " + &word);
        let file = into_results(&file, &markdown(&report, &command));
        std::fs::write(path, file).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
