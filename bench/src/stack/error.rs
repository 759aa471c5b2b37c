//! What can go wrong with a stack.

use std::path::PathBuf;

use thiserror::Error;

use crate::load::LoadError;

/// Why a stack cannot be started or used.
#[derive(Debug, Error)]
pub enum StackError {
    /// A program that was not built or installed.
    #[error("{what} is missing: {looked}; `cargo xtask {task}` {does}")]
    Missing {
        /// The program or file.
        what: &'static str,
        /// Where it was looked for.
        looked: String,
        /// The task that mends it.
        task: &'static str,
        /// What that task does.
        does: &'static str,
    },
    /// The system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A process ended, or did not say or do what it should in time.
    #[error("{process}: {reason}\n--- the end of {log} ---\n{tail}")]
    Process {
        /// Its name.
        process: String,
        /// What is wrong.
        reason: String,
        /// Its log.
        log: String,
        /// The end of the log.
        tail: String,
    },
    /// Something did not come about in time.
    #[error("{what} did not come about within {seconds} s; last seen: {last}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: f64,
        /// What was seen the last time.
        last: String,
    },
    /// A process did not answer.
    #[error(transparent)]
    Http(#[from] LoadError),
    /// Something was asked of the simulator, and the workers run elsewhere.
    #[error("the workers of this stack are not simulated by it: they have no faults and no figures")]
    NotSimulated,
    /// A process answered that it will not.
    #[error("{what} was refused: HTTP {status}: {body}")]
    Refused {
        /// What was asked for.
        what: String,
        /// The status.
        status: u16,
        /// The answer.
        body: String,
    },
}

impl StackError {
    /// Wraps an error of the file system: `io("read", path)`.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
