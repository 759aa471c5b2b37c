//! What keeps a load from being run at all. What goes wrong with single requests is counted, not raised.

use thiserror::Error;

/// Why a load cannot be run.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The endpoint's URL cannot be used.
    #[error("{url:?} is not an endpoint: {reason}; write it as http://HOST:PORT")]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting out of its range.
    #[error("{0}")]
    Setting(String),
    /// The endpoint did not answer.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// The transport's own words.
        reason: String,
    },
    /// The list of models is of no use.
    #[error("{url}/v1/models names no model ({reason}); name one with --model")]
    NoModel {
        /// The endpoint.
        url: String,
        /// What came instead.
        reason: String,
    },
}
