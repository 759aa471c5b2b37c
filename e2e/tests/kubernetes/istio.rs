//! The chart's Istio resources, by a real istiod, in a plain Envoy. Skipped when istiod is not built.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kinference_bench::load::{Answer, Client};
use kinference_bench::stack::{ControlService, Envoy, Source, filter_module, free_port, until};
use kinference_e2e::kubernetes::{Chart, Istiod, Namespace, apply};
use kinference_e2e::{Provider, Reply, alone, chat, prompt, send};

use crate::common::{FOLLOW, Fleet, ask_outside, must, repository, source};

/// The name in the certificate that the chart of the control service makes: that of its Service.
const SERVICE: &str = "kinference.kinference.svc.cluster.local";

/// Time for a gateway to find a restarted control service: Envoy may wait half a minute between attempts.
const RECONNECT: Duration = Duration::from_secs(60);

/// A gateway of Istio with the chart's filter.
struct Gateway {
    envoy: Envoy,
    istiod: Istiod,
    client: Client,
    model: String,
}

impl Gateway {
    /// Starts one in a namespace, with the chart's values that say how it reaches the control service.
    async fn start(fleet: &Fleet, namespace: &Namespace, control: &ControlService, set: &[String]) -> Self {
        let istiod = must(Istiod::start(&fleet.cluster).await);
        let port = must(free_port());
        let gateway = format!(
            "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: gateway}}
spec:
  selector: {{istio: ingressgateway}}
  servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, bind: 127.0.0.1, hosts: [\"*\"]}}]
"
        );
        must(namespace.apply(&gateway).await);
        let mut values = vec![
            format!("gatewayBackend.namespace={}", fleet.namespace.name()),
            "module.image=".into(),
            format!("module.file={}", must(filter_module()).display()),
            format!("control.host={}", control.grpc().ip()),
            format!("control.port={}", control.grpc().port()),
            "route.gateways={gateway}".into(),
        ];
        values.extend_from_slice(set);
        let chart = must(Chart::new(repository("charts/kinference-istio")));
        let manifests = must(chart.render("filter", namespace.name(), None, &values));
        must(apply(fleet.cluster.client(), namespace.name(), &manifests).await);
        let envoy = must(istiod.gateway(namespace.name(), &[("istio", "ingressgateway")]).await);
        let client = Client::of(envoy.gateway());
        Self { envoy, istiod, client, model: fleet.stack.model().to_owned() }
    }

    async fn ask(&self, number: u64) -> Answer {
        must(send(&self.client, &chat(&self.model, &prompt(number, 800), 2)).await)
    }

    /// Waits until the filter chooses.
    async fn until_decided(&self) {
        let decided = until("answers by the filter's choice", FOLLOW, async || {
            let answer = self.ask(0).await;
            let chosen = answer.header("x-kinference-destination").is_some();
            if answer.status.is_success() && chosen { Ok(()) } else { Err(format!("{answer:?}")) }
        });
        if let Err(error) = decided.await {
            panic!("{error}\n{}\n{}", self.istiod.process().tail(), self.envoy.process().tail());
        }
    }
}

#[test]
fn a_gateway_of_istio_routes_by_the_filter() {
    alone(300, async {
        let fleet = Fleet::start(3, 3).await;
        let namespace = must(fleet.cluster.namespace("gateway").await);
        let set = ["control.tls.mode=disabled".to_owned()];
        let gateway = Gateway::start(&fleet, &namespace, fleet.stack.control(), &set).await;
        gateway.until_decided().await;

        // A prefix goes to where it is cached, every time, and different ones go to all workers.
        let mut used = BTreeSet::new();
        for number in 1..16 {
            let home = Reply::of(&gateway.ask(number).await).destination;
            for _ in 0..3 {
                let reply = Reply::of(&gateway.ask(number).await);
                assert_eq!(reply.destination, home, "prompt {number}");
                assert!(reply.cached > 600, "{reply:?}");
            }
            used.insert(home);
        }
        assert_eq!(used.len(), 3, "{used:?}");

        // A Pod that goes is followed there too.
        fleet.delete(0).await;
        let gone = until("answers without the Pod that went", FOLLOW, async || {
            let mut seen = BTreeSet::new();
            for number in 100..116 {
                let answer = gateway.ask(number).await;
                seen.insert(answer.header("x-kinference-destination").unwrap_or_default().to_owned());
            }
            if seen.len() == 2 && !seen.iter().any(|name| name.ends_with("/w0")) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        });
        must(gone.await);
        drop(gateway);
        fleet.end().await;
    });
}

/// The certificates that the chart of the control service makes by default, as files: of the service, and those that a
/// gateway in the namespace mounts.
fn certificates(fleet: &Fleet, gateway: &Namespace) -> (PathBuf, PathBuf) {
    let chart = must(Chart::new(repository("charts/kinference")));
    let set = [format!("tls.client.namespaces={{{}}}", gateway.name())];
    let manifests = must(chart.render("kinference", "kinference", None, &set));
    let mount = |name: &str, namespace: &str| {
        let here = |object: &serde_json::Value| {
            object["kind"] == "Secret"
                && object["metadata"]["name"] == name
                && object["metadata"]["namespace"] == namespace
        };
        let found = manifests.iter().find(|manifest| here(&manifest.object));
        let found = found.unwrap_or_else(|| panic!("the chart makes no Secret {namespace}/{name}"));
        let secret: Secret = must(serde_json::from_value(found.object.clone()));
        let folder = fleet.cluster.folder().join(name);
        must(std::fs::create_dir(&folder));
        for (file, content) in secret.data.unwrap_or_default() {
            must(std::fs::write(folder.join(file), content.0));
        }
        folder
    };
    (mount("kinference-server-tls", "kinference"), mount("kinference-client-tls", gateway.name()))
}

#[test]
fn by_default_both_charts_authenticate_each_other_and_requests_may_leave_to_a_provider() {
    alone(300, async {
        let provider = Provider::start("bedrock").await;
        let fleet = Fleet::start_with_provider(provider.address, "a-key").await;
        let namespace = must(fleet.cluster.namespace("gateway").await);
        let (server, client) = certificates(&fleet, &namespace);
        let flags = [("--tls-cert", "tls.crt"), ("--tls-key", "tls.key"), ("--tls-client-ca", "ca.crt")];
        let mut flags: Vec<OsString> =
            flags.iter().flat_map(|(flag, file)| [(*flag).into(), server.join(file).into()]).collect();
        // As the chart does: the name in the certificate that it makes for gateways.
        flags.push("--tls-client-name=kinference-gateway".into());
        let source = Source::Kubernetes(source(&fleet.cluster, &fleet.namespace, "simulated", 1));
        let mut control = must(ControlService::start_with("control-tls", &source, flags, fleet.cluster.folder()).await);

        let mut set = vec![format!("control.tls.serverName={SERVICE}")];
        for (name, file) in [("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt")] {
            set.push(format!("control.tls.files.{name}={}", client.join(file).display()));
        }
        let (host, port) = (provider.address.ip(), provider.address.port());
        let outside = ["name=bedrock".into(), format!("host={host}"), format!("port={port}"), "tls=false".into()];
        set.extend(outside.iter().map(|value| format!("providers[0].{value}")));
        let gateway = Gateway::start(&fleet, &namespace, &control, &set).await;
        gateway.until_decided().await;
        let status = must(control.status().await);
        assert_eq!(status["link"]["confidentiality"], "mutualTls", "{status}");
        assert_ne!(status["backends"][fleet.namespace.key("main")]["filtersConnected"], 0, "{status}");

        provider.take_seen();
        let answer = ask_outside(&gateway.client, &gateway.model).await;
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), gateway.envoy.process().tail());
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "bedrock");
        let seen = provider.take_seen();
        let mut names: Vec<_> = seen[0].headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "content-length", "content-type", "host"]);
        assert_eq!((seen.len(), seen[0].header("authorization")), (1, "Bearer a-key"));

        // The gateway finds a restarted control service again, for its filters and for the workers' addresses.
        must(control.restart().await);
        must(fleet.namespace.add(&fleet.workers[1], true).await);
        // New prompts each time: those that a worker has in its cache stay there.
        let mut numbers = 200..;
        let found = until("an answer of the new worker", RECONNECT, async || {
            let mut seen = BTreeSet::new();
            for number in numbers.by_ref().take(8) {
                let answer = gateway.ask(number).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                seen.insert(answer.header("x-kinference-destination").unwrap_or_default().to_owned());
            }
            if seen.iter().any(|name| name.ends_with("/w1")) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        must(found.await);
        drop((gateway, control));
        fleet.end().await;
    });
}
