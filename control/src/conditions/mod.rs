//! What the status of each resource says. Pure: what the fleet knows and what came of each resource go in, conditions and
//! figures come out; [`merge`] says what a status becomes by them, [`pace`] when that is worth a write.
//!
//! `control/README.md` has the table of conditions and reasons; a test keeps the two equal.

mod backend;
mod finding;
pub mod merge;
pub mod pace;
mod policy;
mod pool;
mod provider;
pub mod reasons;
mod round;
mod worker_set;

use std::collections::BTreeMap;

use kinference_api::{Kind, ObjectKey};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::state::{Outcomes, Status};

pub use finding::{Finding, Truth};

/// What is to be said of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Assessed {
    /// The generation that this is said of; none for a resource of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// In the order of the kind's documentation.
    pub conditions: Vec<Finding>,
    /// The other fields of its status, by name.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}

/// By kind and name.
pub type Assessments = BTreeMap<(Kind, ObjectKey), Assessed>;

/// What is to be said of every resource that there is.
#[must_use]
pub fn assess(status: &Status, outcomes: &Outcomes) -> Assessments {
    let one = |((kind, key), outcome): (&(Kind, ObjectKey), _)| {
        let (conditions, figures) = match kind {
            Kind::GatewayBackend => backend::assess(status, key, outcome),
            Kind::InferencePool => pool::assess(status, key, outcome),
            Kind::InferenceProvider => (provider::assess(status, key, outcome), Map::new()),
            Kind::InferencePolicy => policy::assess(status, key, outcome),
            Kind::InferenceWorkerSet => worker_set::assess(status, key, outcome),
        };
        let assessed = Assessed { observed_generation: outcome.generation, conditions, figures };
        ((*kind, key.clone()), assessed)
    };
    outcomes.iter().map(one).collect()
}

/// The fields of a status as they stand in JSON.
fn figures(of: impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(mut fields)) => {
            // They have a place of their own.
            fields.remove("conditions");
            fields.remove("observedGeneration");
            fields
        }
        // The status types of the kinds are objects.
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
