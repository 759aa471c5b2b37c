//! The status as people read it.

use std::collections::BTreeMap;
use std::fmt::Write;

use kinference_api::plain;

use super::resources;
use crate::paint::Paint;
use crate::status::{Backend, Envoy, Events, Filter, Latency, Source, Status, Worker, WorkerSet};
use crate::table::lay_out;

/// The whole report.
pub(super) fn render(status: &Status, paint: Paint) -> String {
    let mut report = Report { text: String::new(), paint };
    report.config(status);
    if let Some(source) = &status.source {
        report.source(source);
    }
    for (name, backend) in &status.backends {
        report.backend(name, backend);
    }
    for (name, set) in &status.worker_sets {
        report.worker_set(name, set);
    }
    report.text.push_str(&resources::table(&status.resources, paint));
    report.filters(status);
    report.envoys(&status.envoys);
    report.text
}

struct Report {
    text: String,
    paint: Paint,
}

impl Report {
    fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn title(&mut self, kind: &str, name: &str, rest: &str) {
        let title = self.paint.bold(format!("{kind} {name}").trim_end());
        self.line(format!("\n{title}  {rest}").trim_end());
    }

    fn detail(&mut self, label: &str, value: &str) {
        let label = self.paint.dim(&format!("{label:<9}"));
        self.line(&format!("  {label} {value}"));
    }

    fn config(&mut self, status: &Status) {
        let config = &status.config;
        let state = match (config.valid, config.in_force) {
            (true, _) => self.paint.green("valid"),
            (false, true) => self.paint.red("invalid; the last good one stays in force"),
            (false, false) => self.paint.red("none in force"),
        };
        let version = self.paint.dim(&format!("kinference-control {}", clean(&status.version)));
        let loads = if config.loads == 1 { "loaded once".into() } else { format!("loaded {} times", config.loads) };
        self.line(&format!("configuration {state}, {loads}  {version}"));
        for problem in &config.problems {
            self.line(&format!("  {}", clean(problem)));
        }
    }

    fn source(&mut self, source: &Source) {
        let namespaces = match source.namespaces.as_slice() {
            [] => "all namespaces".to_string(),
            [one] => format!("namespace {}", clean(one)),
            several => format!("namespaces {}", clean(&several.join(", "))),
        };
        let state = match (source.connected, source.sync_age_seconds) {
            (true, _) if source.problems.is_empty() => self.paint.green("in step"),
            (_, Some(age)) => self.paint.red(&format!("last in step {age:.0} s ago")),
            (_, None) => self.paint.red("never in step"),
        };
        self.line(&format!("cluster {} ({namespaces}) {state}", clean(&source.kubernetes)));
        for problem in &source.problems {
            self.line(&format!("  {}", clean(problem)));
        }
    }

    fn backend(&mut self, name: &str, backend: &Backend) {
        let epoch = format!("epoch {} sequence {}", backend.epoch, backend.sequence);
        self.title("gateway backend", &clean(name), &epoch);
        let (connected, current) = (backend.filters_connected, backend.filters_current);
        let filters = format!("{connected} connected, {current} current");
        let filters = match (connected, current) {
            (0, _) => self.paint.yellow(&filters),
            (a, b) if a == b => filters,
            _ => self.paint.yellow(&filters),
        };
        self.detail("filters", &filters);
        let index = &backend.prefix_index;
        let mut text = format!(
            "{} chunks of {} bytes, {} of {}",
            thousands(index.chunks),
            index.chunk_bytes,
            size(index.bytes),
            size(index.max_bytes)
        );
        if index.chunk_bytes > index.wanted_chunk_bytes {
            let wanted = format!(" (coarser than the {} asked for, to stay within)", index.wanted_chunk_bytes);
            text.push_str(&self.paint.yellow(&wanted));
        }
        self.detail("index", &text);
        let rules = match backend.rules.as_slice() {
            [] => "none in force".to_string(),
            rules => format!("{} in force: {}", rules.len(), clean(&rules.join(", "))),
        };
        self.detail("rules", &rules);
        if backend.worker_sets.is_empty() {
            let none = self.paint.yellow("none");
            self.detail("sets", &none);
        } else {
            self.detail("sets", &clean(&backend.worker_sets.join(", ")));
        }
    }

    fn worker_set(&mut self, name: &str, set: &WorkerSet) {
        let model = format!("model {}", clean(&set.model));
        self.title("worker set", &clean(name), &model);
        let mode = match &set.routed_because {
            Some(why) => self.paint.yellow(&format!("{}: {}", clean(&set.prefix_mode), clean(why))),
            None => clean(&set.prefix_mode),
        };
        self.detail("prefixes", &mode);
        let fidelity = match set.prompt_fidelity {
            Some(true) => self.paint.green("the filter's text equals the engine's"),
            Some(false) => self.paint.red("the filter's text differs from the engine's"),
            None => self.paint.dim("not checked yet"),
        };
        self.detail("fidelity", &fidelity);
        match &set.tokenizer_problem {
            Some(problem) => {
                let problem = self.paint.red(&clean(problem));
                self.detail("tokenizer", &problem);
            }
            None => {
                let text = format!("{:.2} bytes a token, blocks of {} tokens", set.bytes_per_token, set.block_tokens);
                self.detail("tokenizer", &text);
            }
        }
        if set.workers.is_empty() {
            let none = self.paint.yellow("none");
            return self.detail("workers", &none);
        }
        self.workers(&set.workers);
    }

