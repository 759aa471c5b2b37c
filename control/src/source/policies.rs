//! What is to be said of each policy: whom it is for, and what is wrong with it.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use kinference_api::check::check;
use kinference_api::compile::policies_of;
use kinference_api::source::Loaded;
use kinference_api::{Kind, ObjectKey, Problem, Severity};

use crate::state::PolicyPlan;

/// The policies of valid files.
pub(super) fn plans(loaded: &Loaded) -> BTreeMap<ObjectKey, PolicyPlan> {
    let resources = &loaded.resources;
    let mut warnings = by_policy(loaded, Severity::Warning);
    let mut plans: BTreeMap<ObjectKey, PolicyPlan> = BTreeMap::new();
    for policy in resources.policies.values() {
        let warnings = warnings.remove(&policy.key).unwrap_or_default();
        let plan = PolicyPlan { backends: Vec::new(), file: policy.origin.file.clone(), warnings };
        plans.insert(policy.key.clone(), plan);
    }
    for backend in resources.backends.keys() {
        for policy in policies_of(resources, backend) {
            if let Some(plan) = plans.get_mut(&policy.key) {
                plan.backends.push(backend.clone());
            }
        }
    }
    plans
}

/// The errors of each policy. Of one that was valid before, and cannot even be read now, those of its file.
pub(super) fn faults(loaded: &Loaded, files: &BTreeMap<ObjectKey, PathBuf>) -> BTreeMap<ObjectKey, Vec<String>> {
    let mut faults = by_policy(loaded, Severity::Error);
    for (key, file) in files {
        if !loaded.resources.policies.contains_key(key) {
            let errors = loaded.problems.iter().filter(|p| p.severity == Severity::Error && p.file == *file);
            let errors: Vec<String> = errors.map(ToString::to_string).collect();
            if !errors.is_empty() {
                faults.insert(key.clone(), errors);
            }
        }
    }
    faults
}

/// Problems as files have them know lines, findings know the resource: both come in the order of documents.
fn by_policy(loaded: &Loaded, severity: Severity) -> BTreeMap<ObjectKey, Vec<String>> {
    let mut problems: BTreeMap<(PathBuf, String, String), VecDeque<&Problem>> = BTreeMap::new();
    for problem in loaded.problems.iter().filter(|problem| problem.severity == severity) {
        let place = (problem.file.clone(), problem.path.clone(), problem.message.clone());
        problems.entry(place).or_default().push_back(problem);
    }
    let mut by_policy: BTreeMap<ObjectKey, Vec<String>> = BTreeMap::new();
    if problems.is_empty() {
        return by_policy;
    }
    let mut findings = check(&loaded.resources);
    findings.sort_by(|a, b| a.origin.cmp(&b.origin));
    for finding in findings {
        let place = (finding.origin.file, finding.path.to_string(), finding.message);
        let problem = problems.get_mut(&place).and_then(VecDeque::pop_front);
        if let (Some(Kind::InferencePolicy), Some(problem)) = (finding.kind, problem) {
            by_policy.entry(finding.key).or_default().push(problem.to_string());
        }
    }
    by_policy
}
