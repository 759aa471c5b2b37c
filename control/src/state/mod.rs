//! The core: what the fleet is, and what filters must be told. Pure: inputs and the time come in, messages to push come
//! out; no clock, no I/O, no runtime. The edges around it read files, scrape, listen and send.

mod backend;
mod configure;
mod feed;
mod fidelity;
mod fleet;
mod health;
mod places;
mod plan;
mod policies;
mod providers;
mod reports;
mod set;
mod show;
mod source;
mod status;
mod traffic;
mod view;
mod wire;
mod worker;

use std::net::SocketAddr;

use kinference_api::ObjectKey;
use kinference_protocol::v1;

use crate::events::FeedMessage;
use crate::scrape::parse::EngineMetrics;

pub use backend::Push;
pub use fidelity::{Check, Verdict};
pub use fleet::Fleet;
pub use health::ScrapeError;
pub use plan::{Faults, Model, Outcome, Outcomes, Plan, PolicyPlan, Standing};
pub use policies::{PolicyStatus, PoolStatus, SignalStatus, WorkerCount};
pub use providers::ProviderStatus;
pub use show::NoSnapshot;
pub use source::{SourceReport, SourceStatus};
pub use status::{BackendStatus, FilterStatus, IndexStatus, SetStatus, Status, WorkerStatus};
pub use wire::Full;
pub use worker::{EventHealth, Subscription, WorkerName};

/// What the edges tell the core.
#[derive(Debug)]
pub enum Input {
    /// The configuration was read: what is to be in force, or why nothing of it can be and the last good one stays.
    Config(Result<Plan, Faults>),
    /// How the source of the configuration fares.
    Source(SourceReport),
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
