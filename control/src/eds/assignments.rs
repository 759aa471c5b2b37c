//! What Envoys are told: for each cluster name, the workers' addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress, address, socket_address};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};

/// The cluster that lists the workers of all gateway backends. `CLUSTER/NAMESPACE/NAME` lists those of one.
pub const CLUSTER: &str = "kinference_workers";

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
}

impl Assignments {
    /// From the workers' addresses by gateway backend ("namespace/name").
    pub fn new(backends: &BTreeMap<String, BTreeSet<SocketAddr>>) -> Self {
        let all = backends.values().flatten().copied().collect();
        let mut clusters = BTreeMap::from([(CLUSTER.to_owned(), assignment(CLUSTER, &all))]);
        for (backend, addresses) in backends {
            let name = format!("{CLUSTER}/{backend}");
            clusters.insert(name.clone(), assignment(&name, addresses));
        }
        Self { clusters }
    }

    /// The endpoints of a cluster. A backend that is not configured has none: an Envoy that asks for it shall not wait.
    /// Names that are not ours are not answered.
    pub fn get(&self, cluster: &str) -> Option<Assignment> {
        match self.clusters.get(cluster) {
            Some(found) => Some(found.clone()),
            None => cluster.strip_prefix(CLUSTER)?.starts_with('/').then(|| assignment(cluster, &BTreeSet::new())),
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

fn assignment(cluster: &str, addresses: &BTreeSet<SocketAddr>) -> Assignment {
    let lb_endpoints = addresses.iter().map(endpoint).collect();
    let assignment = ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints { lb_endpoints, ..Default::default() }],
        ..Default::default()
    };
    let value = assignment.encode_to_vec();
    Assignment { version: hex(&value), resource: Any { type_url: type_url(), value } }
}

fn endpoint(address: &SocketAddr) -> LbEndpoint {
    let socket = SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(address.port().into())),
        ..Default::default()
    };
    let address = Address { address: Some(address::Address::SocketAddress(socket)) };
    let endpoint = Endpoint { address: Some(address), ..Default::default() };
    LbEndpoint { host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(pairs: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<SocketAddr>> {
        pairs
            .iter()
            .map(|(name, list)| (name.to_string(), list.iter().map(|address| address.parse().unwrap()).collect()))
            .collect()
    }

    fn listed(assignments: &Assignments, cluster: &str) -> Vec<String> {
        let any = assignments.get(cluster).unwrap().resource;
        assert_eq!(any.type_url, "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
        let decoded = ClusterLoadAssignment::decode(any.value.as_slice()).unwrap();
        assert_eq!(decoded.cluster_name, cluster);
        let endpoints = decoded.endpoints.into_iter().flat_map(|locality| locality.lb_endpoints);
        endpoints
            .map(|endpoint| {
                let Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) = endpoint.host_identifier else { panic!() };
                let Some(address::Address::SocketAddress(socket)) = endpoint.address.unwrap().address else { panic!() };
                let Some(socket_address::PortSpecifier::PortValue(port)) = socket.port_specifier else { panic!() };
                format!("{} {port}", socket.address)
            })
            .collect()
    }

    #[test]
    fn one_cluster_for_all_and_one_for_each_backend() {
        let all = Assignments::new(&backends(&[
            ("default/a", &["10.0.0.1:8000", "[fd00::8]:8001"]),
            ("default/b", &["10.0.0.1:8000", "10.0.0.2:8000"]),
        ]));
        assert_eq!(listed(&all, CLUSTER), ["10.0.0.1 8000", "10.0.0.2 8000", "fd00::8 8001"]);
        assert_eq!(listed(&all, "kinference_workers/default/b"), ["10.0.0.1 8000", "10.0.0.2 8000"]);
        assert!(listed(&all, "kinference_workers/default/gone").is_empty());
        assert_eq!(all.get("someone_else"), None);
    }

    #[test]
    fn versions_follow_the_content() {
        let names = BTreeSet::from([CLUSTER.to_owned()]);
        let one = Assignments::new(&backends(&[("default/a", &["10.0.0.1:8000"])]));
        let same = Assignments::new(&backends(&[("default/a", &["10.0.0.1:8000"])]));
        let other = Assignments::new(&backends(&[("default/a", &["10.0.0.2:8000"])]));
        assert_eq!(one.version_of(&names), same.version_of(&names));
        assert_ne!(one.version_of(&names), other.version_of(&names));
    }
}
