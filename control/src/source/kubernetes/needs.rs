//! What the resources in force refer to, and so what else is to be read: nothing but that.

use std::collections::{BTreeMap, BTreeSet};

use kinference_api::compile::{FleetSpec, TokenizerSource, WorkerSetSpec, WorkersSpec};
use kinference_api::{ObjectKey, Resources};

use super::pods;

/// Pods of a namespace, by a selector in the words of the API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodScope {
    pub(super) namespace: String,
    pub(super) selector: String,
}

/// What is to be read beside the five kinds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) pods: BTreeSet<PodScope>,
    pub(super) config_maps: BTreeSet<ObjectKey>,
    pub(super) secrets: BTreeSet<ObjectKey>,
    /// The Secret of each provider that states one.
    pub(super) of_providers: BTreeMap<ObjectKey, ObjectKey>,
}

/// Which Pods a set's workers are; None when they are listed.
pub(super) fn pod_scope(set: &WorkerSetSpec) -> Option<PodScope> {
    match &set.workers {
        WorkersSpec::Static(_) => None,
        WorkersSpec::Selector { selector, .. } => {
            Some(PodScope { namespace: set.key.namespace.clone(), selector: pods::selector(selector) })
        }
    }
}

/// What these fleets need; `resources` are those in force.
pub(super) fn of(fleets: &[FleetSpec], resources: &Resources) -> Needs {
    let mut needs = Needs::default();
    for set in fleets.iter().flat_map(|fleet| &fleet.worker_sets) {
        needs.pods.extend(pod_scope(set));
        if let TokenizerSource::ConfigMap(name) = &set.tokenizer {
            needs.config_maps.insert(set.key.sibling(name));
        }
    }
    for provider in resources.providers.values() {
        if let Some(credentials) = &provider.spec.credentials {
            needs.of_providers.insert(provider.key.clone(), provider.key.sibling(&credentials.secret_ref.name));
        }
    }
    needs.secrets = needs.of_providers.values().cloned().collect();
    needs
}
