//! What can go wrong when a fleet is started or told to misbehave.

use std::net::SocketAddr;
use std::path::PathBuf;

/// A fault of the simulator itself, not one it simulates.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A setting out of range, or two that contradict each other.
    #[error("{0}")]
    Config(String),
    /// A socket could not be bound.
    #[error("cannot bind {what} on {addr}: {source}; choose another port or stop what uses it")]
    Bind {
        /// What the socket is for.
        what: &'static str,
        /// The address that was asked for.
        addr: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A tokenizer file that cannot be used.
    #[error("tokenizer file {path}: {reason}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A worker number that the fleet does not have.
    #[error("there is no worker {worker}; workers are 0 to {last}")]
    NoSuchWorker {
        /// The number asked for.
        worker: usize,
        /// The highest number.
        last: usize,
    },
    /// A switch that makes no sense in the worker's present state.
    #[error("worker {worker} is {state}: {advice}")]
    WrongState {
        /// The worker.
        worker: usize,
        /// Its present state.
        state: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// A worker's thread or runtime could not be started or ended early.
    #[error("worker {worker} did not start: {reason}")]
    Start {
        /// The worker.
        worker: usize,
        /// The reason.
        reason: String,
    },
}
