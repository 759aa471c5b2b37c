//! What Envoys are told: for each cluster name, the workers' addresses and the listeners that lead to providers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::{
    Address, EnvoyInternalAddress, Metadata, SocketAddress, address, envoy_internal_address, socket_address,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use prost::{Message, Name};

/// The cluster that lists the workers of all gateway backends. `CLUSTER/NAMESPACE/NAME` lists those of one.
pub const CLUSTER: &str = "kinference_workers";

/// Where requests of a gateway backend can go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// Workers.
    pub workers: BTreeSet<SocketAddr>,
    /// Internal listeners of the proxies that lead to providers, by name.
    pub providers: BTreeSet<String>,
}

/// Type of the resources that this service serves.
pub(super) fn type_url() -> String {
    ClusterLoadAssignment::type_url().replace(".googleapis.com//", ".googleapis.com/")
}

/// One cluster's endpoints, encoded, and the version of their content.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// Changes exactly when the content does.
    pub version: String,
    /// The encoded `ClusterLoadAssignment`.
    pub resource: Any,
}

/// The endpoints of every cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assignments {
    clusters: BTreeMap<String, Assignment>,
    /// Clusters of which nothing is known.
    unknown: BTreeSet<String>,
}

impl Assignments {
    /// From the endpoints by gateway backend ("namespace/name"), and the backends that exist and are not in force.
    ///
    /// What these have is not known, and an empty answer would take it from the Envoys that were told by an earlier
    /// process. The cluster of all backends is answered all the same, without them: to hold it back would keep the workers
    /// of the others from coming and going for as long as one backend is not mended.
    pub fn new(backends: &BTreeMap<String, Endpoints>, not_in_force: &BTreeSet<String>) -> Self {
        let all = Endpoints {
            workers: backends.values().flat_map(|endpoints| &endpoints.workers).copied().collect(),
            providers: backends.values().flat_map(|endpoints| &endpoints.providers).cloned().collect(),
        };
        let mut clusters = BTreeMap::from([(CLUSTER.to_owned(), assignment(CLUSTER, &all))]);
        for (backend, endpoints) in backends {
            let name = format!("{CLUSTER}/{backend}");
            clusters.insert(name.clone(), assignment(&name, endpoints));
        }
        let unknown = not_in_force.iter().filter(|backend| !backends.contains_key(*backend));
        Self { clusters, unknown: unknown.map(|backend| format!("{CLUSTER}/{backend}")).collect() }
    }

    /// The endpoints of a cluster. A backend that does not exist has none: an Envoy that asks for it shall not wait. One
    /// that is not in force is not answered for, and neither are names that are not ours.
    pub fn get(&self, cluster: &str) -> Option<Assignment> {
        match self.clusters.get(cluster) {
            Some(found) => Some(found.clone()),
            None if self.unknown.contains(cluster) => None,
            None => cluster.strip_prefix(CLUSTER)?.starts_with('/').then(|| assignment(cluster, &Endpoints::default())),
        }
    }

    /// Version of the answer for a set of names.
    pub fn version_of(&self, names: &BTreeSet<String>) -> String {
        let versions: Vec<String> = names.iter().filter_map(|name| self.get(name)).map(|found| found.version).collect();
        hex(versions.join(",").as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    format!("{:016x}", kinference_routing::prefix::hash_chunk(bytes, 0))
}

/// Providers come after the workers in priority, and lack the mark without which a proxy chooses no endpoint by itself.
fn assignment(cluster: &str, endpoints: &Endpoints) -> Assignment {
    let workers = LocalityLbEndpoints {
        lb_endpoints: endpoints.workers.iter().map(|address| endpoint(socket(address), Some(mark()))).collect(),
        ..Default::default()
    };
    let providers = LocalityLbEndpoints {
        lb_endpoints: endpoints.providers.iter().map(|listener| endpoint(internal(listener), None)).collect(),
        priority: 1,
        ..Default::default()
    };
    let mut localities = vec![workers];
    if !providers.lb_endpoints.is_empty() {
        localities.push(providers);
    }
    let assignment =
        ClusterLoadAssignment { cluster_name: cluster.to_owned(), endpoints: localities, ..Default::default() };
    let value = assignment.encode_to_vec();
    Assignment { version: hex(&value), resource: Any { type_url: type_url(), value } }
}

fn socket(address: &SocketAddr) -> address::Address {
    address::Address::SocketAddress(SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(address.port().into())),
        ..Default::default()
    })
}

fn internal(listener: &str) -> address::Address {
    let name = envoy_internal_address::AddressNameSpecifier::ServerListenerName(listener.to_owned());
    address::Address::EnvoyInternalAddress(EnvoyInternalAddress {
        address_name_specifier: Some(name),
        ..Default::default()
    })
}

/// `envoy.lb: {kinference: worker}`: requests that could not be decided may go to endpoints with this mark.
fn mark() -> Metadata {
    let value = Value { kind: Some(Kind::StringValue("worker".to_owned())) };
    let fields = Struct { fields: [("kinference".to_owned(), value)].into_iter().collect() };
    Metadata { filter_metadata: [("envoy.lb".to_owned(), fields)].into_iter().collect(), ..Default::default() }
}

