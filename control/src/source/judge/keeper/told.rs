//! Last good versions of policies that an earlier process told of. Each is kept for as long as it may be needed: a gateway
//! backend that it is for may be out of force when this process starts, and be mended long after.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinference_api::kinds::InferencePolicySpec;
use kinference_api::{ObjectKey, Resources};

use super::{Faulty, Policies, policies_for};

#[derive(Debug, Default)]
pub(super) struct Told(Policies);

impl Told {
    pub(super) fn new(policies: Policies) -> Self {
        Self(policies)
    }

    /// The last good policies of each of these gateway backends that the earlier process told of: what it told, and
    /// beside that what is right now.
    pub(super) fn recall(
        &self,
        backends: &[ObjectKey],
        force: &mut Resources,
        faulty: &Faulty,
    ) -> Vec<(ObjectKey, Policies)> {
        if self.0.is_empty() || backends.is_empty() {
            return Vec::new();
        }
        let now = force.policies.clone();
        let there = self.0.iter().filter(|(policy, _)| now.contains_key(policy) || faulty.wrong.contains(policy));
        force.policies.retain(|policy, _| !faulty.hopeless.contains(policy));
        force.policies.extend(there.map(|(key, policy)| (key.clone(), policy.clone())));
        let mut recalled = Vec::new();
        for backend in backends {
            let then = policies_for(force, backend);
            if then.keys().any(|policy| self.0.contains_key(policy)) && super::fleet(force, backend).is_ok() {
                recalled.push((backend.clone(), then));
            }
        }
        force.policies = now;
        recalled
    }

    /// Forgets what is not needed any more, once something is in force: policies that are right again, or gone. One that
    /// is right is still needed where a gateway backend of its namespace is not in force: the others that are wrong keep
    /// that one's policies as they were, all of them. `waiting` are the namespaces with such a gateway backend.
    pub(super) fn forget(&mut self, now: &Resources, faulty: &Faulty, waiting: &BTreeSet<&str>) {
        let held = |policy: &ObjectKey| {
            waiting.contains(policy.namespace.as_str())
                && now.policies.contains_key(policy)
                && faulty.wrong.iter().any(|wrong| wrong.namespace == policy.namespace)
        };
        self.0.retain(|policy, _| faulty.wrong.contains(policy) || held(policy));
    }

    /// What is remembered of a policy.
    pub(super) fn last_good(&self, policy: &ObjectKey) -> Option<Arc<InferencePolicySpec>> {
        self.0.get(policy).map(|policy| Arc::new(policy.spec.clone()))
    }
}
