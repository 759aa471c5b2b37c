//! Typed resources, keyed by namespace and name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::DEFAULT_NAMESPACE;
use crate::kinds::{
    GatewayBackendSpec, InferencePolicySpec, InferencePoolSpec, InferenceProviderSpec, InferenceWorkerSetSpec,
};
use crate::policy_test::PolicyTest;

/// Namespace and name of a resource. Displays as `namespace/name`; parses from that, or from a plain name, which means
/// the namespace `default`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

/// Text that is no `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no resource; write NAME or NAMESPACE/NAME")]
pub struct BadObjectKey(String);

impl ObjectKey {
    /// The key of a namespace and a name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> ObjectKey {
        ObjectKey { namespace: namespace.into(), name: name.into() }
    }

    /// The key of another resource in the same namespace.
    pub fn sibling(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.namespace.clone(), name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ObjectKey {
    type Err = BadObjectKey;

    fn from_str(text: &str) -> Result<ObjectKey, BadObjectKey> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(BadObjectKey(text.to_string()));
        }
        Ok(ObjectKey::new(namespace, name))
    }
}

/// One of the five kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`crate::kinds::GatewayBackend`]
    GatewayBackend,
    /// [`crate::kinds::InferencePool`]
    InferencePool,
    /// [`crate::kinds::InferenceProvider`]
    InferenceProvider,
    /// [`crate::kinds::InferencePolicy`]
    InferencePolicy,
    /// [`crate::kinds::InferenceWorkerSet`]
    InferenceWorkerSet,
}

impl Kind {
    /// All kinds, by name.
    pub const ALL: [Kind; 5] = [
        Kind::GatewayBackend,
        Kind::InferencePolicy,
        Kind::InferencePool,
        Kind::InferenceProvider,
        Kind::InferenceWorkerSet,
    ];

    /// The kind as resources state it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::GatewayBackend => "GatewayBackend",
            Kind::InferencePool => "InferencePool",
            Kind::InferenceProvider => "InferenceProvider",
            Kind::InferencePolicy => "InferencePolicy",
            Kind::InferenceWorkerSet => "InferenceWorkerSet",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a resource was read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A file.
    File {
        /// The file.
        file: PathBuf,
        /// The document within the file, from 0.
        document: usize,
    },
    /// A cluster, where kind, namespace and name say it all.
    Cluster,
}

impl Origin {
    /// The file; the empty path for a resource of a cluster.
    pub fn file(&self) -> &Path {
        match self {
            Origin::File { file, .. } => file,
            Origin::Cluster => Path::new(""),
        }
    }
}

/// A resource of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource<S> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The resource's labels.
    pub labels: BTreeMap<String, String>,
    /// What the user asks for.
    pub spec: S,
    /// Where it was read from.
    pub origin: Origin,
}

/// Resources of all kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// `GatewayBackend`s.
    pub backends: BTreeMap<ObjectKey, Resource<GatewayBackendSpec>>,
    /// `InferencePool`s.
    pub pools: BTreeMap<ObjectKey, Resource<InferencePoolSpec>>,
    /// `InferenceProvider`s.
    pub providers: BTreeMap<ObjectKey, Resource<InferenceProviderSpec>>,
    /// `InferencePolicy`s.
    pub policies: BTreeMap<ObjectKey, Resource<InferencePolicySpec>>,
    /// `InferenceWorkerSet`s.
    pub worker_sets: BTreeMap<ObjectKey, Resource<InferenceWorkerSetSpec>>,
    /// Policy tests, in the order of files.
    pub policy_tests: Vec<PolicyTest>,
}

impl Resources {
    /// The worker sets of a pool, by name: those that it names, or those of its namespace that its selector selects.
    /// Names that do not exist are left out ([`crate::check`] reports them). Empty for an unknown pool.
    pub fn worker_sets_of_pool(&self, pool: &ObjectKey) -> Vec<&Resource<InferenceWorkerSetSpec>> {
        let Some(pool) = self.pools.get(pool) else {
            return Vec::new();
        };
        let selection = &pool.spec.worker_sets;
        let in_namespace = self.worker_sets.values().filter(|set| set.key.namespace == pool.key.namespace);
        in_namespace
            .filter(|set| {
                let named = selection.names.iter().flatten().any(|name| *name == set.key.name);
                named || selection.selector.as_ref().is_some_and(|s| s.matches(&set.labels))
            })
            .collect()
    }

    /// How many resources there are, policy tests not counted.
    pub fn len(&self) -> usize {
        self.backends.len() + self.pools.len() + self.providers.len() + self.policies.len() + self.worker_sets.len()
    }

    /// True when there is no resource; policy tests do not count.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// True for what Kubernetes takes as the name of a resource: labels with dots between, at most 253 bytes.
pub(crate) fn is_resource_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_text)
}

/// True for what Kubernetes takes as the name of a namespace: at most 63 lower-case letters, digits and `-` between them.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_label_text(text)
}

fn is_label_text(text: &str) -> bool {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    !text.is_empty() && inner && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_parse_from_names_with_and_without_namespace() {
        assert_eq!("main".parse(), Ok(ObjectKey::new("default", "main")));
        assert_eq!("team/main".parse(), Ok(ObjectKey::new("team", "main")));
        for text in ["", "/main", "team/", "a/b/c"] {
            assert_eq!(text.parse::<ObjectKey>(), Err(BadObjectKey(text.into())), "{text:?}");
        }
        assert_eq!(ObjectKey::new("team", "main").to_string(), "team/main");
    }
}
