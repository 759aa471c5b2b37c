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

/// Filters that the control service has a connection of, by the statuses of the gateway backends.
fn connected(cluster: &Cluster) -> usize {
    let backends = cluster.resources.get("GatewayBackend").into_iter().flatten().flatten();
    backends.filter_map(|backend| backend.data["status"]["filters"]["connected"].as_u64()).sum::<u64>() as usize
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
        let connected = connected(cluster);
        if connected > 0 {
            let message = "connected, and none by an EnvoyFilter of Istio: the gateway is another Envoy";
            return findings.ok(GATEWAY, format!("{} {message}", super::finding::counted(connected, "filter")));
        }
        findings.warning(
            GATEWAY,
            "Istio is installed, no EnvoyFilter adds the filter to a gateway, and no filter is connected",
            "in Istio install the chart kinference-istio; in another Envoy see that it runs and reaches the control service",
        );
    } else {
        findings.ok(GATEWAY, format!("{} of Istio with the filter", super::finding::counted(ours, "EnvoyFilter")));
    }
}
