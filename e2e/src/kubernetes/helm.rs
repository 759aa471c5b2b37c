//! Helm charts, rendered by the real Helm.

use std::path::{Path, PathBuf};
use std::process::Command;

use kinference_bench::stack::StackError;

use super::error::KubernetesError;
use super::manifests::{Manifest, read};
use super::programs;

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    folder: PathBuf,
    helm: PathBuf,
}

impl Chart {
    /// The chart in a folder.
    ///
    /// # Errors
    /// Helm is missing.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self, KubernetesError> {
        Ok(Self { folder: folder.into(), helm: programs::helm()? })
    }

    /// Renders it as release `release` of a namespace, with a values file and single values (`name=value`), as
    /// `helm template --include-crds` does.
    ///
    /// # Errors
    /// Helm refuses, in its words.
    pub fn render(
        &self,
        release: &str,
        namespace: &str,
        values: Option<&Path>,
        set: &[String],
    ) -> Result<Vec<Manifest>, KubernetesError> {
        self.template(release, namespace, values, set, None)
    }

    /// Renders it as an install or upgrade would, which looks at what there is in the cluster.
    ///
    /// # Errors
    /// Helm refuses, in its words.
    pub fn render_in(
        &self,
        kubeconfig: &Path,
        release: &str,
        namespace: &str,
        set: &[String],
    ) -> Result<Vec<Manifest>, KubernetesError> {
        self.template(release, namespace, None, set, Some(kubeconfig))
    }

    fn template(
        &self,
        release: &str,
        namespace: &str,
        values: Option<&Path>,
        set: &[String],
        cluster: Option<&Path>,
    ) -> Result<Vec<Manifest>, KubernetesError> {
        let mut command = Command::new(&self.helm);
        command.args(["template", release]).arg(&self.folder).args(["--namespace", namespace, "--include-crds"]);
        if let Some(values) = values {
            command.arg("--values").arg(values);
        }
        if let Some(kubeconfig) = cluster {
            command.arg("--dry-run=server").arg("--kubeconfig").arg(kubeconfig);
        }
        for value in set {
            command.args(["--set", value]);
        }
        let output = command.output().map_err(StackError::io("run", &self.helm))?;
        if !output.status.success() {
            return Err(KubernetesError::Program {
                program: format!("helm template {}", self.folder.display()),
                status: output.status.to_string(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        read("helm template", &String::from_utf8_lossy(&output.stdout))
    }
}
