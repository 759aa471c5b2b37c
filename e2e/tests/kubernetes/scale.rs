//! A large cluster: how long the control service takes from its start to a filter's first snapshot, and its memory.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kinference_bench::stack::{ControlService, Source, TOKENIZER};
use kinference_e2e::alone;
use kinference_e2e::kubernetes::Worker;
use kinference_protocol::v1::snapshot_service_client::SnapshotServiceClient;
use kinference_protocol::v1::{FilterMessage, Hello, control_message, filter_message};

use tonic::transport::Endpoint;

use crate::common::{cluster, must, source};

const SETS: usize = 20;
const PODS: usize = 2000;
const POLICIES: usize = 200;
/// Starts, of which the median counts: other processes on the machine slow one or the other.
const STARTS: usize = 3;
/// What is promised.
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn two_thousand_pods_and_two_hundred_policies_are_served_within_five_seconds() {
    alone(420, async {
        let cluster = cluster().await;
        let namespace = must(cluster.namespace("large").await);
        must(namespace.put_config_map("tokenizer", &TOKENIZER).await);
        let names: Vec<_> = (0..SETS).map(|set| format!("set-{set}")).collect();
        must(namespace.apply(&backend(&names)).await);
        must(namespace.apply_all(&names.iter().map(|name| worker_set(name)).collect::<Vec<_>>()).await);
        must(namespace.apply_all(&(0..POLICIES).map(policy).collect::<Vec<_>>()).await);
        let pods: Vec<_> = (0..PODS)
            .map(|pod| {
                // Nobody listens there.
                let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 200, 0, 1).to_bits() + pod as u32);
                Worker::new(format!("pod-{pod}"), names[pod % SETS].clone(), IpAddr::V4(address))
            })
            .collect();
        let start = Instant::now();
        must(namespace.add_all(&pods).await);
        eprintln!("{PODS} Pods made in {:.1} s", start.elapsed().as_secs_f64());

        let source = Source::Kubernetes(source(&cluster, &namespace, "set-0", PODS / SETS));
        let mut times = Vec::new();
        for number in 0..STARTS {
            let start = Instant::now();
            let name = format!("kinference-control-{number}");
            let control = must(ControlService::start(&name, &source, cluster.folder()).await);
            let seen = first_snapshot(&control, &namespace.key("main")).await;
            times.push(start.elapsed());
            assert_eq!(seen, Seen { workers: PODS, rules: POLICIES }, "the first snapshot is not whole");
            eprintln!(
                "start to first snapshot: {:.2} s; memory of the control service: {:.0} MiB",
                start.elapsed().as_secs_f64(),
                control.process().memory_bytes() as f64 / f64::from(1 << 20)
            );
        }
        times.sort();
        assert!(times[STARTS / 2] < LIMIT, "{times:?}");
        must(namespace.remove().await);
    });
}

/// What a snapshot holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    workers: usize,
    rules: usize,
}

/// Connects as a filter does, and reads up to the end of the first full snapshot.
async fn first_snapshot(control: &ControlService, backend: &str) -> Seen {
    let channel = must(Endpoint::from_shared(format!("http://{}", control.grpc()))).connect().await;
    let mut client = SnapshotServiceClient::new(must(channel)).max_decoding_message_size(64 << 20);
    let hello = Hello {
        gateway_backend: backend.to_owned(),
        filter_build: "test".into(),
        proxy_id: "test".into(),
        vm_id: 1,
        ..Hello::default()
    };
    let hello = FilterMessage { message: Some(filter_message::Message::Hello(hello)) };
    let outbound = futures::stream::iter([hello]).chain(futures::stream::pending());
    let mut inbound = must(client.stream(outbound).await).into_inner();
    let mut seen = Seen::default();
    while let Some(message) = must(inbound.message().await) {
        if let Some(control_message::Message::Snapshot(part)) = message.message {
            let sections = part.sections.unwrap_or_default();
            seen.rules += sections.config.map_or(0, |config| config.rules.len());
            seen.workers += sections.workers.map_or(0, |workers| workers.upsert.len());
            if part.last {
                return seen;
            }
        }
    }
    panic!("the stream ended before a whole snapshot");
}

fn backend(names: &[String]) -> String {
    format!(
        "apiVersion: kinference.dev/v1alpha1
kind: GatewayBackend
metadata: {{name: main}}
spec: {{pools: [{{name: gpu}}]}}
---
apiVersion: kinference.dev/v1alpha1
kind: InferencePool
metadata: {{name: gpu}}
spec: {{workerSets: {{names: {names:?}}}}}
"
    )
}

/// Its workers' metrics are read rarely: two thousand connections that are refused would be most of what is measured.
fn worker_set(name: &str) -> String {
    format!(
        "apiVersion: kinference.dev/v1alpha1
kind: InferenceWorkerSet
metadata: {{name: {name}}}
spec:
  model: {{name: model-of-{name}, tokenizer: {{configMap: {{name: tokenizer}}}}}}
  workers: {{selector: {{matchLabels: {{app: {name}}}}}}}
  metrics: {{interval: 1m}}
"
    )
}

fn policy(number: usize) -> String {
    let set = number % SETS;
    format!(
        "apiVersion: kinference.dev/v1alpha1
kind: InferencePolicy
metadata: {{name: policy-{number}}}
spec:
  rules:
  - name: idle-only
    when: {{models: [model-of-set-{set}], tags: {{any: [tag-{number}]}}}}
    require: {{workers: [{{signal: KvCacheUsage, below: \"0.7\"}}]}}
    onEmpty: {{action: Reject, status: 429, retryAfter: 30s}}
"
    )
}
