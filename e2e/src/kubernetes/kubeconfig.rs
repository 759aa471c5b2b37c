//! Kubeconfig files, the way that programs are told of a cluster and who they are.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kinference_bench::stack::StackError;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use super::error::KubernetesError;

/// Writes one for a server with its certificate's file, for the bearer of a token.
pub(super) fn write(path: &Path, server: &str, authority: &Path, token: &str) -> Result<(), KubernetesError> {
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    });
    secret(path, &text.to_string())
}

/// Writes one for the same cluster as `of`, for the bearer of a token in a namespace.
pub(super) fn with_token(path: &Path, of: &Path, namespace: &str, token: &str) -> Result<(), KubernetesError> {
    let fail = |reason: String| KubernetesError::Kubeconfig { path: of.display().to_string(), reason };
    let whole = Kubeconfig::read_from(of).map_err(|error| fail(error.to_string()))?;
    let current = whole.current_context.clone().unwrap_or_default();
    let context = whole.contexts.iter().find(|context| context.name == current).and_then(|c| c.context.as_ref());
    let name = context.map(|context| context.cluster.as_str()).unwrap_or_default();
    let cluster = whole.clusters.iter().find(|cluster| cluster.name == name);
    let cluster =
        cluster.and_then(|cluster| cluster.cluster.as_ref()).ok_or_else(|| fail("no current cluster".into()))?;
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}],
        "current-context": "tests",
    });
    secret(path, &text.to_string())
}

/// A client of a kubeconfig's cluster.
pub(super) async fn client(path: &Path) -> Result<Client, KubernetesError> {
    let fail = |reason: String| KubernetesError::Kubeconfig { path: path.display().to_string(), reason };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| fail(error.to_string()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| fail(error.to_string()))?;
    Client::try_from(config).map_err(|error| fail(error.to_string()))
}

/// Writes a file that only its owner can read.
pub(super) fn secret(path: &Path, text: &str) -> Result<(), KubernetesError> {
    use std::io::Write;
    let file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    Ok(written.map_err(StackError::io("write", path))?)
}
