//! A real istiod, and a plain Envoy that takes its configuration from it as an ingress gateway does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kinference_bench::load::Client;
use kinference_bench::stack::{Envoy, Process, StackError, free_port, until};
use serde_json::json;

use super::cluster::Cluster;
use super::error::KubernetesError;
use super::manifests::{apply, read};
use super::programs;

/// Time for istiod to be ready: 5 s on a quiet machine.
const START: Duration = Duration::from_secs(60);
/// The namespace that istiod calls its own.
const SYSTEM: &str = "istio-system";

/// A running istiod. Dropping it kills it.
#[derive(Debug)]
pub struct Istiod {
    process: Process,
    xds: SocketAddr,
    folder: PathBuf,
}

impl Istiod {
    /// Installs Istio's CRDs, starts istiod on the cluster, and returns when it is ready.
    ///
    /// # Errors
    /// It was not built, or did not start, with the end of its log.
    pub async fn start(cluster: &Cluster) -> Result<Self, KubernetesError> {
        let program = programs::istiod()?;
        cluster.install("istio").await?;
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {SYSTEM}}}\n");
        apply(cluster.client(), SYSTEM, &read("the tests", &namespace)?).await?;

        let folder = cluster.folder().to_owned();
        let mesh = folder.join("mesh.yaml");
        let settings = "enableAutoMtls: false\n";
        std::fs::write(&mesh, settings).map_err(StackError::io("write", &mesh))?;
        let local = || Ok::<_, StackError>(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let (xds, pages, monitoring) = (local()?, local()?, local()?);
        let mut command = Command::new(program);
        command.arg("discovery").arg("--kubeconfig").arg(cluster.kubeconfig()).arg("--meshConfig").arg(&mesh);
        command.args(["--networksConfig", "/dev/null", "--domain", "cluster.local"]);
        command.args(["--secureGRPCAddr", "", "--httpsAddr", ""]);
        let addresses = [("--grpcAddr", xds), ("--httpAddr", pages), ("--monitoringAddr", monitoring)];
        for (flag, address) in addresses {
            command.args([flag, &address.to_string()]);
        }
        // These keep out what only Istio's own build of Envoy knows, and what needs Istio's agent beside it.
        for name in ["PILOT_ENABLE_ALPN_FILTER", "PILOT_ENABLE_METADATA_EXCHANGE"] {
            command.env(name, "false");
        }
        for name in ["INJECTION_WEBHOOK_CONFIG_NAME", "VALIDATION_WEBHOOK_CONFIG_NAME"] {
            command.env(name, "");
        }
        command.env("POD_NAMESPACE", SYSTEM).env("POD_NAME", "istiod-0").env("CLUSTER_ID", "Kubernetes");
        command.current_dir(&folder);
        let mut process = Process::start("istiod", command, &folder)?;
        let client = Client::of(pages);
        let ready = until("a ready istiod", START, async || {
            if let Some(how) = process.ended() {
                // There is no use in looking further.
                return Ok(Err(process.error(format!("ended early ({how})"))));
            }
            let answer = client.get("/ready").await.map_err(|error| error.to_string())?;
            if answer.status.is_success() { Ok(Ok(())) } else { Err(format!("HTTP {}", answer.status)) }
        });
        match ready.await {
            Ok(ready) => ready?,
            Err(error) => return Err(process.error(error.to_string()).into()),
        }
        Ok(Self { process, xds, folder })
    }

    /// Starts a plain Envoy that istiod takes for a Pod of a namespace with these labels, and returns when istiod has
    /// given it a listener.
    ///
    /// # Errors
    /// It did not start or has no listener, with the end of its log.
    pub async fn gateway(&self, namespace: &str, labels: &[(&str, &str)]) -> Result<Envoy, KubernetesError> {
        let bootstrap = self.folder.join("istio-gateway.json");
        let text = bootstrap_of(self.xds, namespace, labels).to_string();
        std::fs::write(&bootstrap, text).map_err(StackError::io("write", &bootstrap))?;
        Ok(Envoy::start(&bootstrap, &self.folder, 2).await?)
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// A bootstrap as Istio's agent writes it, less what only Istio's own build of Envoy knows.
fn bootstrap_of(xds: SocketAddr, namespace: &str, labels: &[(&str, &str)]) -> serde_json::Value {
    let labels: serde_json::Map<_, _> = labels.iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
    let http2 = json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }});
    let address = json!({"socket_address": {"address": xds.ip(), "port_value": xds.port()}});
    json!({
        "node": {
            "id": format!("router~127.0.0.1~gateway-0.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": format!("gateway.{namespace}"),
            "metadata": {
                "NAMESPACE": namespace, "LABELS": labels, "ISTIO_VERSION": "1.28.0", "CLUSTER_ID": "Kubernetes",
            },
        },
        "dynamic_resources": {
            "lds_config": {"ads": {}, "resource_api_version": "V3"},
            "cds_config": {"ads": {}, "resource_api_version": "V3"},
            "ads_config": {
                "api_type": "GRPC", "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
        },
        "static_resources": {"clusters": [{
            "name": "xds-grpc", "type": "STATIC", "connect_timeout": "2s",
            "typed_extension_protocol_options": http2,
            "load_assignment": {
                "cluster_name": "xds-grpc",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
            },
        }]},
        "bootstrap_extensions": [{"name": "envoy.bootstrap.internal_listener", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
        }}],
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
    })
}
