//! What the control service's Deployment needs: Secrets that it mounts, and rights of its service account.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::references::Reference;
use crate::commands::check::world::Named;

/// The Lease by which one replica writes statuses, where the control service is not told another.
const LEASE: &str = "kinference-control-status";

/// Something to be done to a kind of resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands::check) struct Access {
    pub(in crate::commands::check) verb: &'static str,
    pub(in crate::commands::check) group: &'static str,
    /// With its subresource: `inferencepools/status`.
    pub(in crate::commands::check) resource: String,
    /// The one resource that is meant; absent for all.
    pub(in crate::commands::check) name: Option<String>,
    pub(in crate::commands::check) namespace: String,
}

/// The name of a Deployment, in `default` when it states no namespace.
pub(super) fn named(deployment: &Deployment) -> Named {
    let namespace = deployment.namespace().unwrap_or_else(|| kinference_api::DEFAULT_NAMESPACE.into());
    Named { namespace, name: deployment.name_any() }
}

/// The Secrets that a Deployment mounts.
pub(in crate::commands::check) fn secrets_of(deployment: &Deployment) -> Vec<Named> {
    let namespace = named(deployment).namespace;
    let pod = deployment.spec.template.spec.as_ref();
    let volumes = pod.iter().flat_map(|pod| pod.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone());
    names.map(|name| Named { namespace: namespace.clone(), name }).collect()
}

/// The Lease by which a Deployment's replicas agree on the one that writes statuses.
pub(in crate::commands::check) fn lease_of(deployment: &Deployment) -> String {
    let pod = deployment.spec.template.spec.as_ref();
    let containers = pod.iter().flat_map(|pod| &pod.containers);
    let mut arguments = containers.flat_map(|container| container.args.iter().flatten());
    while let Some(argument) = arguments.next() {
        let Some(rest) = argument.strip_prefix("--lease-name") else { continue };
        let name = if rest.is_empty() { arguments.next().map(String::as_str) } else { rest.strip_prefix('=') };
        if let Some(name) = name {
            return name.to_owned();
        }
    }
    LEASE.to_owned()
}

/// What a control service in namespace `home` must be allowed to do: with its Lease, and for resources in these
/// namespaces, which refer to these Secrets and ConfigMaps. It reads no others, so its role may be narrowed to their
/// names.
pub(in crate::commands::check) fn rights(
    home: &str,
    lease: &str,
    namespaces: &[String],
    referred: &[Reference],
) -> Vec<Access> {
    let kinds = kinference_api::crds::definitions();
    let plurals: Vec<String> = kinds.into_iter().map(|definition| definition.spec.names.plural).collect();
    let access = |verb, group, resource: &str, namespace: &str| Access {
        verb,
        group,
        resource: resource.to_owned(),
        name: None,
        namespace: namespace.to_owned(),
    };
    let mut needed = Vec::new();
    for namespace in namespaces {
        for verb in ["list", "watch"] {
            needed.push(access(verb, "", "pods", namespace));
            for plural in &plurals {
                needed.push(access(verb, kinference_api::GROUP, plural, namespace));
            }
        }
        for plural in &plurals {
            needed.push(access("patch", kinference_api::GROUP, &format!("{plural}/status"), namespace));
        }
    }
    for Reference { to, is_secret, .. } in referred {
        let resource = if *is_secret { "secrets" } else { "configmaps" };
        for verb in ["list", "watch"] {
            let access = Access { name: Some(to.name.clone()), ..access(verb, "", resource, &to.namespace) };
            if !needed.contains(&access) {
                needed.push(access);
            }
        }
    }
    for (verb, name) in [("create", None), ("get", Some(lease)), ("update", Some(lease))] {
        let name = name.map(str::to_owned);
        needed.push(Access { name, ..access(verb, "coordination.k8s.io", "leases", home) });
    }
    needed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rights_are_asked_for_the_lease_of_the_deployment() {
        let lease = |args: &[&str]| {
            let containers = json!([{"name": "control", "args": args}]);
            let spec = json!({"selector": {}, "template": {"spec": {"containers": containers}}});
            lease_of(&serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap())
        };
        assert_eq!(lease(&["--kubernetes"]), "kinference-control-status");
        assert_eq!(lease(&["--kubernetes", "--lease-name=one", "--log=info"]), "one");
        assert_eq!(lease(&["--lease-namespace=a", "--lease-name", "two"]), "two");
        let named = rights("home", "one", &[], &[]).into_iter().filter_map(|access| access.name);
        assert_eq!(named.collect::<Vec<_>>(), ["one", "one"]);
    }
}
