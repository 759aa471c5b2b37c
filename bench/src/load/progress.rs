//! Shows how far a run is: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::record::Record;

/// How often a line is printed where there is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(5);

/// The progress of one run, on standard error.
#[derive(Debug)]
pub struct Progress {
    how: How,
    label: String,
    state: Mutex<State>,
}

#[derive(Debug)]
enum How {
    Silent,
    Bar(ProgressBar),
    Lines { total: usize },
}

#[derive(Debug)]
struct State {
    done: usize,
    failed: usize,
    last_line: Instant,
}

impl Progress {
    /// Shows nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self::with(How::Silent, "")
    }

    /// Shows `total` requests under a label.
    #[must_use]
    pub fn new(label: &str, total: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::with(How::Lines { total }, label);
        }
        let bar = ProgressBar::new(total as u64);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} requests {msg} {elapsed}");
        // The template is fixed; were it wrong, the default would do.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self::with(How::Bar(bar), label)
    }

    fn with(how: How, label: &str) -> Self {
        let state = State { done: 0, failed: 0, last_line: Instant::now() };
        Self { how, label: label.to_owned(), state: Mutex::new(state) }
    }

    /// Counts a request.
    pub fn done(&self, record: &Record) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += 1;
        state.failed += usize::from(record.failure.is_some());
        match &self.how {
            How::Silent => {}
            How::Bar(bar) => {
                bar.set_position(state.done as u64);
                if state.failed > 0 {
                    bar.set_message(format!("({} failed)", state.failed));
                }
            }
            How::Lines { total } => {
                if state.last_line.elapsed() >= LINES_EVERY {
                    state.last_line = Instant::now();
                    eprintln!("{}: {}/{total} requests, {} failed", self.label, state.done, state.failed);
                }
            }
        }
    }

    /// Ends the display.
    pub fn finish(&self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
