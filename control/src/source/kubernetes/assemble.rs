//! What was judged, and what it refers to, to a plan. Pure but for the tokenizers' folders.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinference_api::compile::{TokenizerSource, WorkerSetSpec, WorkerSpec, WorkersSpec};
use kinference_api::{Kind, ObjectKey};

use super::needs::{PodScope, pod_scope};
use super::pods::{self, Pod};
use crate::credential::{Credential, Credentials};
use crate::source::models::{ConfigMaps, Models};
use crate::state::{Model, Plan};

/// Pods by scope; None where they are not known yet.
pub(super) type Pods = BTreeMap<PodScope, Option<Vec<Arc<Pod>>>>;

/// Data of Secrets, or why one is not there.
pub(super) type Secrets = BTreeMap<ObjectKey, Result<BTreeMap<String, Vec<u8>>, String>>;

/// What resources refer to, as far as it is known.
#[derive(Default)]
pub(super) struct Around {
    pub(super) pods: Pods,
    pub(super) config_maps: ConfigMaps,
    pub(super) secrets: Secrets,
    /// The Secret of each provider that states one.
    pub(super) of_providers: BTreeMap<ObjectKey, ObjectKey>,
}

/// Remembers what was told last.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    models: Models,
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    workers: BTreeMap<ObjectKey, Vec<WorkerSpec>>,
    models: BTreeMap<ObjectKey, Model>,
    credentials: Credentials,
    /// Where credentials are sent, by provider.
    authorities: BTreeMap<ObjectKey, String>,
    warnings: Vec<String>,
}

impl Assembler {
    /// The plan, or None when it says what the one before said. `judged_anew` is true when the resources changed. A
    /// reference that leads to what is not known yet leads where it led before.
    pub(super) fn plan(&mut self, judged: &Plan, judged_anew: bool, around: &Around) -> Option<Plan> {
        let mut plan = judged.clone();
        let mut workers = BTreeMap::new();
        for set in plan.fleets.iter_mut().flat_map(|fleet| &mut fleet.worker_sets) {
            let found = workers.entry(set.key.clone()).or_insert_with(|| self.select(set, &around.pods));
            let (list, remark) = found;
            if let WorkersSpec::Selector { .. } = set.workers {
                set.workers = WorkersSpec::Static(list.clone());
            }
            if let Some(remark) = remark.take() {
                plan.warnings.push(format!("InferenceWorkerSet {}: {remark}", set.key));
                let outcome = plan.faults.outcomes.entry((Kind::InferenceWorkerSet, set.key.clone())).or_default();
                outcome.warnings.push(remark);
            }
        }
        let sets = plan.fleets.iter().flat_map(|fleet| &fleet.worker_sets);
        plan.models = self.models.load(sets, Some(&around.config_maps));
        self.keep_models(&mut plan, around);
        let providers = plan.fleets.iter().flat_map(|fleet| &fleet.providers);
        let authorities = providers.map(|provider| (provider.key.clone(), provider.wire.authority.clone())).collect();
        let credentials = around.of_providers.iter().map(|(provider, secret)| {
            let before =
                self.credential_before(provider, &authorities).filter(|_| !around.secrets.contains_key(secret));
            (provider.clone(), before.cloned().unwrap_or_else(|| credential(secret, around)))
        });
        plan.credentials = credentials.collect();
        let told = Told {
            workers: workers.into_iter().map(|(set, (list, _))| (set, list)).collect(),
            models: plan.models.clone(),
            credentials: plan.credentials.clone(),
            authorities,
            warnings: plan.warnings.clone(),
        };
        let before = self.told.replace(told);
        let (Some(before), Some(now)) = (before, &self.told) else { return Some(plan) };
        plan.workers_only =
            !judged_anew && same_models(&before.models, &now.models) && before.credentials == now.credentials;
        let same = plan.workers_only && before.workers == now.workers && before.warnings == now.warnings;
        (!same).then_some(plan)
    }

    /// True when files of a tokenizer changed since they were read.
    pub(super) fn files_changed(&self) -> bool {
        self.models.changed()
    }

    /// A tokenizer from a ConfigMap that is not known yet is the one of before.
    fn keep_models(&self, plan: &mut Plan, around: &Around) {
        let Some(told) = &self.told else { return };
        for set in plan.fleets.iter().flat_map(|fleet| &fleet.worker_sets) {
            let TokenizerSource::ConfigMap(name) = &set.tokenizer else { continue };
            if !around.config_maps.contains_key(&set.key.sibling(name))
                && let Some(before) = told.models.get(&set.key)
            {
                plan.models.insert(set.key.clone(), before.clone());
            }
        }
    }

    /// What a provider's credentials were, as long as they go where they went.
    fn credential_before(
        &self,
        provider: &ObjectKey,
        authorities: &BTreeMap<ObjectKey, String>,
    ) -> Option<&Result<Credential, String>> {
        let told = self.told.as_ref()?;
        let same_place = authorities.get(provider)? == told.authorities.get(provider)?;
        told.credentials.get(provider).filter(|_| same_place)
    }

    /// The workers of a set, and what is to be said of its Pods. While they are not known, those of before stay.
    fn select(&self, set: &WorkerSetSpec, pods: &Pods) -> (Vec<WorkerSpec>, Option<String>) {
        let WorkersSpec::Selector { port, kv_events, .. } = &set.workers else { return (Vec::new(), None) };
        let known = pod_scope(set).and_then(|scope| pods.get(&scope)?.as_ref());
        let Some(known) = known else {
            let before = self.told.as_ref().and_then(|told| told.workers.get(&set.key));
            return (before.cloned().unwrap_or_default(), None);
        };
        let selected = pods::workers(known, port, *kv_events);
        let remark = selected.portless.first().map(|first| {
            let count = selected.portless.len();
            format!("spec.workers.port: {count} ready Pods have no container port `{port}`, such as {first}")
        });
        (selected.workers, remark)
    }
}

fn credential(secret: &ObjectKey, around: &Around) -> Result<Credential, String> {
    let data = around.secrets.get(secret).ok_or_else(|| format!("Secret {secret} has not been read yet"))?;
    Credential::from_data(secret, data.as_ref().map_err(String::clone)?)
}

fn same_models(a: &BTreeMap<ObjectKey, Model>, b: &BTreeMap<ObjectKey, Model>) -> bool {
    let same = |(a, b): (&Model, &Model)| match (a, b) {
        (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
        (Err(a), Err(b)) => a == b,
        _ => false,
    };
    a.keys().eq(b.keys()) && a.values().zip(b.values()).all(same)
}

#[cfg(test)]
mod tests;
