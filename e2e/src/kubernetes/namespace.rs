//! A namespace of a test, and what tests do in one.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as Resource, Pod, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::cluster::Cluster;
use super::error::KubernetesError;
use super::manifests::{apply, read};
use super::pods::Worker;

/// Requests at a time where there are many to be sent.
const AT_ONCE: usize = 32;

/// A namespace of a test's own.
#[derive(Clone)]
pub struct Namespace {
    client: Client,
    name: String,
}

impl Namespace {
    pub(super) async fn create(cluster: &Cluster, name: &str) -> Result<Self, KubernetesError> {
        let client = cluster.client().clone();
        let metadata = ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() };
        let namespace = Resource { metadata, ..Resource::default() };
        let created = Api::<Resource>::all(client.clone()).create(&PostParams::default(), &namespace).await;
        let created = created.map_err(KubernetesError::api(format!("make a namespace {name}")))?;
        Ok(Self { client, name: created.metadata.name.unwrap_or_default() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of something in it as the control service writes it: `NAMESPACE/NAME`.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// The objects of a kind in it.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// One object.
    ///
    /// # Errors
    /// There is none of the name.
    pub async fn get<K>(&self, name: &str) -> Result<K, KubernetesError>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let what = format!("get {} {}", K::kind(&()), self.key(name));
        self.api::<K>().get(name).await.map_err(KubernetesError::api(what))
    }

    /// Applies YAML.
    ///
    /// # Errors
    /// No YAML, or what the API server refuses, in its words.
    pub async fn apply(&self, yaml: &str) -> Result<(), KubernetesError> {
        apply(&self.client, &self.name, &read("the test", yaml)?).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// There is none of the name.
    pub async fn delete<K>(&self, name: &str) -> Result<(), KubernetesError>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let what = format!("delete {} {}", K::kind(&()), self.key(name));
        let deleted = self.api::<K>().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(KubernetesError::api(what))
    }

    /// Makes a worker's Pod, ready or not.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn add(&self, worker: &Worker, ready: bool) -> Result<(), KubernetesError> {
        let params = PatchParams::apply("kinference-tests").force();
        let made = self.api::<Pod>().patch(&worker.name, &params, &Patch::Apply(&worker.manifest())).await;
        made.map_err(KubernetesError::api(format!("make Pod {}", self.key(&worker.name))))?;
        self.set_ready(worker, ready).await
    }

    /// Makes the Pods of many workers, ready.
    ///
    /// # Errors
    /// The API server refuses one.
    pub async fn add_all(&self, workers: &[Worker]) -> Result<(), KubernetesError> {
        let made = stream::iter(workers).map(|worker| self.add(worker, true)).buffer_unordered(AT_ONCE);
        made.try_collect().await
    }

    /// Applies many YAML texts, several at a time.
    ///
    /// # Errors
    /// The API server refuses one.
    pub async fn apply_all(&self, texts: &[String]) -> Result<(), KubernetesError> {
        stream::iter(texts).map(|text| self.apply(text)).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Writes the status of a worker's Pod.
    ///
    /// # Errors
    /// There is no such Pod.
    pub async fn set_ready(&self, worker: &Worker, ready: bool) -> Result<(), KubernetesError> {
        let status = Patch::Merge(worker.status(ready));
        let set = self.api::<Pod>().patch_status(&worker.name, &PatchParams::default(), &status).await;
        set.map(drop).map_err(KubernetesError::api(format!("write the status of Pod {}", self.key(&worker.name))))
    }

    /// Writes a ConfigMap, over the one of the name.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn put_config_map(&self, name: &str, data: &[(&str, &str)]) -> Result<(), KubernetesError> {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        let params = PatchParams::apply("kinference-tests").force();
        let put = self.api::<ConfigMap>().patch(name, &params, &Patch::Apply(&object)).await;
        put.map(drop).map_err(KubernetesError::api(format!("write ConfigMap {}", self.key(name))))
    }

    /// Writes a Secret, over the one of the name.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn put_secret(&self, name: &str, data: &[(&str, &str)]) -> Result<(), KubernetesError> {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
        let params = PatchParams::apply("kinference-tests").force();
        let put = self.api::<Secret>().patch(name, &params, &Patch::Apply(&object)).await;
        put.map(drop).map_err(KubernetesError::api(format!("write Secret {}", self.key(name))))
    }

    /// A token of a service account, for an hour.
    ///
    /// # Errors
    /// There is no such account.
    pub async fn token(&self, service_account: &str) -> Result<String, KubernetesError> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let accounts = self.api::<ServiceAccount>();
        let granted = accounts.create_token_request(service_account, &PostParams::default(), &request).await;
        let what = format!("get a token of ServiceAccount {}", self.key(service_account));
        let granted = granted.map_err(KubernetesError::api(what))?;
        Ok(granted.status.and_then(|status| status.token).unwrap_or_default())
    }

    /// Removes it with everything in it. An API server of a test's own ends with the test anyway.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn remove(&self) -> Result<(), KubernetesError> {
        let deleted = Api::<Resource>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(KubernetesError::api(format!("remove the namespace {}", self.name)))
    }
}
