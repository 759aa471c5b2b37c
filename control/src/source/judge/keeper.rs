//! Each resource of a cluster by itself: what is wrong keeps its last good version, and holds up nothing else.

mod standing;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use kinference_api::compile::{FleetSpec, policies_of};
use kinference_api::kinds::InferencePolicySpec;
use kinference_api::problem::Finding;
use kinference_api::{Kind, ObjectKey, Resource, Resources, Severity, check};

use super::{Read, Remark, fleet, lines, outcomes};
use crate::state::{Faults, Outcomes, Plan, PolicyPlan, Standing};
use told::Told;

type Policies = BTreeMap<ObjectKey, Resource<InferencePolicySpec>>;
type Ids = BTreeSet<(Kind, ObjectKey)>;

/// Remembers the last good version of everything.
#[derive(Debug, Default)]
pub struct Keeper {
    /// Without policies.
    good: Resources,
    /// The rules of a gateway backend are good together or not at all: a rule that is missing may be the one that
    /// forbids what another allows.
    policies: BTreeMap<ObjectKey, Policies>,
    told: Told,
    fleets: BTreeMap<ObjectKey, FleetSpec>,
}

impl Keeper {
    /// One that knows of last good versions of policies. Each counts while its policy is wrong, or held, for every
    /// gateway backend of which no good policies are known otherwise.
    #[must_use]
    pub fn recalling(policies: BTreeMap<ObjectKey, Resource<InferencePolicySpec>>) -> Self {
        Self { told: Told::new(policies), ..Self::default() }
    }

    /// What of the resources takes force, and what came of each:
    ///
    /// - A worker set, pool, provider or gateway backend that is wrong keeps its last good version; without one it is
    ///   left out.
    /// - One that refers to what is not there is used without that.
    /// - While a policy is wrong, every gateway backend that it is for keeps its last good policies, all of them. One
    ///   that never had any, as far as this or an earlier process told, gets the policies that are right, and those that
    ///   are wrong only in what they refer to.
    ///
    /// # Errors
    /// When there is no gateway backend to be in force; the problems say why, and are empty when there never was one.
    pub fn judge(&mut self, read: Read) -> Result<Plan, Faults> {
        let Read { resources, mut remarks, generations } = read;
        let mut broken: Ids = remarks.iter().filter_map(|remark| remark.resource.clone()).collect();
        let mut force = resources.clone();
        self.keep(&mut force, &broken);
        // What is not broken now: what keeps its last good version has been told why already.
        let findings: Vec<Finding> = check::each(&force)
            .into_iter()
            .filter(|finding| finding.kind != Some(Kind::InferencePolicy) && !is_of(finding, &broken))
            .collect();
        let wrong = findings.iter().filter(|finding| finding.severity == Severity::Error && finding.missing.is_none());
        broken.extend(wrong.filter_map(|finding| Some((finding.kind?, finding.key.clone()))));
        self.keep(&mut force, &broken);

        let mut findings = findings;
        let of_policy = |finding: &Finding| finding.kind == Some(Kind::InferencePolicy);
        findings.extend(check::each(&force).into_iter().filter(of_policy));
        let together = check::together(&force).into_iter();
        findings.extend(together.filter(|finding| of_policy(finding) || !is_of(finding, &broken)));
        // What is there and broken is not missing, and says itself what is wrong with it.
        findings.retain(|finding| finding.missing.as_ref().is_none_or(|missing| !broken.contains(missing)));
        findings.sort_by_key(|finding| finding.severity);
        remarks.extend(findings.iter().map(Remark::from));

        let mut faults =
            Faults { problems: lines(&remarks, Severity::Error), outcomes: outcomes(&remarks, &generations) };
        let faulty = Faulty::of(&broken, &findings);
        self.recall(&mut force, &faulty);
        let mut choices = self.choose(&force, &faulty);
        let fleets = self.fleets(&mut force, &mut choices, &mut faults);
        if !fleets.is_empty() {
            let unread = broken.iter().filter(|(kind, _)| *kind == Kind::GatewayBackend).map(|(_, key)| key);
            let waiting = resources.backends.keys().chain(unread);
            let waiting = waiting.filter(|backend| !fleets.iter().any(|fleet| fleet.backend == **backend));
            self.told.forget(&resources, &faulty, &waiting.map(|backend| backend.namespace.as_str()).collect());
        }
        standing::tell(&resources, &force, &choices, &self.told, &mut faults.outcomes);
        if fleets.is_empty() {
            if !self.fleets.is_empty() {
                let problem = "there is no GatewayBackend any more; the last good configuration stays in force";
                faults.problems.push(problem.to_owned());
            }
            return Err(faults);
        }
        self.fleets = fleets.iter().map(|fleet| (fleet.backend.clone(), fleet.clone())).collect();
        self.policies.retain(|backend, _| force.backends.contains_key(backend));
        self.good = force;
        let policies = plans(&resources, &choices, &faults.outcomes);
        let warnings = lines(&remarks, Severity::Warning);
        Ok(Plan { fleets, policies, warnings, faults, ..Plan::default() })
    }

    /// The resources in force, without policies.
    pub fn in_force(&self) -> &Resources {
        &self.good
    }

    /// Puts the last good version in the place of each that is broken. Policies are left out.
    fn keep(&self, force: &mut Resources, broken: &Ids) {
        let good = &self.good;
        for (kind, key) in broken {
            match kind {
                Kind::GatewayBackend => replace(&mut force.backends, &good.backends, key),
                Kind::InferencePool => replace(&mut force.pools, &good.pools, key),
                Kind::InferenceProvider => replace(&mut force.providers, &good.providers, key),
                Kind::InferenceWorkerSet => replace(&mut force.worker_sets, &good.worker_sets, key),
                Kind::InferencePolicy => drop(force.policies.remove(key)),
            }
        }
    }

