//! All figures, as tables for a terminal and for `bench/RESULTS.md`.

use std::fmt::Write;

use serde::Serialize;

use super::decision::Decision;
use super::gateway::{Held, Point};
use super::idle::Idle;
use super::ingest::{Index, Ingest};
use super::lag::Lag;
use super::machine;
use super::peers::{ENDPOINT_PICKER, ENDPOINT_PICKER_CHUNK_US, ENDPOINT_PICKER_IDLE_PERCENT, EndpointPicker};
use super::streams::Streams;
use crate::load::{Table, figure};
use requests::{Events, processor, requests};

mod requests;

/// Where the section of cost begins and ends in a file of results.
const BEGIN: &str = "<!-- cost: written by `cargo xtask bench --results bench/RESULTS.md` -->";
const END: &str = "<!-- end of cost -->";

/// All figures. Parts that were not measured are empty.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: String,
    /// Cores that other programs kept busy meanwhile, on average: they spoil figures.
    pub others_cores: f64,
    /// Runs that medians are of.
    pub runs: usize,
    /// A small run: figures are rough.
    pub quick: bool,
    /// Decision time inside Envoy.
    pub decisions: Vec<Decision>,
    /// Requests with and without the filter.
    pub gateway: Vec<Point>,
    /// Memory after that load.
    pub memory: Option<Held>,
    /// Streamed chunks.
    pub streams: Option<Streams>,
    /// Events through the control service.
    pub events: Vec<Ingest>,
    /// The index after that.
    pub index: Option<Index>,
    /// From an event to the filter.
    pub lag: Option<Lag>,
    /// Idle processes.
    pub idle: Vec<Idle>,
}

impl Report {
    /// A report without figures.
    #[must_use]
    pub(super) fn new(runs: usize, quick: bool) -> Self {
        Self { machine: machine::name(), runs, quick, ..Self::default() }
    }
}

/// A table with a title and a remark.
struct Section {
    title: &'static str,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    remark: String,
}

/// Everything, for a terminal.
#[must_use]
pub fn tables(report: &Report) -> String {
    let mut out = format!("{}\n", preface(report));
    for Section { title, header, rows, remark } in sections(report) {
        let mut table = Table::new(header);
        rows.into_iter().for_each(|row| table.row(row));
        let _ = write!(out, "\n{title}\n\n{table}{remark}\n");
    }
    out
}

/// Everything, for a file of results; `command` made it.
#[must_use]
pub fn markdown(report: &Report, command: &str) -> String {
    let mut out = format!("Command: `{command}`. {}\n", preface(report));
    for Section { title, header, rows, remark } in sections(report) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let _ = write!(out, "\n### {title}\n\n| {} |\n|{}\n", header.join(" | "), " --- |".repeat(header.len()));
        rows.iter().for_each(|row| out.push_str(&line(row)));
        let _ = write!(out, "\n{remark}\n");
    }
    out
}

/// Puts the section of cost into a file of results: in the place of the one before, or at the end.
#[must_use]
pub fn into_results(file: &str, section: &str) -> String {
    let section = format!("{BEGIN}\n\n{}\n\n{END}", section.trim());
    if let Some((before, rest)) = file.split_once(BEGIN)
        && let Some((_, after)) = rest.split_once(END)
    {
        return [before, &section, after].concat();
    }
    let before = if file.trim().is_empty() { "# Results" } else { file.trim_end() };
    format!("{before}\n\n## Cost\n\n{section}\n")
}

fn preface(report: &Report) -> String {
    let quick = if report.quick { " This was a quick run: figures are rough." } else { "" };
    format!(
        "Machine: {}; other programs kept {} of a core busy meanwhile. Load generator, workers, Envoy (two worker threads, one VM each) and the control service share its cores, as with \
         the peers that figures are held against; those were measured on another machine of two cores. Figures of requests and chunks are medians of {} \
         runs, each with fresh processes; bare Envoy is the same configuration with ROUND_ROBIN and without the filter, and runs without a \
         control service.{quick}",
        report.machine,
        figure(report.others_cores),
        report.runs
    )
}

fn sections(report: &Report) -> Vec<Section> {
    let gateway = !report.gateway.is_empty();
    let all = [
        (!report.decisions.is_empty()).then(|| decisions(&report.decisions)),
        gateway.then(|| requests(&report.gateway, Events::Quiet)),
        gateway.then(|| processor(&report.gateway, Events::Quiet)),
        gateway.then(|| requests(&report.gateway, Events::New)),
        gateway.then(|| processor(&report.gateway, Events::New)),
        report.streams.as_ref().map(streams),
        (!report.events.is_empty()).then(|| events(&report.events)),
        report.index.map(|index| memory(&index, report.memory)),
        report.lag.as_ref().map(lag),
        (!report.idle.is_empty()).then(|| idle(&report.idle)),
    ];
    all.into_iter().flatten().collect()
}

fn times(ratio: f64) -> String {
    if ratio.is_finite() { format!("x {}", figure(ratio)) } else { "?".to_owned() }
}

fn picker(kb: usize, concurrency: usize) -> Option<&'static EndpointPicker> {
    ENDPOINT_PICKER.iter().find(|point| point.kb == kb && point.concurrency == concurrency)
}

fn or_unknown(value: Option<String>) -> String {
    value.unwrap_or_else(|| "?".to_owned())
}

