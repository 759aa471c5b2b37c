//! Where the configuration comes from: a folder of files of the kinds.

mod models;
pub mod watch;

use std::path::{Path, PathBuf};

use kinference_api::compile;

use crate::state::Plan;
use models::Models;

/// Reads the folder of the configuration, and the tokenizers that it names.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    models: Models,
    /// The files' fingerprint just before they were read last.
    seen: Option<u64>,
}

impl Loader {
    /// For this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, models: Models::default(), seen: None }
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
    pub fn load(&mut self) -> Result<Plan, Vec<String>> {
        self.seen = Some(watch::config_fingerprint(&self.folder));
        let resources = kinference_api::source::load(std::slice::from_ref(&self.folder))
            .map_err(|problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let mut plan = Plan::default();
        for key in resources.backends.keys() {
            plan.fleets.push(compile::fleet(&resources, key).map_err(|error| vec![error.to_string()])?);
        }
        if plan.fleets.is_empty() {
            // Most likely a mount that is not there (yet). Taking every worker away would be the worst answer.
            return Err(vec![format!("{}: no file here has a GatewayBackend; add one", self.folder.display())]);
        }
        self.models.begin();
        for set in plan.fleets.iter().flat_map(|fleet| &fleet.worker_sets) {
            if !plan.models.contains_key(&set.key) {
                plan.models.insert(set.key.clone(), self.models.load(set));
            }
        }
        self.models.end();
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
