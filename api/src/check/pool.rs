//! Checks of `InferencePool`.

use super::Reporter;
use crate::kinds::InferencePoolSpec;
use crate::{FieldPath, Kind, Resource, Resources};

pub(super) fn check(pool: &Resource<InferencePoolSpec>, resources: &Resources, to: &mut Reporter<'_>) {
    let selection = &pool.spec.worker_sets;
    let place = FieldPath::spec("workerSets");
    to.exactly_one(&place, &[("names", selection.names.is_some()), ("selector", selection.selector.is_some())]);
    if let Some(selector) = &selection.selector {
        to.selector(&place.key("selector"), selector);
    }
    let names = selection.names.as_deref().unwrap_or_default();
    let place = place.key("names");
    to.names(&place, None, names.iter().map(String::as_str));
    for (index, name) in names.iter().enumerate() {
        if !name.is_empty() && !resources.worker_sets.contains_key(&pool.key.sibling(name)) {
            let known = resources.worker_sets.keys();
            to.missing(&place.index(index), Kind::InferenceWorkerSet, name, known);
        }
    }
}