    fn workers(&mut self, workers: &BTreeMap<String, Worker>) {
        let header =
            ["WORKER", "ADDRESS", "STATE", "QUEUED", "RUNNING", "KV", "IN FLIGHT", "CACHED", "EVENTS", "TTFT MODEL"];
        let row = |(name, worker): (&String, &Worker)| {
            let load = &worker.load;
            let known = |text: String| if load.known { text } else { "?".into() };
            vec![
                clean(name),
                clean(&worker.address),
                clean(&worker.state),
                known(figure(load.queued_requests)),
                known(figure(load.running_requests)),
                known(format!("{:.0} %", load.kv_cache_usage * 100.0)),
                load.in_flight.to_string(),
                thousands(worker.cached_tokens),
                events(worker.events.as_ref()),
                ttft_model(&worker.latency),
            ]
        };
        let rows: Vec<Vec<String>> = workers.iter().map(row).collect();
        let paint = self.paint;
        self.text.push_str(&lay_out("  ", &header, &rows, |column, cell| match (column, cell) {
            (None, title) => paint.dim(title),
            (Some(2), "ready") => paint.green(cell),
            (Some(2), "unready") => paint.red(cell),
            (Some(2), _) | (Some(3..=5), "?") => paint.yellow(cell),
            (Some(8), _) if cell != "current" && cell != "none" => paint.yellow(cell),
            _ => cell.to_string(),
        }));
        for (name, worker) in workers {
            let event_problem = worker.events.as_ref().and_then(|events| events.last_problem.as_ref());
            for (what, problem) in [("metrics", &worker.metrics_problem), ("events", &event_problem.cloned())] {
                if let Some(problem) = problem {
                    let text = format!("  {} {what}: {}", clean(name), clean(problem));
                    let text = self.paint.yellow(&text);
                    self.line(&text);
                }
            }
        }
    }

    fn filters(&mut self, status: &Status) {
        if status.filters.is_empty() {
            let none = self.paint.yellow("none connected");
            return self.title("filters", "", &none);
        }
        self.title("filters", "", "");
        let header = ["PROXY", "VM", "GATEWAY BACKEND", "EPOCH", "SEQUENCE", "CHUNKS", "REFUSED", "BUILD"];
        let row = |filter: &Filter| {
            let current = status.backends.get(&filter.backend).map(|backend| backend.epoch);
            let epoch = match filter.epoch {
                0 => "none yet".to_string(),
                epoch if Some(epoch) == current => "current".to_string(),
                epoch => epoch.to_string(),
            };
            vec![
                clean(&filter.proxy),
                clean(&filter.vm),
                clean(&filter.backend),
                epoch,
                filter.sequence.to_string(),
                thousands(filter.index_chunks),
                filter.rejections.to_string(),
                clean(&filter.build),
            ]
        };
        let rows: Vec<Vec<String>> = status.filters.iter().map(row).collect();
        let paint = self.paint;
        self.text.push_str(&lay_out("  ", &header, &rows, |column, cell| match (column, cell) {
            (None, title) => paint.dim(title),
            (Some(3), _) if cell != "current" => paint.yellow(cell),
            (Some(6), _) if cell != "0" => paint.red(cell),
            _ => cell.to_string(),
        }));
        for filter in &status.filters {
            if let Some(reason) = &filter.last_rejection {
                let text = format!("  {} {} refused: {}", clean(&filter.proxy), clean(&filter.vm), clean(reason));
                let text = self.paint.red(&text);
                self.line(&text);
            }
        }
    }

    fn envoys(&mut self, envoys: &[Envoy]) {
        if envoys.is_empty() {
            return;
        }
        self.title("envoys", "", "");
        for envoy in envoys {
            let state = match &envoy.refused {
                Some(reason) => self.paint.red(&format!("refused its endpoints: {}", clean(reason))),
                None if envoy.acknowledged == envoy.sent => self.paint.green("has the newest endpoints"),
                None => self.paint.yellow("has not taken the newest endpoints yet"),
            };
            self.line(&format!("  {}  {state}", clean(&envoy.node)));
        }
    }
}

fn events(events: Option<&Events>) -> String {
    let Some(events) = events else {
        return "none".into();
    };
    let state = match (events.connected, events.current) {
        (true, true) => "current",
        (true, false) => "catching up",
        (false, _) => "not connected",
    };
    let mut text = state.to_string();
    for (count, what) in [(events.gaps, "gap"), (events.restarts, "restart")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}{}", if count == 1 { "" } else { "s" });
        }
    }
    text
}

fn ttft_model(latency: &Latency) -> String {
    if latency.samples == 0 {
        return "defaults".into();
    }
    let per_thousand = latency.ms_per_token * 1000.0;
    format!("{:.0} ms + {per_thousand:.0} ms/1k tokens ({} samples)", latency.base_ms, thousands(latency.samples))
}

/// A figure without needless decimals.
fn figure(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Text from elsewhere without what a terminal would obey; a dash for none.
pub(super) fn clean(text: &str) -> String {
    if text.is_empty() {
        return "-".into();
    }
    plain(text).into_owned()
}
