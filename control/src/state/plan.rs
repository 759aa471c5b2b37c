//! What sources tell the core: what is to be in force, and what came of every resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_api::compile::FleetSpec;
use kinference_api::kinds::InferencePolicySpec;
use kinference_api::{Kind, ObjectKey};

use crate::credential::Credentials;
use crate::tokenizer::Tokenizer;

/// A worker set's tokenizer, or why there is none.
pub type Model = Result<Arc<Tokenizer>, String>;

/// What is to be in force, compiled, with what the configuration refers to.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// One for each gateway backend.
    pub fleets: Vec<FleetSpec>,
    /// By worker set.
    pub models: BTreeMap<ObjectKey, Model>,
    /// For the providers that state credentials.
    pub credentials: Credentials,
    /// The policies in force, those too that are for no gateway backend.
    pub policies: BTreeMap<ObjectKey, PolicyPlan>,
    /// What most likely is not meant, one a line.
    pub warnings: Vec<String>,
    /// True when nothing but workers changed since the plan before, so that no configuration was read anew.
    pub workers_only: bool,
    /// What of the configuration is not part of this plan, and why.
    pub faults: Faults,
}

/// A policy that is in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyPlan {
    /// The gateway backends that it is for.
    pub backends: Vec<ObjectKey>,
    /// What most likely is not meant in it.
    pub warnings: Vec<String>,
}

/// What is wrong with a configuration, or with a part of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// Every problem: what, where, and what to do.
    pub problems: Vec<String>,
    /// What came of each resource.
    pub outcomes: Outcomes,
}

impl From<Vec<String>> for Faults {
    /// Problems of no resource.
    fn from(problems: Vec<String>) -> Self {
        Self { problems, outcomes: Outcomes::new() }
    }
}

impl Faults {
    /// Nothing of what was read takes force: what was in force before stays, also in the place of what is wrong now.
    pub(crate) fn beside(mut self, before: &Outcomes) -> Self {
        for (id, outcome) in before.iter().filter(|(_, outcome)| outcome.standing != Standing::NotInForce) {
            match self.outcomes.get_mut(id) {
                Some(now) => now.standing = Standing::LastGood,
                None => drop(self.outcomes.insert(id.clone(), outcome.clone())),
            }
        }
        self
    }
}

/// What came of each resource that there is.
pub type Outcomes = BTreeMap<(Kind, ObjectKey), Outcome>;

/// What came of a resource as it was read last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// `metadata.generation` of the version that was read; `None` for one of a file.
    pub generation: Option<i64>,
    /// What is wrong with it: what, where, and what to do.
    pub problems: Vec<String>,
    /// What most likely is not meant in it.
    pub warnings: Vec<String>,
    /// Why a version without problems is not in force; `None` where it is, and where problems say it.
    pub held: Option<String>,
    /// Which version of it is in force.
    pub standing: Standing,
    /// The version that is in force in place of the one that was read, or will be once a gateway backend that it is for
    /// is in force; of policies only.
    pub last_good: Option<Arc<InferencePolicySpec>>,
}

/// Which version of a resource is in force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
    /// The one that was read last. With problems: it refers to what is not there, and is used without that.
    InForce,
    /// An earlier one, the last without problems.
    LastGood,
    /// None.
    #[default]
    NotInForce,
}
