//! Where the configuration comes from: a folder of files of the kinds.

mod models;
mod policies;
pub mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kinference_api::{ObjectKey, Severity, compile};

use crate::state::{Faults, Plan};
use models::Models;

/// Reads the folder of the configuration, and the tokenizers that it names.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    models: Models,
    /// The files' fingerprint just before they were read last.
    seen: Option<u64>,
    /// Where the policies of the last valid configuration were.
    policy_files: BTreeMap<ObjectKey, PathBuf>,
}

impl Loader {
    /// For this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, models: Models::default(), seen: None, policy_files: BTreeMap::new() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads everything. A tokenizer that cannot be read is no fault of the configuration: its worker set runs in
    /// routed mode, and the plan says why.
    ///
    /// # Errors
    /// Every problem of the files, one a line: what, where, and what to do.
    pub fn load(&mut self) -> Result<Plan, Faults> {
        self.seen = Some(watch::config_fingerprint(&self.folder));
        let loaded = kinference_api::source::examine(std::slice::from_ref(&self.folder));
        let of_severity = |severity: Severity| loaded.problems.iter().filter(move |p| p.severity == severity);
        let errors: Vec<String> = of_severity(Severity::Error).map(ToString::to_string).collect();
        if !errors.is_empty() {
            let policies = policies::faults(&loaded, &self.policy_files);
            return Err(Faults { problems: errors, policies });
        }
        let mut plan = Plan {
            policies: policies::plans(&loaded),
            warnings: of_severity(Severity::Warning).map(ToString::to_string).collect(),
            ..Plan::default()
        };
        let resources = loaded.resources;
        for key in resources.backends.keys() {
            plan.fleets.push(compile::fleet(&resources, key).map_err(|error| Faults::from(vec![error.to_string()]))?);
        }
        if plan.fleets.is_empty() {
            // Most likely a mount that is not there (yet). Taking every worker away would be the worst answer.
            let problem = format!("{}: no file here has a GatewayBackend; add one", self.folder.display());
            return Err(vec![problem].into());
        }
        self.models.begin();
        for set in plan.fleets.iter().flat_map(|fleet| &fleet.worker_sets) {
            if !plan.models.contains_key(&set.key) {
                plan.models.insert(set.key.clone(), self.models.load(set));
            }
        }
        self.models.end();
        self.policy_files = plan.policies.iter().map(|(key, policy)| (key.clone(), policy.file.clone())).collect();
        Ok(plan)
    }

    /// True when a file that was or would be read is not as it was when it was read.
    pub fn changed(&self) -> bool {
        self.seen != Some(watch::config_fingerprint(&self.folder)) || self.models.changed()
    }

    /// True after the first load.
    pub fn loaded_before(&self) -> bool {
        self.seen.is_some()
    }
}

#[cfg(test)]
mod tests;
