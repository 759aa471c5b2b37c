//! What was gathered, as plain data: the checks look at nothing else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use serde_json::Value;

use super::cluster::needed::Access;
use crate::status::Status;

/// An answer, or why there is none.
pub(super) type Asked<T> = Result<T, String>;

/// A running control service.
#[derive(Debug)]
pub(super) struct Service {
    /// Its admin address.
    pub(super) address: String,
    pub(super) status: Asked<Status>,
    /// Whether it serves; else its reason.
    pub(super) ready: Asked<()>,
}

/// A running Envoy.
#[derive(Debug)]
pub(super) struct Envoy {
    /// Its admin address.
    pub(super) address: String,
    pub(super) server_info: Asked<Value>,
    pub(super) config_dump: Asked<Value>,
    /// `/clusters?format=json`
    pub(super) clusters: Asked<Value>,
    /// `/stats`: counters and gauges by name.
    pub(super) stats: Asked<BTreeMap<String, u64>>,
}

/// A cluster, as far as it could be looked at.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The namespace that was looked at; absent for all.
    pub(super) namespace: Option<String>,
    /// Major and minor version.
    pub(super) version: Asked<(u32, u32)>,
    /// Definitions of this group, and Istio's of EnvoyFilters where there is one.
    pub(super) definitions: Asked<Vec<CustomResourceDefinition>>,
    /// Those of the control service.
    pub(super) deployments: Asked<Vec<Deployment>>,
    pub(super) rights: Vec<Right>,
    /// By kind.
    pub(super) resources: BTreeMap<String, Asked<Vec<DynamicObject>>>,
    pub(super) secrets: BTreeMap<Named, Asked<Option<SecretFacts>>>,
    /// Keys of those that are there.
    pub(super) config_maps: BTreeMap<Named, Asked<Option<BTreeSet<String>>>>,
    /// Pods that the selector of a worker set matches.
    pub(super) pods: BTreeMap<Named, Asked<Vec<Pod>>>,
    /// Whether a connection to an address came about.
    pub(super) connections: BTreeMap<String, Asked<()>>,
    /// EnvoyFilters; absent where Istio is not installed.
    pub(super) envoy_filters: Asked<Option<Vec<DynamicObject>>>,
}

/// A resource by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Named {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// What may be known of a Secret outside of the cluster: never a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SecretFacts {
    /// Names of its keys.
    pub(super) keys: BTreeSet<String>,
    /// When the certificate under `tls.crt` expires, in seconds since 1970, where there is one that can be read.
    pub(super) certificate_expires: Option<i64>,
}

/// Something that the control service must be allowed to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Right {
    /// The service account.
    pub(super) account: Named,
    pub(super) access: Access,
    pub(super) allowed: Asked<bool>,
}