    /// Takes up what an earlier process told, for the gateway backends of which this one knows no good policies.
    fn recall(&mut self, force: &mut Resources, faulty: &Faulty) {
        let unknown = force.backends.keys().filter(|backend| !self.policies.contains_key(*backend));
        let unknown: Vec<ObjectKey> = unknown.cloned().collect();
        self.policies.extend(self.told.recall(&unknown, force, faulty));
    }

    /// The policies of every gateway backend.
    fn choose(&self, force: &Resources, faulty: &Faulty) -> Choices {
        let never_good = |policy: &ObjectKey| !self.policies.values().any(|good| good.contains_key(policy));
        let mut choices = Choices::new();
        for backend in force.backends.keys() {
            let now = policies_for(force, backend);
            let good = self.policies.get(backend);
            let concerns = |policy: &&ObjectKey| {
                let unknown = !force.policies.contains_key(*policy) && never_good(policy);
                policy.namespace == backend.namespace
                    && (unknown || now.contains_key(*policy) || good.is_some_and(|good| good.contains_key(*policy)))
            };
            let wrong: Vec<ObjectKey> = faulty.wrong.iter().filter(concerns).cloned().collect();
            let mut used = match good {
                Some(good) if !wrong.is_empty() => good.clone(),
                _ => now.clone(),
            };
            if good.is_none() {
                used.retain(|policy, _| !faulty.hopeless.contains(policy));
            }
            choices.insert(backend.clone(), Choice { now, used, wrong, refused: None });
        }
        choices
    }

    /// Compiles every gateway backend with its policies.
    fn fleets(&mut self, force: &mut Resources, choices: &mut Choices, faults: &mut Faults) -> Vec<FleetSpec> {
        let mut fleets = Vec::new();
        for (backend, choice) in choices {
            force.policies = std::mem::take(&mut choice.used);
            let compiled = fleet(force, backend);
            choice.used = std::mem::take(&mut force.policies);
            match compiled {
                Ok(fleet) => {
                    if choice.wrong.is_empty() {
                        self.policies.insert(backend.clone(), choice.used.clone());
                    }
                    fleets.push(fleet);
                }
                Err(problem) => {
                    faults.problems.push(format!("GatewayBackend {backend}: {problem}"));
                    let outcome = faults.outcomes.entry((Kind::GatewayBackend, backend.clone())).or_default();
                    outcome.problems.push(problem);
                    let before = self.fleets.get(backend);
                    let policies = before.and_then(|_| self.policies.get(backend));
                    choice.used = policies.cloned().unwrap_or_default();
                    choice.refused = Some(if before.is_some() { Standing::LastGood } else { Standing::NotInForce });
                    fleets.extend(before.cloned());
                }
            }
        }
        fleets
    }
}

/// The policies that are for a gateway backend, by name.
fn policies_for(resources: &Resources, backend: &ObjectKey) -> Policies {
    policies_of(resources, backend).into_iter().map(|policy| (policy.key.clone(), policy.clone())).collect()
}

/// Policies with errors.
#[derive(Debug)]
struct Faulty {
    wrong: BTreeSet<ObjectKey>,
    /// Those of them that can be read and are wrong in more than what they refer to.
    hopeless: BTreeSet<ObjectKey>,
}

impl Faulty {
    fn of(broken: &Ids, findings: &[Finding]) -> Self {
        let errors = findings.iter().filter(|f| f.severity == Severity::Error && f.kind == Some(Kind::InferencePolicy));
        let unread = broken.iter().filter(|(kind, _)| *kind == Kind::InferencePolicy).map(|(_, key)| key);
        Self {
            wrong: errors.clone().map(|finding| &finding.key).chain(unread).cloned().collect(),
            hopeless: errors.filter(|f| f.missing.is_none()).map(|f| f.key.clone()).collect(),
        }
    }
}

/// The policies of a gateway backend.
#[derive(Debug)]
pub(super) struct Choice {
    /// Those that are for it as they are now, as far as they can be read.
    pub(super) now: Policies,
    /// Those in force.
    pub(super) used: Policies,
    /// Those that keep the ones of now from being in force.
    pub(super) wrong: Vec<ObjectKey>,
    /// When the gateway backend does not compile: what stands in its place.
    pub(super) refused: Option<Standing>,
}

/// By gateway backend.
pub(super) type Choices = BTreeMap<ObjectKey, Choice>;

fn replace<S: Clone>(
    force: &mut BTreeMap<ObjectKey, Resource<S>>,
    good: &BTreeMap<ObjectKey, Resource<S>>,
    key: &ObjectKey,
) {
    match good.get(key) {
        Some(good) => drop(force.insert(key.clone(), good.clone())),
        None => drop(force.remove(key)),
    }
}

fn is_of(finding: &Finding, ids: &Ids) -> bool {
    finding.kind.is_some_and(|kind| ids.contains(&(kind, finding.key.clone())))
}

/// The policies in force, and those that would be if there were a gateway backend for them.
fn plans(resources: &Resources, choices: &Choices, outcomes: &Outcomes) -> BTreeMap<ObjectKey, PolicyPlan> {
    let mut plans: BTreeMap<ObjectKey, PolicyPlan> = BTreeMap::new();
    for (backend, choice) in choices {
        for key in choice.used.keys() {
            plans.entry(key.clone()).or_default().backends.push(backend.clone());
        }
    }
    for key in resources.policies.keys() {
        let Some(outcome) = outcomes.get(&(Kind::InferencePolicy, key.clone())) else { continue };
        if outcome.standing == Standing::InForce {
            plans.entry(key.clone()).or_default().warnings.clone_from(&outcome.warnings);
        }
    }
    plans
}
