//! The Helm charts, rendered by the real Helm, on a real API server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kinference_bench::stack::KubernetesSource;
use kinference_e2e::alone;
use kinference_e2e::kubernetes::{Chart, Cluster, Manifest, Namespace, apply, dry_run};
use kube::Client;
use kube::api::{Api, ListParams};

use crate::common::{Fleet, answered_with, cluster, make_namespaces, must, repository, turned_away};

/// Projects whose kinds the charts' resources are of.
const PROJECTS: [&str; 3] = ["istio", "prometheus-operator", "cert-manager"];

#[test]
fn the_api_server_takes_the_charts_with_every_set_of_values() {
    alone(300, async {
        let cluster = cluster().await;
        for project in PROJECTS {
            must(cluster.install(project).await);
        }
        let namespace = must(cluster.namespace("release").await);
        let (mut wrong, mut count) = (Vec::new(), 0);
        for name in ["kinference", "kinference-istio"] {
            let folder = repository("charts").join(name);
            let chart = must(Chart::new(&folder));
            let sets = values(&folder.join("ci"));
            assert!(sets.len() >= 3, "{} has {} sets of values", folder.display(), sets.len());
            for set in &sets {
                let manifests = must(chart.render("release", namespace.name(), Some(set), &[]));
                make_namespaces(&cluster, &manifests).await;
                for manifest in &manifests {
                    count += 1;
                    if let Err(error) = dry_run(cluster.client(), namespace.name(), manifest).await {
                        wrong.push(format!("{name} with {}: {error}", set.display()));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
        eprintln!("{count} resources of the charts were taken");
        must(namespace.remove().await);
    });
}

/// Files with values, by name.
fn values(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = must(folder.read_dir()).filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

#[test]
fn the_admin_port_stays_within_the_cluster() {
    for exposed in ["LoadBalancer", "NodePort", "ClusterIP"] {
        let chart = must(Chart::new(repository("charts/kinference")));
        let manifests = must(chart.render("router", "team", None, &[format!("service.type={exposed}")]));
        let services = manifests.iter().filter(|manifest| manifest.kind() == "Service");
        let mut ports = Vec::new();
        for service in services {
            for port in service.object["spec"]["ports"].as_array().into_iter().flatten() {
                ports.push((service.name(), port["targetPort"].as_str(), service.object["spec"]["type"].as_str()));
            }
        }
        let expected = [
            ("router-kinference", Some("grpc"), Some(exposed)),
            ("router-kinference-admin", Some("admin"), Some("ClusterIP")),
        ];
        assert_eq!(ports, expected);
    }
}

#[test]
fn clients_need_a_name_that_the_chart_issues_or_that_is_stated() {
    let chart = must(Chart::new(repository("charts/kinference")));
    let names = |set: &[&str]| {
        let set: Vec<String> = set.iter().map(ToString::to_string).collect();
        let manifests = must(chart.render("router", "team", None, &set));
        let deployment = manifests.iter().find(|manifest| manifest.kind() == "Deployment").expect("a Deployment");
        let arguments = deployment.object["spec"]["template"]["spec"]["containers"][0]["args"].clone();
        let arguments: Vec<String> = must(serde_json::from_value(arguments));
        let names = arguments.iter().filter_map(|argument| argument.strip_prefix("--tls-client-name="));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let more = "tls.client.names={edge.example.com}";
    assert_eq!(names(&[]), ["kinference-gateway"]);
    assert_eq!(names(&["tls.mode=certManager", more]), ["kinference-gateway", "edge.example.com"]);
    assert_eq!(names(&["tls.mode=secret", more]), ["edge.example.com"]);
    assert_eq!(names(&["tls.mode=secret"]), [""; 0]);
    assert_eq!(names(&["tls.mode=disabled"]), [""; 0]);
}

#[test]
fn providers_are_of_the_gateway_backends_namespace() {
    let chart = must(Chart::new(repository("charts/kinference-istio")));
    let folder = repository("charts/kinference-istio/ci/all-options.yaml");
    let manifests = must(chart.render("filter", "gateway", Some(&folder), &[]));
    let text: String = manifests.iter().map(|manifest| manifest.object.to_string()).collect();
    // The second one of these values states no namespace.
    assert!(text.contains(r#""name":"kinference_provider_ai_lab""#), "{text}");
    assert!(!text.contains("kinference_provider_default_lab"), "{text}");
}

/// The Secrets of a rendering, by name: what is in them.
fn secrets_of(manifests: &[Manifest]) -> BTreeMap<String, BTreeMap<String, String>> {
    let secrets = manifests.iter().filter(|manifest| manifest.kind() == "Secret");
    let data = |manifest: &Manifest| must(serde_json::from_value(manifest.object["data"].clone()));
    secrets.map(|manifest| (manifest.name().to_owned(), data(manifest))).collect()
}

#[test]
fn generated_certificates_stay_and_what_is_missing_comes_from_the_same_authority() {
    alone(120, async {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("generated").await);
        let chart = must(Chart::new(repository("charts/kinference")));
        let upgrade = |set: &[String]| chart.render_in(cluster.kubeconfig(), "router", namespace.name(), set);
        let install = async |set: &[String]| {
            let manifests = must(upgrade(set));
            let secrets: Vec<_> = manifests.into_iter().filter(|manifest| manifest.kind() == "Secret").collect();
            must(apply(cluster.client(), namespace.name(), &secrets).await);
            secrets_of(&secrets)
        };
        let [authority, server, client] =
            ["generated-ca", "server-tls", "client-tls"].map(|part| format!("router-kinference-{part}"));
        let first = install(&[]).await;
        assert_eq!(first.len(), 3, "{:?}", first.keys());
        assert_eq!(first[&server]["ca.crt"], first[&authority]["tls.crt"]);
        assert_eq!(install(&[]).await, first, "an upgrade changes nothing");

        // One that is missing is made anew, and only that one.
        must(namespace.delete::<Secret>(&server).await);
        let second = install(&[]).await;
        assert_ne!(second[&server]["tls.crt"], first[&server]["tls.crt"]);
        assert_eq!(second[&server]["ca.crt"], first[&server]["ca.crt"]);
        assert_eq!((&second[&client], &second[&authority]), (&first[&client], &first[&authority]));

        // Other names are another certificate of the server.
        let names = ["tls.server.dnsNames={control.example.com}".to_owned()];
        let third = install(&names).await;
        assert_ne!(third[&server]["tls.crt"], second[&server]["tls.crt"]);
        assert_eq!(third[&server]["ca.crt"], first[&server]["ca.crt"]);
        assert_eq!((&third[&client], &third[&authority]), (&first[&client], &first[&authority]));
        assert_eq!(install(&names).await, third);

        // Without the authority's key certificates are kept, and what cannot be done is said.
        must(namespace.delete::<Secret>(&authority).await);
        let kept = install(&names).await;
        assert_eq!((kept.len(), &kept[&server], &kept[&client]), (2, &third[&server], &third[&client]));
        let error = upgrade(&[]).expect_err("names without a key to sign them").to_string();
        assert!(error.contains("tls.server.dnsNames") && error.contains(&authority), "{error}");
        must(namespace.remove().await);
    });
}

/// A service account with the rights that the chart gives it in a namespace, and nothing else of the chart. The Lease of a
/// release of this name is the one that a control service uses that is told no other.
async fn rights(cluster: &Cluster, release: &Namespace, set: &[String]) -> (Client, PathBuf) {
    let chart = must(Chart::new(repository("charts/kinference")));
    let rendered = must(chart.render("kinference", release.name(), None, set));
    let kinds = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    let rights: Vec<_> = rendered.into_iter().filter(|manifest| kinds.contains(&manifest.kind())).collect();
    must(apply(cluster.client(), release.name(), &rights).await);
    let account = rights.iter().find(|manifest| manifest.kind() == "ServiceAccount").expect("a service account");
    let token = must(release.token(account.name()).await);
    must(cluster.as_bearer(release.name(), &token).await)
}

/// Whether the API server refuses for want of rights.
fn forbidden<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403)
}

/// A fleet whose control service has the chart's rights; `namespaced` in its own namespace only.
async fn fleet_with_rights(namespaced: bool) -> (Fleet, Namespace, Client) {
    let cluster = cluster().await;
    let (release, fleet) = (must(cluster.namespace("release").await), must(cluster.namespace("fleet").await));
    must(fleet.put_secret("named", &[("token", "known")]).await);
    must(fleet.put_secret("unrelated", &[("token", "hidden")]).await);
    must(release.put_secret("unrelated", &[("token", "hidden")]).await);
    let mut set = vec!["rbac.secretNames={named}".to_owned()];
    if namespaced {
        set.push(format!("scope.namespaces={{{}}}", fleet.name()));
    }
    let (bearer, kubeconfig) = rights(&cluster, &release, &set).await;
    let change = |source: KubernetesSource| KubernetesSource {
        kubeconfig,
        namespace: source.namespace.filter(|_| namespaced),
        ..source
    };
    (Fleet::start_on(cluster, fleet, 2, 1, change).await, release, bearer)
}

/// What the control service does with the chart's rights, and what it cannot do.
async fn works_with_no_more_rights_than_it_needs(namespaced: bool) {
    let (fleet, release, bearer) = fleet_with_rights(namespaced).await;
    let client = fleet.stack.client();
    answered_with(&fleet, &client, 1, 200).await;
    must(fleet.namespace.apply(&turned_away(fleet.stack.model(), 429)).await);
    answered_with(&fleet, &client, 1, 429).await;
    crate::statuses::policy_in_force(&fleet.namespace, "closed").await;

    let secrets = |namespace: &Namespace| Api::<Secret>::namespaced(bearer.clone(), namespace.name());
    must(secrets(&fleet.namespace).get("named").await);
    assert!(forbidden(secrets(&fleet.namespace).get("unrelated").await));
    assert!(forbidden(secrets(&fleet.namespace).list(&ListParams::default()).await));
    assert!(forbidden(secrets(&release).get("unrelated").await));
    let pods = Api::<Pod>::namespaced(bearer.clone(), fleet.namespace.name());
    assert!(forbidden(pods.delete(&fleet.workers[0].name, &Default::default()).await));
    let elsewhere = Api::<Pod>::namespaced(bearer.clone(), "kube-system").list(&ListParams::default()).await;
    assert_eq!(forbidden(elsewhere), namespaced);
    must(release.remove().await);
    fleet.end().await;
}

#[test]
fn a_role_in_one_namespace_is_enough_and_reads_no_other_secret() {
    alone(180, works_with_no_more_rights_than_it_needs(true));
}

#[test]
fn a_cluster_role_is_enough_and_reads_no_other_secret() {
    alone(180, works_with_no_more_rights_than_it_needs(false));
}
