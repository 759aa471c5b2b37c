//! Checks of a cluster.

mod definitions;
pub(super) mod needed;
pub(super) mod references;
mod resources;
mod workload;

use super::finding::Findings;
use super::world::Cluster;

const CLUSTER: &str = "cluster";
const CONTROL: &str = "control service";
const RESOURCES: &str = "resources";
const GATEWAY: &str = "gateway";

/// Looks at the cluster at a time in seconds since 1970.
pub(super) fn judge(cluster: &Cluster, now: i64, findings: &mut Findings) {
    if !definitions::version(&cluster.version, findings) {
        return;
    }
    definitions::judge(&cluster.definitions, &kinference_api::crds::definitions(), findings);
    workload::judge(cluster, now, findings);
    resources::judge(cluster, findings);
    references::judge(cluster, findings);
    gateway(cluster, findings);
}

fn gateway(cluster: &Cluster, findings: &mut Findings) {
    let patches = match &cluster.envoy_filters {
        Ok(None) => return findings.ok(GATEWAY, "Istio is not installed here, so no EnvoyFilter is looked for"),
        Ok(Some(patches)) => patches,
        Err(reason) => {
            return findings.warning(
                GATEWAY,
                format!("EnvoyFilters cannot be listed: {reason}"),
                "allow list on envoyfilters.networking.istio.io to whoever checks",
            );
        }
    };
    let ours = patches.iter().filter(|patch| patch.data.to_string().contains("gatewayBackend")).count();
    if ours == 0 {
        findings.problem(
            GATEWAY,
            "Istio is installed, and no EnvoyFilter adds the filter to a gateway",
            "install the gateway part of the chart, or add the filter by an EnvoyFilter of your own",
        );
    } else {
        findings.ok(GATEWAY, format!("{} of Istio with the filter", super::finding::counted(ours, "EnvoyFilter")));
    }
}
