//! Fuel of a decision: what the headers and body callbacks of one request take, for prompts of different sizes, against
//! 64 workers that hold the first half of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::fleet::{Fleet, MODEL};
use crate::http::{Answer, Request};
use crate::proxy::{Options, Proxy};

/// Sizes of the prompts, in KB.
pub const SIZES_KB: [usize; 3] = [4, 32, 220];
/// Workers that are compared.
const WORKERS: u32 = 64;
/// A figure may grow by this much, in percent.
const TOLERANCE: u64 = 10;

/// Fuel by the size of the prompt, "4 KB".
pub type Table = BTreeMap<String, u64>;

/// A text that looks like prose, the same on each run.
#[must_use]
pub fn prose(bytes: usize) -> String {
    const WORDS: [&str; 12] =
        ["the", "worker", "holds", "a", "prefix", "of", "every", "prompt", "that", "it", "has", "answered"];
    let mut text = String::with_capacity(bytes + 16);
    let mut state = 7u64;
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(if state >> 60 == 0 { '\n' } else { ' ' });
    }
    text.truncate(bytes);
    text
}

/// Measures.
///
/// # Errors
/// When there is no module, or a request does not reach a worker.
pub fn measure() -> Result<Table> {
    let mut table = Table::new();
    for size in SIZES_KB {
        let mut fleet = Fleet::new(WORKERS);
        let prompt = prose(size * 1000);
        for worker in 0..WORKERS {
            fleet.cache(worker, &Fleet::chat_text(&prompt)[..prompt.len() / 2]);
        }
        let options = Options { hosts: fleet.hosts(), ..Options::default() };
        let mut proxy = Proxy::start(options)?.context("the filter refuses its configuration")?;
        proxy.advance(100);
        ensure!(proxy.push(0, &fleet.full()), "the filter opened no stream");
        let request = Request::chat(MODEL, &prompt);
        // The first request finds everything new: allocations grow once.
        for _ in 0..2 {
            proxy.take_fuel(0);
            let exchange = proxy.send(0, &request);
            table.insert(format!("{size} KB"), proxy.take_fuel(0));
            ensure!(proxy.forwarded(exchange).is_some(), "the request reached no worker");
            proxy.answer(exchange, &Answer::json(200, "{}"));
            // What was just sent is forgotten, so that half of the prompt is new again.
            proxy.advance(4_000);
            ensure!(proxy.push(0, &fleet.heartbeat()), "the filter lost its stream");
        }
    }
    Ok(table)
}

fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fuel.json"))
}

/// The checked-in table.
///
/// # Errors
/// When it cannot be read.
pub fn kept() -> Result<Table> {
    let text =
        std::fs::read_to_string(file()).context("wasm-tests/fuel.json cannot be read; write it with --update")?;
    Ok(serde_json::from_str(&text)?)
}

/// Writes the checked-in table.
///
/// # Errors
/// When it cannot be written.
pub fn keep(table: &Table) -> Result<Table> {
    std::fs::write(file(), serde_json::to_string_pretty(table)? + "\n")?;
    Ok(table.clone())
}

/// The figures side by side.
#[must_use]
pub fn table(measured: &Table, kept: &Table) -> String {
    let mut text = format!("{:>8} {:>14} {:>14} {:>8}\n", "prompt", "fuel", "kept", "change");
    for size in SIZES_KB.map(|size| format!("{size} KB")) {
        let (now, before) = (measured.get(&size).copied().unwrap_or(0), kept.get(&size).copied().unwrap_or(0));
        let change = if before == 0 { 0.0 } else { (now as f64 / before as f64 - 1.0) * 100.0 };
        let _ = writeln!(text, "{size:>8} {now:>14} {before:>14} {change:>+7.1}%");
    }
    text
}

/// Fails when a figure grew too much.
///
/// # Errors
/// Names the figures that did.
pub fn check(measured: &Table, kept: &Table) -> Result<()> {
    let grown: Vec<String> = measured
        .iter()
        .filter(|(size, fuel)| **fuel > kept.get(*size).copied().unwrap_or(0) * (100 + TOLERANCE) / 100)
        .map(|(size, fuel)| format!("{size}: {fuel}"))
        .collect();
    if !grown.is_empty() {
        bail!(
            "decisions take more than {TOLERANCE} % more fuel than wasm-tests/fuel.json says ({}); make them cheaper, or \
             keep the new figures with `cargo run -p kinference-wasm-tests --bin fuel -- --update`",
            grown.join(", ")
        );
    }
    Ok(())
}
