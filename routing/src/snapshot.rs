//! What the control service said: configuration, workers, prefixes; and how its messages are applied.

mod config;
mod replica;

use std::collections::BTreeMap;

use kinference_protocol::v1;

use crate::prefix::PrefixIndex;
use crate::ttft::LatencyModel;

pub use config::{Config, Target, WorkerSet};
pub use replica::{ApplyError, Changes, Outcome, Replica};

/// One consistent state.
#[derive(Debug)]
pub struct Snapshot {
    /// Identifies the control service's run and grid.
    pub epoch: u64,
    /// Counts the changes within the epoch.
    pub sequence: u64,
    /// What is configured.
    pub config: Config,
    /// Workers by id.
    pub workers: BTreeMap<u32, Worker>,
    /// Who holds which prefixes.
    pub index: PrefixIndex,
}

/// One worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Id, and place in the prefix index.
    pub id: u32,
    /// Id of its worker set.
    pub set: u32,
    /// Name within its set.
    pub name: String,
    /// `ip:port`, as the proxy knows its host.
    pub address: String,
    /// What is known of its health.
    pub state: v1::WorkerState,
    /// Rank to ask for.
    pub rank: Option<u32>,
    /// What it has to do; `None` when that is not known.
    pub load: Option<v1::Load>,
    /// How its time to first token is predicted.
    pub latency: LatencyModel,
}

impl From<&v1::Worker> for Worker {
    fn from(wire: &v1::Worker) -> Self {
        Self {
            id: wire.id,
            set: wire.worker_set,
            name: wire.name.clone(),
            address: wire.address.clone(),
            state: wire.state(),
            rank: wire.data_parallel_rank,
            load: wire.load.filter(|load| load.known),
            latency: wire.latency.as_ref().map(LatencyModel::from).unwrap_or_default(),
        }
    }
}
