//! What of what was read takes force. Pure, and for every source the same: one validation, one compilation.
//!
//! Files take force [together] or not at all, as one edit. In a cluster every resource stands for itself, and the
//! [`Keeper`] keeps the last good version of those that are wrong.

mod keeper;

use std::collections::BTreeMap;

use kinference_api::compile::{self, FleetSpec, WorkerSetAssets, policies_of};
use kinference_api::problem::Finding;
use kinference_api::source::Loaded;
use kinference_api::{Kind, ObjectKey, Problem, Resources, Severity};
use kinference_routing::policy::Rules;

use crate::state::{Faults, Outcome, Outcomes, Plan, PolicyPlan, Standing};

pub use keeper::Keeper;

/// What was read from a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Read {
    /// All resources that can be read.
    pub resources: Resources,
    /// What is wrong with those that cannot.
    pub remarks: Vec<Remark>,
    /// `metadata.generation` of both.
    pub generations: BTreeMap<(Kind, ObjectKey), i64>,
}

/// Something that is wrong, or most likely not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Whose problem it is, where known.
    pub resource: Option<(Kind, ObjectKey)>,
    /// How bad it is.
    pub severity: Severity,
    /// Where in the resource, what, and what to do.
    pub text: String,
    /// True when the text names the file.
    pub has_file: bool,
}

impl From<&Problem> for Remark {
    fn from(problem: &Problem) -> Self {
        let resource = problem.resource.clone();
        Self { resource, severity: problem.severity, text: problem.to_string(), has_file: true }
    }
}

impl From<&Finding> for Remark {
    fn from(finding: &Finding) -> Self {
        let resource = finding.kind.map(|kind| (kind, finding.key.clone()));
        Self { resource, severity: finding.severity, text: finding.to_string(), has_file: false }
    }
}

impl Remark {
    /// For those who do not see whose it is.
    fn line(&self) -> String {
        match &self.resource {
            Some((kind, key)) if !self.has_file => format!("{kind} {key}: {}", self.text),
            _ => self.text.clone(),
        }
    }
}

/// Everything that files hold takes force, or nothing when there is an error.
///
/// # Errors
/// Every problem, and what came of each resource.
pub fn together(loaded: &Loaded) -> Result<Plan, Faults> {
    let resources = &loaded.resources;
    let remarks: Vec<Remark> = loaded.problems.iter().map(Remark::from).collect();
    let outcomes = outcomes(&remarks, &BTreeMap::new());
    let mut faults = Faults { problems: lines(&remarks, Severity::Error), outcomes };
    let mut fleets = Vec::new();
    if faults.problems.is_empty() {
        for backend in resources.backends.keys() {
            match fleet(resources, backend) {
                Ok(fleet) => fleets.push(fleet),
                Err(problem) => {
                    faults.problems.push(format!("GatewayBackend {backend}: {problem}"));
                    let outcome = faults.outcomes.entry((Kind::GatewayBackend, backend.clone())).or_default();
                    outcome.problems.push(problem);
                }
            }
        }
    }
    if !faults.problems.is_empty() {
        return Err(faults);
    }
    for id in ids(resources) {
        faults.outcomes.entry(id).or_default().standing = Standing::InForce;
    }
    let mut policies: BTreeMap<ObjectKey, PolicyPlan> = BTreeMap::new();
    for key in resources.policies.keys() {
        let outcome = faults.outcomes.get(&(Kind::InferencePolicy, key.clone()));
        let warnings = outcome.map(|outcome| outcome.warnings.clone()).unwrap_or_default();
        policies.insert(key.clone(), PolicyPlan { backends: Vec::new(), warnings });
    }
    for backend in resources.backends.keys() {
        for policy in policies_of(resources, backend) {
            policies.entry(policy.key.clone()).or_default().backends.push(backend.clone());
        }
    }
    Ok(Plan { fleets, policies, warnings: lines(&remarks, Severity::Warning), faults, ..Plan::default() })
}

/// What a gateway backend serves, as far as filters take it.
fn fleet(resources: &Resources, backend: &ObjectKey) -> Result<FleetSpec, String> {
    let fleet = compile::fleet(resources, backend).map_err(|error| error.to_string())?;
    // Whatever is found out about its worker sets.
    let assets = fleet.worker_sets.iter().map(|set| (set.key.clone(), WorkerSetAssets::default())).collect();
    let config = compile::config(&fleet, &assets).map_err(|error| error.to_string())?;
    Rules::compile(&config).map_err(|error| format!("filters would refuse its rules: {error}"))?;
    Ok(fleet)
}

fn lines(remarks: &[Remark], severity: Severity) -> Vec<String> {
    remarks.iter().filter(|remark| remark.severity == severity).map(Remark::line).collect()
}

/// What is said of each resource; none is in force yet.
fn outcomes(remarks: &[Remark], generations: &BTreeMap<(Kind, ObjectKey), i64>) -> Outcomes {
    let known = generations.iter().map(|(id, generation)| {
        let outcome = Outcome { generation: Some(*generation), ..Outcome::default() };
        (id.clone(), outcome)
    });
    let mut outcomes: Outcomes = known.collect();
    for remark in remarks {
        let Some(id) = &remark.resource else { continue };
        let outcome = outcomes.entry(id.clone()).or_default();
        match remark.severity {
            Severity::Error => outcome.problems.push(remark.text.clone()),
            Severity::Warning => outcome.warnings.push(remark.text.clone()),
        }
    }
    outcomes
}

fn ids(resources: &Resources) -> Vec<(Kind, ObjectKey)> {
    let of = |kind: Kind, key: &ObjectKey| (kind, key.clone());
    let mut ids: Vec<_> = resources.backends.keys().map(|key| of(Kind::GatewayBackend, key)).collect();
    ids.extend(resources.pools.keys().map(|key| of(Kind::InferencePool, key)));
    ids.extend(resources.providers.keys().map(|key| of(Kind::InferenceProvider, key)));
    ids.extend(resources.policies.keys().map(|key| of(Kind::InferencePolicy, key)));
    ids.extend(resources.worker_sets.keys().map(|key| of(Kind::InferenceWorkerSet, key)));
    ids
}

#[cfg(test)]
mod tests;
