//! Gathers what a cluster is like. Whatever cannot be asked for is kept as the reason why.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kinference_api::certificate;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::cluster::needed;
use super::cluster::references::{self, Reference};
use super::world::{Asked, Cluster, Named, Right, SecretFacts};

/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For a connection to a Pod.
const CONNECT: Duration = Duration::from_secs(1);
/// Pods of a worker set to which a connection is tried.
const CONNECTIONS: usize = 8;
/// The chart's labels of the control service, whatever it is named.
const CHART: &str = "app.kubernetes.io/part-of=kinference,app.kubernetes.io/component=control";
const DEFAULT_NAMESPACE: &str = "default";

/// Connects as kubectl does: by the kubeconfig, or from within a Pod.
///
/// # Errors
/// When there is no way to a cluster in the configuration.
pub(super) async fn client(context: Option<&str>) -> Result<Client> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match Kubeconfig::read() {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("context {}: no way to its cluster", context.unwrap_or("in use")))?,
        Err(error) if context.is_some() => return Err(error).context("--context: the kubeconfig cannot be read"),
        Err(_) => Config::infer().await.context("there is neither a kubeconfig (KUBECONFIG) nor a Pod's account")?,
    };
    config.connect_timeout = Some(TIMEOUT);
    Ok(Client::try_from(config)?)
}

