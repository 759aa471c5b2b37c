//! What the tests share.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kinference_bench::load::{Answer, Client, Method};
use kinference_bench::sim::Config;
use kinference_bench::stack::{KubernetesSource, Source, Stack, StackOptions, TOKENIZER, free_port, until};
use kinference_e2e::kubernetes::{Cluster, Manifest, Namespace, Worker, apply, read, read_files};
use kinference_e2e::{chat, prompt, send};

/// Time for a change in the cluster to reach every filter. Seen to take less than a second on a quiet machine.
pub(crate) const FOLLOW: Duration = Duration::from_secs(20);

/// A file or folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Ends a test with an error in its own words.
pub(crate) fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A cluster that knows the five kinds.
pub(crate) async fn cluster() -> Cluster {
    let cluster = must(Cluster::start().await);
    must(cluster.define(&must(read_files(&repository("crds")))).await);
    cluster
}

/// Makes the namespaces that resources name, which a dry run asks for too.
pub(crate) async fn make_namespaces(cluster: &Cluster, manifests: &[Manifest]) {
    let named = |manifest: &Manifest| manifest.object["metadata"]["namespace"].as_str().map(str::to_owned);
    for name in manifests.iter().filter_map(named).collect::<BTreeSet<_>>() {
        let yaml = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n");
        must(apply(cluster.client(), "default", &must(read("the test", &yaml))).await);
    }
}

/// Simulated workers on addresses of their own, with a namespace that has Pods for them, and a gateway in front.
pub(crate) struct Fleet {
    // Dropped first: what looks at the cluster goes before it.
    pub(crate) stack: Stack,
    pub(crate) namespace: Namespace,
    pub(crate) workers: Vec<Worker>,
    pub(crate) cluster: Cluster,
}

impl Fleet {
    /// Starts `workers` simulated workers and makes Pods for the first `pods` of them.
    pub(crate) async fn start(workers: usize, pods: usize) -> Self {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("fleet").await);
        Self::start_on(cluster, namespace, workers, pods, |source| source).await
    }

    /// The same in an existing namespace, with a change to how the control service is started.
    pub(crate) async fn start_on(
        cluster: Cluster,
        namespace: Namespace,
        workers: usize,
        pods: usize,
        change: impl FnOnce(KubernetesSource) -> KubernetesSource,
    ) -> Self {
        let sim = sim(workers);
        let resources = resources(&sim, namespace.name(), None);
        Self::start_with(cluster, namespace, sim, &resources, pods, change).await
    }

    /// Starts two workers, the first with a Pod, and a gateway with a way to a provider outside, whose key is in the Secret
    /// `bedrock-key`. Requests for the stack's model with the tag `out` may go there only.
    pub(crate) async fn start_with_provider(provider: SocketAddr, key: &str) -> Self {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("fleet").await);
        must(namespace.put_secret("bedrock-key", &[("token", key)]).await);
        let sim = sim(2);
        let resources = resources(&sim, namespace.name(), Some(provider));
        let files = cluster.folder().join("fleet.yaml");
        must(std::fs::write(&files, &resources));
        let change = |source: KubernetesSource| KubernetesSource { files: Some(files), endpoints: 2, ..source };
        Self::start_with(cluster, namespace, sim, &resources, 1, change).await
    }

    async fn start_with(
        cluster: Cluster,
        namespace: Namespace,
        sim: Config,
        resources: &str,
        pods: usize,
        change: impl FnOnce(KubernetesSource) -> KubernetesSource,
    ) -> Self {
        let workers: Vec<_> = (0..sim.workers)
            .map(|index| Worker::new(format!("w{index}"), "vllm", sim.worker_host(index).expect("an address")))
            .collect();
        must(namespace.put_config_map("tokenizer", &TOKENIZER).await);
        must(namespace.apply(resources).await);
        must(namespace.add_all(&workers[..pods]).await);
        let source = change(source(&cluster, &namespace, "simulated", pods));
        let options = StackOptions { sim, source: Source::Kubernetes(source), ..StackOptions::default() };
        let stack = must(Stack::start(options).await);
        Self { stack, namespace, workers, cluster }
    }

    /// The control service's words on the worker set.
    pub(crate) async fn set_status(&self) -> serde_json::Value {
        must(self.stack.status().await)["workerSets"][self.namespace.key("simulated")].clone()
    }

    /// Asks for an answer to a prompt that no other test number has.
    pub(crate) async fn ask(&self, client: &Client, number: u64) -> Answer {
        must(send(client, &chat(self.stack.model(), &prompt(number, 60), 2)).await)
    }

    /// Removes what an existing cluster would keep.
    pub(crate) async fn end(self) {
        let Self { stack, namespace, cluster, .. } = self;
        drop(stack);
        must(namespace.remove().await);
        drop(cluster);
    }

    /// Deletes the Pod of a worker.
    pub(crate) async fn delete(&self, worker: usize) {
        must(self.namespace.delete::<Pod>(&self.workers[worker].name).await);
    }
}

