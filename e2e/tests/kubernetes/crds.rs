//! The definitions of the five kinds on a real API server.

use kinference_e2e::alone;
use kinference_e2e::kubernetes::{dry_run, read_files};
use kube::discovery;

use crate::common::{cluster, must, repository};

#[test]
fn the_five_kinds_are_installed_by_server_side_apply() {
    alone(120, async {
        let cluster = cluster().await;
        // As an upgrade does.
        must(cluster.define(&must(read_files(&repository("crds")))).await);
        let group = must(discovery::group(cluster.client(), "kinference.dev").await);
        let mut kinds = Vec::new();
        for (resource, capabilities) in group.recommended_resources() {
            assert_eq!(capabilities.scope, discovery::Scope::Namespaced, "{}", resource.kind);
            assert!(capabilities.supports_operation(discovery::verbs::WATCH), "{}", resource.kind);
            let status = capabilities.subresources.iter().any(|(subresource, _)| subresource.plural == "status");
            assert!(status, "{} has no status", resource.kind);
            kinds.push(resource.kind);
        }
        kinds.sort();
        let five = ["GatewayBackend", "InferencePolicy", "InferencePool", "InferenceProvider", "InferenceWorkerSet"];
        assert_eq!(kinds, five);
    });
}

#[test]
fn the_api_server_refuses_what_is_wrong_and_says_why() {
    alone(120, async {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("rejected").await);
        let manifests = must(read_files(&repository("testdata/kubernetes/rejected")));
        assert!(manifests.len() >= 20, "only {} cases", manifests.len());
        let mut wrong = Vec::new();
        for manifest in &manifests {
            let text = must(std::fs::read_to_string(&manifest.from));
            let expected = text.lines().next().and_then(|line| line.strip_prefix("# expect: "));
            let expected = expected.unwrap_or_else(|| panic!("{}: no `# expect: ` in its first line", manifest.from));
            match dry_run(cluster.client(), namespace.name(), manifest).await {
                Ok(()) => wrong.push(format!("{}: accepted; expected: {expected}", manifest.from)),
                Err(error) if error.to_string().contains(expected) => {}
                Err(error) => wrong.push(format!("{}: expected: {expected}\n  got: {error}", manifest.from)),
            }
        }
        assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), manifests.len(), wrong.join("\n"));
        must(namespace.remove().await);
    });
}

#[test]
fn the_api_server_takes_what_is_right() {
    alone(120, async {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("accepted").await);
        let mut manifests = Vec::new();
        for folder in ["testdata/kubernetes/accepted", "examples/policies", "examples/local"] {
            let found = must(read_files(&repository(folder)));
            assert!(!found.is_empty(), "{folder} is empty");
            // Tests of policies are for the command line, no kind of the API server.
            manifests.extend(found.into_iter().filter(|manifest| manifest.kind() != "PolicyTest"));
        }
        let mut wrong = Vec::new();
        for manifest in &manifests {
            if let Err(error) = dry_run(cluster.client(), namespace.name(), manifest).await {
                wrong.push(error.to_string());
            }
        }
        assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), manifests.len(), wrong.join("\n"));
        must(namespace.remove().await);
    });
}