/// Within the time for one answer.
async fn asked<T>(answer: impl Future<Output = kube::Result<T>>) -> Asked<T> {
    match tokio::time::timeout(TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        // What the API server says, without the whole of its answer.
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(innermost(&error)),
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Looks at the cluster: one namespace, or all.
pub(super) async fn cluster(client: Client, namespace: Option<&str>) -> Cluster {
    let version = asked(client.apiserver_version()).await.and_then(|info| {
        let number =
            |text: &str| text.trim_end_matches('+').parse().map_err(|_| format!("version {text:?} is not known"));
        Ok((number(&info.major)?, number(&info.minor)?))
    });
    let mut cluster = Cluster {
        namespace: namespace.map(str::to_owned),
        definitions: Err(String::new()),
        deployments: Ok(Vec::new()),
        rights: Vec::new(),
        resources: BTreeMap::new(),
        secrets: BTreeMap::new(),
        config_maps: BTreeMap::new(),
        pods: BTreeMap::new(),
        connections: BTreeMap::new(),
        envoy_filters: Ok(None),
        version,
    };
    if cluster.version.is_err() {
        return cluster;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    cluster.definitions = list(&definitions, "").await;
    let deployments: Api<Deployment> = Api::all(client.clone());
    cluster.deployments = list(&deployments, CHART).await;
    for definition in kinference_api::crds::definitions() {
        let installed =
            cluster.definitions.as_ref().map(|all| all.iter().any(|one| one.metadata.name == definition.metadata.name));
        if installed == Ok(false) {
            // Told already.
            continue;
        }
        let names = definition.spec.names;
        let kind = GroupVersionKind::gvk(kinference_api::GROUP, kinference_api::VERSION, &names.kind);
        let api = dynamic(&client, ApiResource::from_gvk_with_plural(&kind, &names.plural), namespace);
        cluster.resources.insert(names.kind, list(&api, "").await);
    }
    envoy_filters(&client, &mut cluster).await;
    referred(&client, &mut cluster).await;
    pods(&client, &mut cluster).await;
    rights(&client, &mut cluster).await;
    cluster
}

fn dynamic(client: &Client, resource: ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn list<K>(api: &Api<K>, labels: &str) -> Asked<Vec<K>>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let listed = asked(api.list(&ListParams::default().labels(labels))).await?;
    Ok(listed.items)
}

async fn envoy_filters(client: &Client, cluster: &mut Cluster) {
    const NAME: &str = "envoyfilters.networking.istio.io";
    let installed = cluster.definitions.iter().flatten().any(|definition| definition.name_any() == NAME);
    if installed {
        let kind = GroupVersionKind::gvk("networking.istio.io", "v1alpha3", "EnvoyFilter");
        let api = dynamic(client, ApiResource::from_gvk_with_plural(&kind, "envoyfilters"), None);
        cluster.envoy_filters = list(&api, "").await.map(Some);
    }
}

/// What all resources refer to.
fn references_of(cluster: &Cluster) -> Vec<Reference> {
    let resources =
        cluster.resources.iter().flat_map(|(kind, resources)| resources.iter().flatten().map(move |r| (kind, r)));
    resources.flat_map(|(kind, resource)| references::references(kind, resource)).collect()
}

/// Secrets and ConfigMaps that resources and the Deployment name.
async fn referred(client: &Client, cluster: &mut Cluster) {
    let mut secrets: BTreeSet<Named> = cluster.deployments.iter().flatten().flat_map(needed::secrets_of).collect();
    let mut config_maps = BTreeSet::new();
    for reference in references_of(cluster) {
        if reference.is_secret {
            secrets.insert(reference.to)
        } else {
            config_maps.insert(reference.to)
        };
    }
    for named in secrets {
        let api: Api<Secret> = Api::namespaced(client.clone(), &named.namespace);
        let found = asked(api.get_opt(&named.name)).await.map(|secret| secret.as_ref().map(secret_facts));
        cluster.secrets.insert(named, found);
    }
    for named in config_maps {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &named.namespace);
        let found = asked(api.get_opt(&named.name)).await;
        cluster.config_maps.insert(named, found.map(|map| map.as_ref().map(config_map_keys)));
    }
}

/// The keys of a ConfigMap, those of files that are no text too.
fn config_map_keys(map: &ConfigMap) -> BTreeSet<String> {
    let texts = map.data.iter().flat_map(BTreeMap::keys);
    texts.chain(map.binary_data.iter().flat_map(BTreeMap::keys)).cloned().collect()
}

/// What is kept of a Secret: no value.
fn secret_facts(secret: &Secret) -> SecretFacts {
    let data = secret.data.as_ref();
    let certificate = data.and_then(|data| data.get("tls.crt"));
    let expires = certificate.and_then(|pem| {
        let der = CertificateDer::from_pem_slice(&pem.0).ok()?;
        Some(certificate::validity(&der).ok()?.until)
    });
    SecretFacts { keys: data.into_iter().flat_map(BTreeMap::keys).cloned().collect(), certificate_expires: expires }
}

async fn pods(client: &Client, cluster: &mut Cluster) {
    let Some(Ok(sets)) = cluster.resources.get("InferenceWorkerSet") else { return };
    for set in sets {
        let Some(selector) = references::selector(set) else { continue };
        let named = Named { namespace: set.namespace().unwrap_or_default(), name: set.name_any() };
        let api: Api<Pod> = Api::namespaced(client.clone(), &named.namespace);
        let pods = list(&api, &selector).await;
        let ready = pods.iter().flatten().filter(|pod| references::is_ready(pod));
        let addresses: Vec<SocketAddr> =
            ready.filter_map(|pod| references::address(pod, set)).take(CONNECTIONS).collect();
        for address in addresses {
            let connected = tokio::time::timeout(CONNECT, tokio::net::TcpStream::connect(address)).await;
            let result = match connected {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer".into()),
            };
            cluster.connections.insert(address.to_string(), result);
        }
        cluster.pods.insert(named, pods);
    }
}

/// Asks for each right of the service account of each Deployment.
async fn rights(client: &Client, cluster: &mut Cluster) {
    let namespaces = match &cluster.namespace {
        Some(namespace) => vec![namespace.clone()],
        None => {
            let all = cluster.resources.values().flatten().flatten().filter_map(ResourceExt::namespace);
            all.collect::<BTreeSet<_>>().into_iter().collect()
        }
    };
    let referred = references_of(cluster);
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for deployment in cluster.deployments.iter().flatten() {
        let pod = deployment.spec.template.spec.as_ref();
        let account = Named {
            namespace: deployment.namespace().unwrap_or_else(|| DEFAULT_NAMESPACE.into()),
            name: pod.and_then(|pod| pod.service_account_name.clone()).unwrap_or_else(|| DEFAULT_NAMESPACE.into()),
        };
        let lease = needed::lease_of(deployment);
        for access in needed::rights(&account.namespace, &lease, &namespaces, &referred) {
            let (resource, subresource) = match access.resource.split_once('/') {
                Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
                None => (access.resource.as_str(), None),
            };
            let attributes = ResourceAttributes {
                verb: Some(access.verb.into()),
                group: Some(access.group.into()),
                resource: Some(resource.into()),
                subresource,
                name: access.name.clone(),
                namespace: Some(access.namespace.clone()),
                ..ResourceAttributes::default()
            };
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(format!("system:serviceaccount:{}:{}", account.namespace, account.name)),
                    groups: Some(vec![
                        "system:serviceaccounts".into(),
                        format!("system:serviceaccounts:{}", account.namespace),
                        "system:authenticated".into(),
                    ]),
                    resource_attributes: Some(attributes),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            let answer = asked(reviews.create(&PostParams::default(), &review)).await;
            let allowed = answer.map(|review| review.status.is_some_and(|status| status.allowed));
            let refused = allowed.is_err();
            cluster.rights.push(Right { account: account.clone(), access, allowed });
            if refused {
                // The others would be refused too.
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_text_are_of_a_config_map_too() {
        let map = serde_json::json!({"data": {"chat_template.jinja": ""}, "binaryData": {"tokenizer.json": "AA=="}});
        let keys = config_map_keys(&serde_json::from_value(map).unwrap());
        assert_eq!(keys, ["chat_template.jinja", "tokenizer.json"].map(String::from).into());
    }
}