fn decisions(decisions: &[Decision]) -> Section {
    let row = |decision: &Decision| {
        let added = picker(decision.kb, 1).map(|peer| peer.ms[0] - peer.bare_ms[0]);
        vec![
            format!("{} KB", decision.kb),
            figure(decision.p50_us),
            figure(decision.p99_us),
            decision.count.to_string(),
            or_unknown(added.map(|added| figure(added * 1000.0))),
            or_unknown(added.map(|added| times(added * 1000.0 / decision.p50_us))),
        ]
    };
    Section {
        title: "Decision time in V8 inside Envoy",
        header: vec!["prompt", "p50 us", "p99 us", "decisions", "llm-d's picker adds at p50, us", "that is"],
        rows: decisions.iter().map(row).collect(),
        remark: "By the filter's own clock, from the complete body to the written header: copy of the body out of Envoy, JSON, template, \
                 hashes, index, choice. Four workers, 16 families of prompts that share 90 %, one request at a time; the rest of each \
                 prompt is new, and workers publish it."
            .into(),
    }
}

fn streams(streams: &Streams) -> Section {
    let [picker, envoy] = ENDPOINT_PICKER_CHUNK_US;
    let row = |name: &str, us: f64| vec![name.to_owned(), figure(us), times(us / streams.envoy_bare_us)];
    Section {
        title: "Processor time for each streamed chunk",
        header: vec!["", "us", "to bare Envoy"],
        rows: vec![
            row("bare Envoy", streams.envoy_bare_us),
            row("Envoy with the filter", streams.envoy_us),
            row("Envoy with the filter, usage asked for", streams.envoy_usage_us),
            row("control", streams.control_us),
            vec!["llm-d's picker, and Envoy with it".into(), format!("{picker} and {envoy}"), "?".into()],
        ],
        remark: format!(
            "Streams of 200 chunks, 40 at a time, one chunk every 5 ms; requests included ({} chunks, {} of them in a piece).",
            streams.chunks,
            figure(1.0 / streams.pieces_per_chunk.max(1e-9))
        ),
    }
}

fn events(events: &[Ingest]) -> Section {
    let row = |ingest: &Ingest| {
        let alone = events.iter().find(|other| other.kind == ingest.kind && other.filters == 0);
        vec![
            ingest.kind.to_owned(),
            ingest.filters.to_string(),
            ingest.events.to_string(),
            ingest.blocks.to_string(),
            figure(ingest.seconds),
            figure(ingest.cpu_s),
            figure(ingest.events_per_core_s),
            figure(ingest.blocks_per_core_s),
            or_unknown(alone.map(|alone| times(ingest.cpu_s / alone.cpu_s))),
        ]
    };
    Section {
        title: "KV events through the control service",
        header: vec!["events", "filters told", "events", "blocks", "s", "CPU s", "events/core-s", "blocks/core-s", "CPU to no filter"],
        rows: events.iter().map(row).collect(),
        remark: "One worker publishes over ZMQ as fast as it can; the time ends when the control service's own counters have all. prefill: 32 \
                 blocks an event; decode: one block an event, 16 events a batch; evict: one removed block an event, 32 a batch. 16 tokens a block. \
                 With filters, Envoy takes processor time from the same cores meanwhile."
            .into(),
    }
}

fn memory(index: &Index, held: Option<Held>) -> Section {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut rows = vec![
        row("chunks (256 bytes of prompt each)", figure(index.chunks)),
        row("bytes a chunk in each filter", figure(index.filter_bytes_per_chunk)),
        row(
            "bytes a chunk in the control service (resident, with all it keeps of blocks)",
            figure(index.control_bytes_per_chunk),
        ),
        row("bytes for each block there", figure(index.control_bytes_per_block)),
        row("bytes of prompt text for each byte of a filter's index", figure(index.text_bytes_per_index_byte)),
    ];
    rows.extend(held.into_iter().flat_map(|held| {
        [
            row("after the requests above: bare Envoy, MB", figure(held.envoy_bare_mb)),
            row(
                "Envoy with the filter, MB",
                format!("{} ({})", figure(held.envoy_mb), times(held.envoy_mb / held.envoy_bare_mb)),
            ),
            row("control, MB", figure(held.control_mb)),
            row("chunks in the index then", figure(held.index_chunks)),
        ]
    }));
    Section {
        title: "Memory",
        header: vec!["", ""],
        rows,
        remark: "Envoy holds the index three times: in the VM of each worker thread, and of its main thread. SMG `cache_aware` held 278 MB, \
                 Dynamo's frontend 338 MB."
            .into(),
    }
}

fn lag(lag: &Lag) -> Section {
    Section {
        title: "From a KV event to the first decision that knows it",
        header: vec!["trials", "p50 ms", "p95 ms"],
        rows: vec![vec![lag.trials.to_string(), figure(lag.p50_ms), figure(lag.p95_ms)]],
        remark: "From publishing on the worker to the answer of the first request that was decided by it; a new prompt is asked for every \
                 millisecond or two. The control service tells filters every 20 ms."
            .into(),
    }
}

fn idle(idle: &[Idle]) -> Section {
    let row = |idle: &Idle| {
        vec![
            idle.workers.to_string(),
            if idle.filter { "with the filter" } else { "bare Envoy" }.to_owned(),
            figure(idle.envoy_percent),
            if idle.filter { figure(idle.control_percent) } else { "-".to_owned() },
            figure(idle.envoy_mb),
            if idle.filter { figure(idle.control_mb) } else { "-".to_owned() },
            times((idle.envoy_percent + idle.control_percent) / ENDPOINT_PICKER_IDLE_PERCENT),
        ]
    };
    Section {
        title: "Idle, in percent of one core",
        header: vec![
            "workers",
            "",
            "Envoy",
            "control",
            "Envoy MB",
            "control MB",
            "to llm-d's picker (30 with 100 workers)",
        ],
        rows: idle.iter().map(row).collect(),
        remark: "Every worker's metrics are read every 250 ms.".into(),
    }
}

#[cfg(test)]
mod tests;
