//! Where the control service's configuration comes from.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the control service's configuration comes from.
#[derive(Debug, Clone, Default)]
pub enum Source {
    /// Files that the stack writes: one gateway backend with one worker set, which lists all workers of the stack.
    #[default]
    Files,
    /// Files that somebody else wrote.
    Given(GivenSource),
    /// A Kubernetes API server.
    Kubernetes(KubernetesSource),
}

/// A folder of files, and what in it a stack is about. The gateway backend is `main`.
#[derive(Debug, Clone)]
pub struct GivenSource {
    /// The configuration.
    pub config: PathBuf,
    /// Secrets of providers.
    pub secrets: PathBuf,
    /// Authorities of providers' certificates, in PEM.
    pub provider_ca: PathBuf,
    /// The worker set whose workers the stack waits for: `NAMESPACE/NAME`.
    pub worker_set: String,
    /// How many workers of the set the stack waits for.
    pub workers: usize,
    /// How many endpoints Envoy gets: all workers and providers.
    pub endpoints: usize,
}

/// A cluster, and what in it a stack is about.
#[derive(Debug, Clone)]
pub struct KubernetesSource {
    /// How the control service finds the cluster, and who it is.
    pub kubeconfig: PathBuf,
    /// The namespace that it looks at; absent: all.
    pub namespace: Option<String>,
    /// The gateway backend whose filters Envoy runs: `NAMESPACE/NAME`.
    pub backend: String,
    /// The worker set whose workers the stack waits for: `NAMESPACE/NAME`.
    pub worker_set: String,
    /// How many workers of the set the stack waits for.
    pub workers: usize,
    /// Files with the same resources, of which Envoy gets the ways to the backend's providers. Absent: it has no provider.
    pub files: Option<PathBuf>,
    /// How many endpoints Envoy gets: all workers and providers.
    pub endpoints: usize,
}

impl Source {
    /// The gateway backend.
    pub(super) fn backend(&self) -> &str {
        match self {
            Self::Files | Self::Given(_) => "default/main",
            Self::Kubernetes(source) => &source.backend,
        }
    }

    /// The worker set.
    pub(super) fn worker_set(&self) -> &str {
        match self {
            Self::Files => "default/simulated",
            Self::Given(source) => &source.worker_set,
            Self::Kubernetes(source) => &source.worker_set,
        }
    }

    /// Tells `kinfctl envoy-config`.
    pub(super) fn tell_gateway(&self, command: &mut Command) {
        command.args(["--gateway-backend", self.backend()]);
        match self {
            Self::Files => {}
            Self::Given(source) => {
                command.arg(&source.config).arg("--provider-ca").arg(&source.provider_ca);
            }
            Self::Kubernetes(source) => {
                command.args(&source.files);
            }
        }
    }

    /// Tells the control service.
    pub(super) fn tell(&self, control: &mut Command, files: &Path) {
        match self {
            Self::Files => {
                control.arg("--config").arg(files);
            }
            Self::Given(source) => {
                control.arg("--config").arg(&source.config).arg("--secrets").arg(&source.secrets);
            }
            Self::Kubernetes(source) => {
                control.arg("--kubernetes").arg("--kubeconfig").arg(&source.kubeconfig);
                if let Some(namespace) = &source.namespace {
                    control.args(["--namespace", namespace]);
                }
            }
        }
    }
}
