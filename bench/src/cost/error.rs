//! Why cost cannot be measured.

use thiserror::Error;
use zeromq::ZmqError;

use crate::load::LoadError;
use crate::sim::SimError;
use crate::stack::StackError;

/// Why cost cannot be measured.
#[derive(Debug, Error)]
pub enum CostError {
    /// A process.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A process does not answer.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The simulator, which lends its tokenizer.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A socket of the benchmark's own workers.
    #[error("a worker of the benchmark cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// An event socket of the benchmark's own workers.
    #[error("a worker of the benchmark cannot publish events: {0}")]
    Zmq(#[from] ZmqError),
    /// Something is not as a measurement needs it, so that its figures would be wrong.
    #[error("the figures would be wrong: {0}")]
    Unexpected(String),
}
