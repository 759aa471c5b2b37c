//! What the tests on a real Kubernetes API server need: the server and its etcd, Helm, Istio, schemas of others.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::go::{Definitions, Program};
use super::on_path;
use crate::run::{status, step};

const API_SERVER: Program = Program {
    folder: "kubernetes",
    module: "k8s.io/kubernetes",
    package: "k8s.io/kubernetes/cmd/kube-apiserver",
    name: "kube-apiserver",
    // Clients read the version, and a server without one calls itself 0.0.0.
    link: "-X k8s.io/component-base/version.gitVersion=v{version} \
           -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
    takes: "6 to 9 minutes",
};

const HELM: Program = Program {
    folder: "helm",
    module: "helm.sh/helm/v3",
    package: "helm.sh/helm/v3/cmd/helm",
    name: "helm",
    link: "-X helm.sh/helm/v3/internal/version.version=v{version}",
    takes: "2 to 4 minutes",
};

const ISTIOD: Program = Program {
    folder: "istio",
    module: "istio.io/istio",
    package: "istio.io/istio/pilot/cmd/pilot-discovery",
    name: "pilot-discovery",
    link: "",
    takes: "10 to 15 minutes",
};

/// Kinds of other projects, of which the chart and the examples have resources.
const DEFINITIONS: [Definitions; 4] = [
    Definitions { folder: "istio", module: "istio.io/istio", files: &["manifests/charts/base/files/crd-all.gen.yaml"] },
    Definitions {
        folder: "envoy-gateway",
        module: "github.com/envoyproxy/gateway",
        files: &["charts/gateway-helm/charts/crds/crds", "charts/gateway-helm/charts/crds/crds/generated"],
    },
    Definitions {
        folder: "prometheus-operator",
        module: "github.com/prometheus-operator/prometheus-operator",
        files: &["example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"],
    },
    Definitions { folder: "cert-manager", module: "github.com/cert-manager/cert-manager", files: &["deploy/crds"] },
];

/// The API server that the tests run on.
pub(crate) enum Server {
    /// A folder with `kube-apiserver` and `etcd`, which the tests start by themselves.
    Programs(PathBuf),
    /// An existing cluster, by its kubeconfig.
    Cluster(PathBuf),
}

/// Everything that the tests on an API server are given. The CRDs of others they find in the cache.
pub(crate) struct Assets {
    pub(crate) server: Server,
    pub(crate) helm: PathBuf,
    /// Absent: not built.
    pub(crate) istiod: Option<PathBuf>,
}

/// Gives what is there, and builds or fetches what is not; istiod only when it is there.
pub(crate) fn run(root: &Path) -> Result<Assets> {
    let server = server(root)?;
    match &server {
        Server::Programs(folder) => println!("Kubernetes: {}", folder.display()),
        Server::Cluster(kubeconfig) => println!("Kubernetes: the cluster of {}", kubeconfig.display()),
    }
    let helm = helm(root)?;
    println!("Helm: {}", helm.display());
    for definitions in &DEFINITIONS {
        definitions.fetch(root)?;
    }
    Ok(Assets { server, helm, istiod: ISTIOD.built(root)? })
}

/// Builds istiod when it is not there.
pub(crate) fn istio(root: &Path) -> Result<()> {
    println!("istiod: {}", ISTIOD.get(root)?.display());
    Ok(())
}

/// An existing cluster and existing programs come before what is built here.
fn server(root: &Path) -> Result<Server> {
    if let Some(path) = std::env::var_os("KUBECONFIG").map(PathBuf::from) {
        if !path.is_file() {
            bail!("$KUBECONFIG names {}, which is not a file", path.display());
        }
        return Ok(Server::Cluster(path));
    }
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) {
        for name in ["kube-apiserver", "etcd"] {
            if !folder.join(name).is_file() {
                bail!("$KUBEBUILDER_ASSETS names {}, which has no {name}", folder.display());
            }
        }
        return Ok(Server::Programs(folder));
    }
    let api_server = API_SERVER.get(root)?;
    let folder = api_server.parent().context("the cache has no folder")?.to_owned();
    let (etcd, link) = (etcd()?, folder.join("etcd"));
    // Beside the API server, as everywhere else where such a folder is made.
    if std::fs::read_link(&link).ok().as_ref() != Some(&etcd) {
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&etcd, &link).with_context(|| format!("cannot write {}", link.display()))?;
    }
    Ok(Server::Programs(folder))
}

/// Debian's etcd is enough; there is none in the registries of languages.
fn etcd() -> Result<PathBuf> {
    const PACKAGE: &str = "etcd-server";
    if let Some(path) = on_path("etcd") {
        return Ok(path);
    }
    let missing = format!(
        "there is no etcd on the PATH; install it (Debian, Ubuntu: apt-get install {PACKAGE}; macOS: brew install etcd)"
    );
    if on_path("apt-get").is_none() || !is_root() {
        bail!(missing);
    }
    step(&format!("installing {PACKAGE} with apt-get"));
    let apt = |args: &[&str]| status(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    apt(&["update", "--quiet"])?;
    apt(&["install", "--quiet", "--yes", "--no-install-recommends", PACKAGE])?;
    on_path("etcd").context(missing)
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn helm(root: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HELM").map(PathBuf::from) {
        if !path.is_file() {
            bail!("$HELM names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    on_path("helm").map_or_else(|| HELM.get(root), Ok)
}
