//! What can go wrong with an API server and what is asked of it.

use kinference_bench::stack::StackError;
use thiserror::Error;

/// Why a cluster cannot be started, or does not do what it is asked.
#[derive(Debug, Error)]
pub enum KubernetesError {
    /// A program or folder that was not built or fetched.
    #[error("{what} is missing: {looked}; `cargo xtask setup --{task}` gets it")]
    Missing {
        /// The program or folder.
        what: &'static str,
        /// Where it was looked for.
        looked: String,
        /// What is to be set up.
        task: &'static str,
    },
    /// A process that did not start, or a file that cannot be written.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The API server refuses, or does not answer.
    #[error("cannot {what}: {}", reason(source))]
    Api {
        /// What was asked for.
        what: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Text that is no Kubernetes object.
    #[error("{what}: {reason}")]
    Manifest {
        /// Where the text comes from.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that only a server of the test's own allows.
    #[error("the API server is not this test's own ($KUBECONFIG): it cannot be stopped")]
    NotOwn,
    /// A kubeconfig that cannot be used.
    #[error("the kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A program that failed.
    #[error("{program} failed ({status}): {stderr}")]
    Program {
        /// Its name and arguments.
        program: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
}

impl KubernetesError {
    /// Wraps an answer of the API server.
    pub(super) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}

/// The server's own words, where it has some.
fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