/// A control service that looks at one namespace, whose gateway backend is `main`.
pub(crate) fn source(cluster: &Cluster, namespace: &Namespace, worker_set: &str, workers: usize) -> KubernetesSource {
    KubernetesSource {
        kubeconfig: cluster.kubeconfig().to_owned(),
        namespace: Some(namespace.name().to_owned()),
        backend: namespace.key("main"),
        worker_set: namespace.key(worker_set),
        workers,
        files: None,
        endpoints: workers,
    }
}

/// Fast workers with the same ports, on addresses that no other test program has.
fn sim(workers: usize) -> Config {
    let [_, high, low, _] = std::process::id().to_be_bytes();
    let (http, kv, replay) = (must(free_port()), must(free_port()), must(free_port()));
    Config {
        workers,
        host: IpAddr::V4(Ipv4Addr::new(127, 64 + high % 64, low, 11)),
        own_addresses: true,
        http_port: http,
        kv_port: kv,
        replay_port: replay,
        time_scale: 0.2,
        ..Config::ephemeral()
    }
}

/// A gateway backend with one worker set, whose workers are the Pods with the label `app: vllm`.
fn resources(sim: &Config, namespace: &str, provider: Option<SocketAddr>) -> String {
    let (model, port, events, replay) = (&sim.model, sim.http_port, sim.kv_port, sim.replay_port);
    let providers = if provider.is_some() { "[{name: bedrock}]" } else { "[]" };
    let fleet = format!(
        "apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: main, namespace: {namespace}}}
spec:
  pools: [{{name: gpu}}]
  providers: {providers}
  tags: {{header: x-kinference-tags}}
  debugHeaders: true
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: gpu, namespace: {namespace}}}
spec:
  workerSets: {{names: [simulated]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: simulated, namespace: {namespace}}}
spec:
  model: {{name: {model}, tokenizer: {{configMap: {{name: tokenizer}}}}}}
  workers: {{selector: {{matchLabels: {{app: vllm}}}}, port: {port}}}
  kvEvents: {{port: {events}, replayPort: {replay}}}
"
    );
    let outside = provider.map(|address| {
        format!(
            "---
apiVersion: kinference.dev/v1alpha1
kind: InferenceProvider
metadata: {{name: bedrock, namespace: {namespace}}}
spec:
  api: OpenAI
  endpoint: http://{address}
  credentials: {{secretRef: {{name: bedrock-key}}}}
  models: [{{name: {model}}}]
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: house, namespace: {namespace}}}
spec:
  rules:
  - name: out
    when: {{tags: {{any: [out]}}}}
    require: {{locality: External}}
    fallback: [{{providers: [bedrock]}}]
"
        )
    });
    fleet + &outside.unwrap_or_default()
}

/// Sends a request with the tag `out`.
pub(crate) async fn ask_outside(client: &Client, model: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("x-kinference-tags", "out")];
    let body = chat(model, &prompt(0, 60), 2).to_string();
    must(client.send(Method::POST, "/v1/chat/completions", &headers, body).await)
}

/// A policy that turns requests for the stack's model away.
pub(crate) fn turned_away(model: &str, status: u16) -> String {
    format!(
        "apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: closed}}
spec:
  rules:
  - name: closed
    when: {{models: [{model}]}}
    reject: {{status: {status}, message: Closed for the test.}}
"
    )
}

/// Waits until a request is answered with a status.
pub(crate) async fn answered_with(fleet: &Fleet, client: &Client, number: u64, status: u16) {
    let what = format!("HTTP {status}");
    let found = until(&what, FOLLOW, async || {
        let answer = fleet.ask(client, number).await;
        if answer.status == status { Ok(()) } else { Err(format!("HTTP {}", answer.status)) }
    });
    must(found.await);
}
