//! Ways in which a worker can be made to misbehave.

use serde::{Deserialize, Serialize};

use super::worker::Worker;

/// A fault switch, in JSON by its `kind`: `{"kind":"drop_events","count":3}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Closes listeners and connections at once, like a killed process. The port refuses connections until the worker is revived.
    Die,
    /// Like `die`, but a reset of the fleet leaves it so: a listed worker that never answers.
    Refuse,
    /// Starts a dead or refusing worker: empty cache, new block hashes, event numbers from 0.
    Revive,
    /// `die`, then `revive`.
    Restart,
    /// Accepts connections but answers nothing, makes no step and sends no event.
    Hang,
    /// Ends `hang`; what was waiting goes on.
    Resume,
    /// Loses the next event batches on their way. Their numbers are used up.
    DropEvents {
        /// Batches to lose.
        #[serde(default = "one")]
        count: u64,
        /// Whether replay has lost them too.
        #[serde(default)]
        from_replay: bool,
    },
    /// Sends the next event batches in the wrong order: each pair the wrong way round.
    ReorderEvents {
        /// Pairs to swap.
        #[serde(default = "one")]
        count: u64,
    },
}

fn one() -> u64 {
    1
}

impl Worker {
    /// Applies a fault that a running worker can take by itself; false for those that start or end it.
    pub(super) fn switch(&self, fault: &Fault) -> bool {
        match fault {
            Fault::Hang => {
                self.hang.send_replace(true);
            }
            Fault::Resume => {
                self.hang.send_replace(false);
            }
            Fault::DropEvents { count, from_replay } => self.delivery().drop_next(*count, *from_replay),
            Fault::ReorderEvents { count } => self.delivery().reorder_next(*count),
            Fault::Die | Fault::Refuse | Fault::Revive | Fault::Restart => return false,
        }
        true
    }
}
