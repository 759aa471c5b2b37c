//! Where programs and files are that `cargo xtask setup` gets.

use std::path::PathBuf;

use super::error::KubernetesError;

/// A folder with `kube-apiserver` and `etcd`.
pub(super) fn api_server() -> Result<PathBuf, KubernetesError> {
    find("KUBEBUILDER_ASSETS", "kubernetes-", "", "kube-apiserver", "kubernetes")
}

/// Helm.
pub(super) fn helm() -> Result<PathBuf, KubernetesError> {
    find("HELM", "helm-", "helm", "Helm", "kubernetes")
}

/// istiod.
pub(super) fn istiod() -> Result<PathBuf, KubernetesError> {
    find("ISTIOD", "istio-", "pilot-discovery", "istiod", "istio")
}

/// Folder of a project's CRDs: `istio`, `envoy-gateway` (with those of the Gateway API), `prometheus-operator`,
/// `cert-manager`.
pub(super) fn crds(project: &str) -> Result<PathBuf, KubernetesError> {
    cached(&format!("{project}-"), "crds").ok_or_else(|| KubernetesError::Missing {
        what: "a folder of CRDs",
        looked: format!("those of {project} are not in the cache"),
        task: "kubernetes",
    })
}

/// What `variable` names, else `name` in the newest folder of the cache whose own name begins with `folder`.
fn find(
    variable: &'static str,
    folder: &str,
    name: &str,
    what: &'static str,
    task: &'static str,
) -> Result<PathBuf, KubernetesError> {
    let missing = |looked: String| KubernetesError::Missing { what, looked, task };
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from) {
        return if path.exists() {
            Ok(path)
        } else {
            Err(missing(format!("${variable} names {}, which is not there", path.display())))
        };
    }
    cached(folder, name).ok_or_else(|| missing(format!("it is neither in ${variable} nor in the cache")))
}

/// `name` in the newest folder of the cache whose own name begins with `folder`.
fn cached(folder: &str, name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let entries = cache.join("kinference").read_dir().ok()?.filter_map(Result::ok);
    let versions = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(folder));
    versions.map(|entry| entry.path().join(name)).filter(|path| path.exists()).max()
}
