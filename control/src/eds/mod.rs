//! Endpoint discovery for Envoy: the workers' addresses over xDS, on the same port as the snapshots, so that proxy and
//! filter know the same fleet from the same place.
//!
//! An Envoy keeps its last endpoints when this service is gone. Nothing is answered before a configuration is in
//! force, and nothing of a gateway backend that exists and is not in force, so that a start with a broken one takes no
//! endpoint away; but for the cluster of all backends, which then lacks those of the broken one.

mod assignments;
mod peers;
mod service;

pub use assignments::{Assignment, Assignments, CLUSTER, Endpoints};
pub use peers::{Peer, Peers};
pub use service::EdsService;

#[cfg(test)]
mod tests;
