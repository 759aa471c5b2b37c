//! The core: what the fleet is, and what filters must be told. Pure: inputs and the time come in, messages to push come
//! out; no clock, no I/O, no runtime. The edges around it read files, scrape, listen and send.

mod backend;
mod configure;
mod feed;
mod fidelity;
mod fleet;
mod health;
mod places;
mod policies;
mod reports;
mod set;
mod status;
mod traffic;
mod view;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kinference_api::ObjectKey;
use kinference_api::compile::FleetSpec;
use kinference_protocol::v1;

use crate::events::FeedMessage;
use crate::scrape::parse::EngineMetrics;
use crate::tokenizer::Tokenizer;

pub use backend::Push;
pub use fidelity::{Check, Verdict};
pub use fleet::Fleet;
pub use health::ScrapeError;
pub use policies::{PolicyStatus, PoolStatus, SignalStatus, WorkerCount};
pub use status::Status;
pub use wire::Full;
pub use worker::{Subscription, WorkerName};

/// A worker set's tokenizer, or why there is none.
pub type Model = Result<Arc<Tokenizer>, String>;

/// A valid configuration, compiled, with what its files refer to.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// One for each gateway backend.
    pub fleets: Vec<FleetSpec>,
    /// By worker set.
    pub models: BTreeMap<ObjectKey, Model>,
    /// The policies, those too that are for no gateway backend.
    pub policies: BTreeMap<ObjectKey, PolicyPlan>,
    /// What most likely is not meant, one a line.
    pub warnings: Vec<String>,
}

/// A policy of a valid configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyPlan {
    /// The gateway backends that it is for.
    pub backends: Vec<ObjectKey>,
    /// The file that it is in.
    pub file: PathBuf,
    /// What most likely is not meant in it.
    pub warnings: Vec<String>,
}

/// Why a configuration cannot be used. Nothing of it takes force then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Every problem: what, where, and what to do.
    pub problems: Vec<String>,
    /// Those of each policy.
    pub policies: BTreeMap<ObjectKey, Vec<String>>,
}

impl From<Vec<String>> for Faults {
    /// Problems of no policy.
    fn from(problems: Vec<String>) -> Self {
        Self { problems, policies: BTreeMap::new() }
    }
}

/// What the edges tell the core.
#[derive(Debug)]
pub enum Input {
    /// The configuration was read: a plan, or all that is wrong.
    Config(Result<Plan, Faults>),
    /// Metrics of an engine process were read.
    Scraped {
        /// Its worker set.
        set: ObjectKey,
        /// Where it serves HTTP.
        address: SocketAddr,
        /// When the read began; milliseconds.
        began: u64,
        /// What came of it.
        result: Result<EngineMetrics, ScrapeError>,
    },
    /// A worker's KV events, or what befell their stream. `worker_id` is the subscription's id.
    Feed(FeedMessage),
    /// A worker's answer to a [`Check`].
    Checked {
        /// The worker set.
        set: ObjectKey,
        /// The worker's HTTP address.
        address: SocketAddr,
        /// The check's generation.
        generation: u64,
        /// What came of it.
        verdict: Verdict,
    },
    /// A filter's stream began.
    StreamOpened {
        /// Number of the stream, never used again.
        stream: u64,
        /// The gateway backend, "namespace/name".
        backend: String,
        /// What the filter said first.
        hello: v1::Hello,
    },
    /// What a filter did.
    Reports {
        /// The stream.
        stream: u64,
        /// A batch, oldest first.
        reports: v1::Reports,
    },
    /// What a filter holds.
    Applied {
        /// The stream.
        stream: u64,
        /// Epoch, sequence and size of its index.
        applied: v1::Applied,
    },
    /// What a filter refused.
    Rejected {
        /// The stream.
        stream: u64,
        /// Which message, and why.
        rejected: v1::Rejected,
    },
    /// A filter's stream ended.
    StreamClosed {
        /// The stream.
        stream: u64,
    },
}

#[cfg(test)]
mod tests;