fn endpoint(address: address::Address, metadata: Option<Metadata>) -> LbEndpoint {
    let endpoint = Endpoint { address: Some(Address { address: Some(address) }), ..Default::default() };
    let host_identifier = Some(lb_endpoint::HostIdentifier::Endpoint(endpoint));
    LbEndpoint { host_identifier, metadata, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(pairs: &[(&str, &[&str], &[&str])]) -> BTreeMap<String, Endpoints> {
        pairs
            .iter()
            .map(|(name, workers, providers)| {
                let workers = workers.iter().map(|address| address.parse().unwrap()).collect();
                let providers = providers.iter().map(|listener| listener.to_string()).collect();
                (name.to_string(), Endpoints { workers, providers })
            })
            .collect()
    }

    fn of(list: &[(&str, &[&str], &[&str])]) -> Assignments {
        Assignments::new(&backends(list), &BTreeSet::new())
    }

    /// Priority, address, and whether a proxy may choose it by itself.
    fn listed(assignments: &Assignments, cluster: &str) -> Vec<(u32, String, bool)> {
        let any = assignments.get(cluster).unwrap().resource;
        assert_eq!(any.type_url, "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
        let decoded = ClusterLoadAssignment::decode(any.value.as_slice()).unwrap();
        assert_eq!(decoded.cluster_name, cluster);
        let mut found = Vec::new();
        for locality in decoded.endpoints {
            for listed in locality.lb_endpoints {
                let Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) = listed.host_identifier else { panic!() };
                let address = match endpoint.address.unwrap().address {
                    Some(address::Address::SocketAddress(socket)) => {
                        let Some(socket_address::PortSpecifier::PortValue(port)) = socket.port_specifier else {
                            panic!()
                        };
                        format!("{} {port}", socket.address)
                    }
                    Some(address::Address::EnvoyInternalAddress(internal)) => {
                        let Some(envoy_internal_address::AddressNameSpecifier::ServerListenerName(name)) =
                            internal.address_name_specifier
                        else {
                            panic!()
                        };
                        name
                    }
                    other => panic!("{other:?}"),
                };
                let marked = listed.metadata.is_some_and(|metadata| metadata.filter_metadata.contains_key("envoy.lb"));
                found.push((locality.priority, address, marked));
            }
        }
        found
    }

    fn workers(list: &[&str]) -> Vec<(u32, String, bool)> {
        list.iter().map(|address| (0, (*address).to_owned(), true)).collect()
    }

    #[test]
    fn one_cluster_for_all_and_one_for_each_backend() {
        let all = of(&[
            ("default/a", &["10.0.0.1:8000", "[fd00::8]:8001"], &[]),
            ("default/b", &["10.0.0.1:8000", "10.0.0.2:8000"], &[]),
        ]);
        assert_eq!(listed(&all, CLUSTER), workers(&["10.0.0.1 8000", "10.0.0.2 8000", "fd00::8 8001"]));
        assert_eq!(listed(&all, "kinference_workers/default/b"), workers(&["10.0.0.1 8000", "10.0.0.2 8000"]));
        assert!(listed(&all, "kinference_workers/default/gone").is_empty());
        assert_eq!(all.get("someone_else"), None);
    }

    #[test]
    fn providers_are_only_for_who_names_them() {
        let all =
            of(&[("default/a", &["10.0.0.1:8000"], &["kinference_provider_default_cloud"]), ("default/b", &[], &[])]);
        let mut expected = workers(&["10.0.0.1 8000"]);
        expected.push((1, "kinference_provider_default_cloud".to_owned(), false));
        assert_eq!(listed(&all, CLUSTER), expected);
        assert!(listed(&all, "kinference_workers/default/b").is_empty());
    }

    #[test]
    fn versions_follow_the_content() {
        let names = BTreeSet::from([CLUSTER.to_owned()]);
        let version =
            |workers: &[&str], providers: &[&str]| of(&[("default/a", workers, providers)]).version_of(&names);
        assert_eq!(version(&["10.0.0.1:8000"], &[]), version(&["10.0.0.1:8000"], &[]));
        assert_ne!(version(&["10.0.0.1:8000"], &[]), version(&["10.0.0.2:8000"], &[]));
        assert_ne!(version(&["10.0.0.1:8000"], &[]), version(&["10.0.0.1:8000"], &["p"]));
    }

    #[test]
    fn what_is_not_known_is_not_answered() {
        let not_in_force = BTreeSet::from(["default/broken".to_owned()]);
        let all = Assignments::new(&backends(&[("default/a", &["10.0.0.1:8000"], &[])]), &not_in_force);
        assert_eq!(all.get("kinference_workers/default/broken"), None);
        assert_eq!(listed(&all, "kinference_workers/default/a"), workers(&["10.0.0.1 8000"]));
        assert!(listed(&all, "kinference_workers/default/gone").is_empty());
        assert_eq!(listed(&all, CLUSTER), workers(&["10.0.0.1 8000"]), "the others come and go");
        // What was in force stays known, whatever is said of it now.
        let all = Assignments::new(&backends(&[("default/broken", &["10.0.0.2:8000"], &[])]), &not_in_force);
        assert_eq!(listed(&all, "kinference_workers/default/broken"), workers(&["10.0.0.2 8000"]));
    }
}
