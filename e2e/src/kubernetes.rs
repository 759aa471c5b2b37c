//! A real Kubernetes API server for tests.
//!
//! There is no kubelet and there are no controllers: [`Namespace`] makes Pods itself and writes their status, as a kubelet
//! would. Workers are simulated on addresses of 127.0.0.0/8, which the API server takes for Pods' addresses.
//!
//! | environment | meaning |
//! | --- | --- |
//! | `KUBECONFIG` | an existing cluster is used, each test in namespaces of its own |
//! | `KUBEBUILDER_ASSETS` | folder with `kube-apiserver` and `etcd`; default: the newest that `cargo xtask setup --kubernetes` made |
//! | `HELM`, `ISTIOD` | programs; the same default |

mod cluster;
mod error;
mod helm;
mod istio;
mod kubeconfig;
mod manifests;
mod namespace;
mod pods;
mod programs;
mod server;

pub use cluster::Cluster;
pub use error::KubernetesError;
pub use helm::Chart;
pub use istio::Istiod;
pub use manifests::{Manifest, apply, dry_run, read, read_files};
pub use namespace::Namespace;
pub use pods::Worker;
