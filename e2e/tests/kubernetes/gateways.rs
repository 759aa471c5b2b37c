//! Resources for gateways of other projects, of which no control plane runs here: their schemas must take them.

use kinference_e2e::alone;
use kinference_e2e::kubernetes::{dry_run, read_files};

use crate::common::{cluster, make_namespaces, must, repository};

#[test]
fn the_schemas_of_envoy_gateway_take_its_example() {
    alone(180, async {
        let cluster = cluster().await;
        must(cluster.install("envoy-gateway").await);
        let namespace = must(cluster.namespace("gateway").await);
        let manifests = must(read_files(&repository("examples/gateways/envoy-gateway")));
        make_namespaces(&cluster, &manifests).await;
        let (mut wrong, mut theirs) = (Vec::new(), 0);
        for manifest in &manifests {
            let group = manifest.object["apiVersion"].as_str().unwrap_or_default();
            theirs += usize::from(group.starts_with("gateway.envoyproxy.io/"));
            if let Err(error) = dry_run(cluster.client(), namespace.name(), manifest).await {
                wrong.push(error.to_string());
            }
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), manifests.len(), wrong.join("\n"));
        assert!(theirs > 0, "no resource is of Envoy Gateway's kinds");
        must(namespace.remove().await);
    });
}
