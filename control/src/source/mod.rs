//! Where the configuration comes from: a folder of files of the kinds, or a Kubernetes cluster.

pub mod judge;
pub mod kubernetes;
mod models;
mod secrets;
pub mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kinference_api::source::Loaded;
use kinference_api::{Kind, ObjectKey, Severity};

use crate::state::{Faults, Plan};
use models::Models;
use secrets::Secrets;

/// Reads the folder of the configuration, and the tokenizers that it names.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    models: Models,
    secrets: Secrets,
    /// The files' fingerprint just before they were read last.
    seen: Option<u64>,
    /// Where the policies of the last valid configuration were.
    policy_files: BTreeMap<ObjectKey, PathBuf>,
    /// The last valid configuration.
    good: Option<Plan>,
    /// What is wrong with the files as they were read last.
    faults: Option<Faults>,
}

impl Loader {
    /// For this folder, and the folder of Secrets where there is one.
    pub fn new(folder: PathBuf, secrets: Option<PathBuf>) -> Self {
        let secrets = Secrets::new(secrets);
        let (models, policy_files) = (Models::default(), BTreeMap::new());
        Self { folder, models, secrets, seen: None, policy_files, good: None, faults: None }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads everything. A tokenizer that cannot be read is no fault of the configuration: its worker set runs in
    /// routed mode, and the plan says why. While the files are wrong as they were before, the plan is the last valid one,
    /// with its tokenizers and Secrets as they are now.
    ///
    /// # Errors
    /// Every problem of the files, one a line: what, where, and what to do.
    pub fn load(&mut self) -> Result<Plan, Faults> {
        let now = Some(watch::config_fingerprint(&self.folder));
        if self.seen == now
            && let (Some(good), Some(faults)) = (&self.good, &self.faults)
        {
            let mut plan = good.clone();
            plan.faults = faults.clone().beside(&good.faults.outcomes);
            self.refer(&mut plan);
            return Ok(plan);
        }
        self.seen = now;
        let read = self.read();
        if let Ok(plan) = &read {
            self.good = Some(plan.clone());
        }
        self.faults = read.as_ref().err().cloned();
        read
    }

    fn read(&mut self) -> Result<Plan, Faults> {
        let loaded = kinference_api::source::examine_resources(std::slice::from_ref(&self.folder));
        let mut plan = judge::together(&loaded).map_err(|faults| self.blame(faults, &loaded))?;
        if plan.fleets.is_empty() {
            // Most likely a mount that is not there (yet). Taking every worker away would be the worst answer.
            let problem = format!("{}: no file here has a GatewayBackend; add one", self.folder.display());
            return Err(vec![problem].into());
        }
        self.refer(&mut plan);
        let policies = loaded.resources.policies.into_iter();
        self.policy_files = policies.map(|(key, policy)| (key, policy.origin.file().to_path_buf())).collect();
        Ok(plan)
    }

    /// Reads what the plan refers to.
    fn refer(&mut self, plan: &mut Plan) {
        let sets = plan.fleets.iter().flat_map(|fleet| &fleet.worker_sets);
        plan.models = self.models.load(sets, None);
        plan.credentials = self.secrets.load(&plan.fleets);
    }

    /// Of a policy that was valid before, and is in no document that can be read now, the problems are those of its
    /// file.
    fn blame(&self, mut faults: Faults, loaded: &Loaded) -> Faults {
        let lost = |key: &ObjectKey| !loaded.resources.policies.contains_key(key);
        for (key, file) in self.policy_files.iter().filter(|(key, _)| lost(key)) {
            let of_file = loaded.problems.iter().filter(|p| p.resource.is_none() && p.file == *file);
            let problems = of_file.filter(|p| p.severity == Severity::Error).map(ToString::to_string);
            let problems: Vec<String> = problems.collect();
            if !problems.is_empty() {
                let outcome = faults.outcomes.entry((Kind::InferencePolicy, key.clone())).or_default();
                outcome.problems.extend(problems);
            }
        }
        faults
    }

    /// True when a file that was or would be read is not as it was when it was read.
    pub fn changed(&self) -> bool {
        self.seen != Some(watch::config_fingerprint(&self.folder)) || self.models.changed() || self.secrets.changed()
    }

    /// True after the first load.
    pub fn loaded_before(&self) -> bool {
        self.seen.is_some()
    }
}

#[cfg(test)]
mod tests;
