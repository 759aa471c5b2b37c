//! The chart's Istio resources, by a real istiod, in a plain Envoy. Skipped when istiod is not built.

use std::collections::BTreeSet;

use kinference_bench::load::Client;
use kinference_bench::stack::{filter_module, free_port, until};
use kinference_e2e::kubernetes::{Chart, Istiod, apply};
use kinference_e2e::{Reply, alone, chat, prompt, send};

use crate::common::{FOLLOW, Fleet, must, repository};

#[test]
fn a_gateway_of_istio_routes_by_the_filter() {
    alone(300, async {
        let fleet = Fleet::start(3, 3).await;
        let istiod = must(Istiod::start(&fleet.cluster).await);
        let namespace = must(fleet.cluster.namespace("gateway").await);
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
        let control = fleet.stack.control().grpc();
        let set = [
            format!("gatewayBackend.namespace={}", fleet.namespace.name()),
            "module.image=".into(),
            format!("module.file={}", must(filter_module()).display()),
            format!("control.host={}", control.ip()),
            format!("control.port={}", control.port()),
            "control.tls.mode=disabled".into(),
            "route.gateways={gateway}".into(),
        ];
        let chart = must(Chart::new(repository("charts/kinference-istio")));
        let manifests = must(chart.render("filter", namespace.name(), None, &set));
        must(apply(fleet.cluster.client(), namespace.name(), &manifests).await);
        let envoy = must(istiod.gateway(namespace.name(), &[("istio", "ingressgateway")]).await);
        let client = Client::of(envoy.gateway());

        // A prefix goes to where it is cached, every time, and different ones go to all workers.
        let ask = async |number: u64| send(&client, &chat(fleet.stack.model(), &prompt(number, 800), 2)).await;
        let decided = until("answers by the filter's choice", FOLLOW, async || {
            let answer = ask(0).await.map_err(|error| error.to_string())?;
            let chosen = answer.header("x-kinference-destination").is_some();
            if answer.status.is_success() && chosen { Ok(()) } else { Err(format!("{answer:?}")) }
        });
        if let Err(error) = decided.await {
            panic!("{error}\n{}\n{}", istiod.process().tail(), envoy.process().tail());
        }
        let mut used = BTreeSet::new();
        for number in 1..16 {
            let home = Reply::of(&must(ask(number).await)).destination;
            for _ in 0..3 {
                let reply = Reply::of(&must(ask(number).await));
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
                let answer = ask(number).await.map_err(|error| error.to_string())?;
                seen.insert(answer.header("x-kinference-destination").unwrap_or_default().to_owned());
            }
            if seen.len() == 2 && !seen.iter().any(|name| name.ends_with("/w0")) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        });
        must(gone.await);
        drop(envoy);
        fleet.end().await;
    });
}
