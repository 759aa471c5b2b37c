//! A real kube-apiserver, and the real control service, Envoy and filter on it. Each test has an API server of its own, or
//! namespaces of its own on the cluster of `KUBECONFIG`.

mod chart;
mod common;
mod crds;
mod fleet;
mod gateways;
mod istio;
mod outage;
mod providers;
mod scale;
mod statuses;
