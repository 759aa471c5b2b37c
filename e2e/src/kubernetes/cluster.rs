//! A cluster: the test's own API server, or an existing one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kinference_bench::stack::{RunFolder, until};
use kube::Client;
use kube::api::{Api, ListParams};

use super::error::KubernetesError;
use super::manifests::{Manifest, apply, read_files};
use super::namespace::Namespace;
use super::server::Server;
use super::{kubeconfig, programs};

/// Time for the API server to serve new kinds: a second on a quiet machine.
const SERVED: Duration = Duration::from_secs(30);

/// A cluster and its administrator. When a test is failing, the end of the API server's log is shown and the logs kept.
pub struct Cluster {
    server: Option<Server>,
    folder: RunFolder,
    kubeconfig: PathBuf,
    client: Client,
}

impl Cluster {
    /// The cluster of `KUBECONFIG`, else an API server of the test's own, which ends with this.
    ///
    /// # Errors
    /// A program that is missing, or a server that did not start, with the end of its log.
    pub async fn start() -> Result<Self, KubernetesError> {
        let folder = RunFolder::new()?;
        let existing = std::env::var_os("KUBECONFIG").map(PathBuf::from);
        let server = match existing {
            Some(_) => None,
            None => Some(Server::start(folder.path()).await?),
        };
        let kubeconfig = existing.or_else(|| Some(server.as_ref()?.kubeconfig())).unwrap_or_default();
        let client = kubeconfig::client(&kubeconfig).await?;
        Ok(Self { server, folder, kubeconfig, client })
    }

    /// The administrator's client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A folder for a test's own files, removed with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Installs the CRDs of another project and waits until its kinds are served: `istio`, `envoy-gateway` (with those of
    /// the Gateway API), `prometheus-operator`, `cert-manager`.
    ///
    /// # Errors
    /// They were not fetched, or the API server refuses them.
    pub async fn install(&self, project: &str) -> Result<(), KubernetesError> {
        self.define(&read_files(&programs::crds(project)?)?).await
    }

    /// Applies CRDs and waits until their kinds are served.
    ///
    /// # Errors
    /// The API server refuses one.
    pub async fn define(&self, manifests: &[Manifest]) -> Result<(), KubernetesError> {
        apply(&self.client, "default", manifests).await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let names: Vec<_> =
            manifests.iter().filter(|m| m.kind() == "CustomResourceDefinition").map(Manifest::name).collect();
        until("kinds that are served", SERVED, async || {
            let list = definitions.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let served = |definition: &&CustomResourceDefinition| {
                let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions.into_iter().flatten().any(|c| c.type_ == "Established" && c.status == "True")
            };
            let served: Vec<_> =
                list.items.iter().filter(served).filter_map(|one| one.metadata.name.as_deref()).collect();
            let missing: Vec<_> = names.iter().filter(|name| !served.contains(name)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("not yet {missing:?}")) }
        })
        .await?;
        Ok(())
    }

    /// Makes a namespace of its own, whose name begins with `name`.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn namespace(&self, name: &str) -> Result<Namespace, KubernetesError> {
        Namespace::create(self, name).await
    }

    /// A client and a kubeconfig for the bearer of a token, whose own namespace is `namespace`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub async fn as_bearer(&self, namespace: &str, token: &str) -> Result<(Client, PathBuf), KubernetesError> {
        let path = self.folder.path().join(format!("{namespace}.kubeconfig"));
        kubeconfig::with_token(&path, &self.kubeconfig, namespace, token)?;
        Ok((kubeconfig::client(&path).await?, path))
    }

    /// Kills the API server. Its data stay.
    ///
    /// # Errors
    /// [`KubernetesError::NotOwn`] for an existing cluster.
    pub fn stop(&mut self) -> Result<(), KubernetesError> {
        self.server.as_mut().ok_or(KubernetesError::NotOwn)?.stop();
        Ok(())
    }

    /// Starts a stopped API server on its data and at its address, and returns when it is ready.
    ///
    /// # Errors
    /// [`KubernetesError::NotOwn`] for an existing cluster, or a server that did not start.
    pub async fn resume(&mut self) -> Result<(), KubernetesError> {
        self.server.as_mut().ok_or(KubernetesError::NotOwn)?.resume().await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(server) = &self.server
        {
            eprintln!("{}logs are kept in {}", server.tails(), self.folder.path().display());
        }
    }
}
