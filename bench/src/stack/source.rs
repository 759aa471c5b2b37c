//! Where the control service's configuration comes from.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the control service's configuration comes from.
#[derive(Debug, Clone, Default)]
pub enum Source {
    /// Files that the stack writes: one gateway backend with one worker set, which lists all workers of the stack.
    #[default]
    Files,
    /// A Kubernetes API server.
    Kubernetes(KubernetesSource),
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
}

impl Source {
    /// The gateway backend.
    pub(super) fn backend(&self) -> &str {
        match self {
            Self::Files => "default/main",
            Self::Kubernetes(source) => &source.backend,
        }
    }

    /// The worker set.
    pub(super) fn worker_set(&self) -> &str {
        match self {
            Self::Files => "default/simulated",
            Self::Kubernetes(source) => &source.worker_set,
        }
    }

    /// Tells the control service.
    pub(super) fn tell(&self, control: &mut Command, files: &Path) {
        match self {
            Self::Files => {
                control.arg("--config").arg(files);
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
