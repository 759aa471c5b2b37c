//! Pods as their kubelet would tell of them.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A worker of a set: a Pod with the label that the set selects.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The Pod's name.
    pub name: String,
    /// The value of its label `app`.
    pub app: String,
    /// Its addresses, of one family or both.
    pub addresses: Vec<IpAddr>,
}

impl Worker {
    /// With one address.
    #[must_use]
    pub fn new(name: impl Into<String>, app: impl Into<String>, address: IpAddr) -> Self {
        Self { name: name.into(), app: app.into(), addresses: vec![address] }
    }

    pub(super) fn manifest(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "labels": {"app": self.app}},
            "spec": {
                // Nobody runs it, on an existing cluster neither.
                "schedulerName": "kinference-tests",
                "containers": [{
                    "name": "engine",
                    "image": "simulated.invalid/engine:1",
                    "ports": [{"name": "http", "containerPort": 8000}],
                }],
            },
        })
    }

    /// The status of a Pod that runs, and is ready or not.
    pub(super) fn status(&self, ready: bool) -> Value {
        let truth = if ready { "True" } else { "False" };
        let condition = |kind: &str| json!({"type": kind, "status": truth});
        let addresses: Vec<_> = self.addresses.iter().map(|address| json!({"ip": address})).collect();
        json!({"status": {
            "phase": "Running",
            "podIP": self.addresses.first(),
            "podIPs": addresses,
            "conditions": [{"type": "PodScheduled", "status": "True"}, condition("ContainersReady"), condition("Ready")],
        }})
    }
}
