//! Fuel of a decision: what the headers and body callbacks of one request take, for prompts of different sizes, against
//! 64 workers that hold the first half of each; and the same with rules in force.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use kinference_protocol::v1;

use crate::fleet::{Fleet, MODEL};
use crate::http::{Answer, Request};
use crate::proxy::{Options, Proxy};

/// Sizes of the prompts in KB, and how many rules are in force.
const CASES: [(usize, usize); 4] = [(4, 0), (4, 50), (32, 0), (220, 0)];
/// Workers that are compared.
const WORKERS: u32 = 64;
/// A figure may grow by this much, in percent.
const TOLERANCE: u64 = 10;

/// Fuel by the size of the prompt and the rules, "4 KB" or "4 KB, 50 rules".
pub type Table = BTreeMap<String, u64>;

fn name((size, rules): (usize, usize)) -> String {
    if rules == 0 { format!("{size} KB") } else { format!("{size} KB, {rules} rules") }
}

/// Rules as people keep them: most are for other tenants, models or tags; every tenth matches and looks at each worker.
fn rules(count: usize) -> Vec<v1::Rule> {
    let rule = |number: usize| {
        let mut when = v1::When::default();
        let mut rule = v1::Rule { name: format!("house/rule-{number}"), ..v1::Rule::default() };
        match number % 10 {
            0 => {
                when.models = vec!["ti*".to_owned()];
                let bound = v1::Bound { signal: 0, bound: Some(v1::bound::Bound::Below(0.95)) };
                rule.require = Some(v1::Requirements { workers: vec![bound], ..v1::Requirements::default() });
            }
            1..4 => when.tenants = vec![format!("team-{number}"), format!("team-{number}-*")],
            4..7 => when.models = vec![format!("another-{number}-*")],
            _ => when.tags_any = vec![format!("tag-{number}"), "pii-detected".to_owned()],
        }
        rule.when = Some(when);
        rule
    };
    (0..count).map(rule).collect()
}

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
    for case in CASES {
        let (size, rules_in_force) = case;
        let mut fleet = Fleet::new(WORKERS);
        if rules_in_force > 0 {
            let usage = v1::WindowedSignal { signal: v1::Signal::KvCacheUsage.into(), ..v1::WindowedSignal::default() };
            fleet.config.signals = vec![usage];
            fleet.workers.iter_mut().for_each(|worker| worker.signals = vec![0.5]);
            fleet.config.rules = rules(rules_in_force);
        }
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
            table.insert(name(case), proxy.take_fuel(0));
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
    let mut text = format!("{:>16} {:>14} {:>14} {:>8}\n", "prompt", "fuel", "kept", "change");
    for size in CASES.map(name) {
        let (now, before) = (measured.get(&size).copied().unwrap_or(0), kept.get(&size).copied().unwrap_or(0));
        let change = if before == 0 { 0.0 } else { (now as f64 / before as f64 - 1.0) * 100.0 };
        let _ = writeln!(text, "{size:>16} {now:>14} {before:>14} {change:>+7.1}%");
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
