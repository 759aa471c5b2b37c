//! What every measurement stands on: prompts, workers that answer at once, and a stack of processes in front of them.

use std::sync::Arc;

use super::corpus::Corpus;
use super::error::CostError;
use super::instant::InstantWorkers;
use crate::load::Client;
use crate::sim::{Config, Fleet};
use crate::stack::{Balancing, Stack, StackOptions};

/// Prompt sizes in KB of 1024 bytes, the ones that peers were measured with.
pub(super) const SIZES: [usize; 3] = [4, 32, 220];
/// Workers, as with peers.
pub(super) const WORKERS: usize = 4;

/// What outlives single stacks.
pub(super) struct Bed {
    pub(super) corpus: Arc<Corpus>,
    /// A simulated worker that lends its tokenizer and its pages.
    engine: Fleet,
}

/// A stack whose workers answer at once.
pub(super) struct Rig {
    pub(super) stack: Stack,
    pub(super) workers: InstantWorkers,
}

impl Bed {
    /// Makes the prompts.
    ///
    /// # Errors
    /// The simulated worker cannot be started.
    pub(super) async fn new() -> Result<Self, CostError> {
        let config = Config { workers: 1, kv_events: false, time_scale: 0.0, ..Config::ephemeral() };
        let model = config.model.clone();
        let engine = Fleet::start(config).await?;
        let address = engine.workers().first().map(|worker| worker.http);
        let address = address.ok_or_else(|| CostError::Unexpected("there is no simulated worker".into()))?;
        let sizes = SIZES.map(|kb| kb * 1024);
        let corpus = Arc::new(Corpus::new(&Client::of(address), &model, &sizes).await?);
        Ok(Self { corpus, engine })
    }

    /// Starts a stack in front of new workers. Without the filter, Envoy stays alone: the control service, which told it
    /// where the workers are, ends, so that it costs nothing and follows no events.
    ///
    /// # Errors
    /// A process that does not start.
    pub(super) async fn rig(&self, balancing: Balancing, workers: usize) -> Result<Rig, CostError> {
        let mut rig = self.rig_with_control(balancing, workers).await?;
        if balancing != Balancing::Kinference {
            rig.stack.kill_control();
        }
        Ok(rig)
    }

    /// Starts a stack in front of new workers, in any case with the control service.
    ///
    /// # Errors
    /// A process that does not start.
    pub(super) async fn rig_with_control(&self, balancing: Balancing, workers: usize) -> Result<Rig, CostError> {
        let engine = self.engine.workers()[0].http;
        let workers = InstantWorkers::start(workers, &self.corpus, engine).await?;
        let running = Some(workers.addresses.clone());
        let stack = Stack::start(StackOptions { balancing, running, ..StackOptions::default() }).await?;
        Ok(Rig { stack, workers })
    }
}

impl Rig {
    /// Fails when a process ended that should not.
    ///
    /// # Errors
    /// The process, with the end of its log.
    pub(super) fn check(&mut self, balancing: Balancing) -> Result<(), CostError> {
        match (self.stack.ended(), balancing) {
            (Some(error), Balancing::Kinference) => Err(error.into()),
            _ => Ok(()),
        }
    }
}
