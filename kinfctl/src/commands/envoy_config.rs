//! `kinfctl envoy-config`.

mod control_tls;
mod providers;
mod template;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kinference_api::ObjectKey;
use kinference_api::units::Size;

use super::Output;
use control_tls::ControlTls;

const EXAMPLES: &str = "Examples:
  kinfctl envoy-config --wasm kinference_filter.wasm > envoy.yaml && envoy -c envoy.yaml --concurrency 2
  kinfctl envoy-config --wasm kinference_filter.wasm --control control.kinference.svc:18100 \\
    --control-ca ca.crt --control-cert tls.crt --control-key tls.key --control-secrets /etc/envoy   # mutual TLS
  kinfctl envoy-config --wasm kinference_filter.wasm config/          # with the ways to the providers of those files
  kinfctl envoy-config --balancing random > baseline.yaml     # the same Envoy without the filter";

/// What Envoy buffers beyond the largest body that is let through, so that the filter sees a larger one and can answer
/// it in the API's own words, before Envoy does in its own.
const BUFFER_MARGIN: u64 = 1 << 20;

/// Prints the configuration of a plain Envoy: the gateway with the filter, and the workers that the control service
/// serves over EDS.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders of resources: the providers of the GatewayBackend get listeners and clusters. Run it again when
    /// a provider is added or moves; until then the filter passes over it.
    #[arg(value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// Certificates of the authorities that providers' certificates are checked against, on Envoy's machine.
    #[arg(long, value_name = "FILE", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    provider_ca: PathBuf,
    /// The control service's gRPC address.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18100")]
    control: Authority,
    #[command(flatten)]
    control_tls: ControlTls,
    /// Where the gateway listens.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where Envoy's admin interface listens. It has no access control: keep it on loopback.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9901")]
    admin: SocketAddr,
    /// The filter, kinference_filter.wasm. Only left out with another balancing than kinference.
    #[arg(long, value_name = "PATH")]
    wasm: Option<PathBuf>,
    /// The GatewayBackend that the filter serves, and whose workers Envoy knows: NAME or NAMESPACE/NAME.
    #[arg(long, value_name = "NAME", default_value = "main")]
    gateway_backend: ObjectKey,
    /// Who chooses the worker of a request: the filter, or Envoy alone (to compare with).
    #[arg(long, value_enum, default_value_t = Balancing::Kinference)]
    balancing: Balancing,
    /// The largest request body; at least the GatewayBackend's requestBodyLimit.
    #[arg(long, value_name = "SIZE", default_value = "8Mi")]
    body_limit: Size,
    /// Envoy's node id, by which the control service and its status name this proxy.
    #[arg(long, value_name = "ID", default_value = "envoy")]
    node_id: String,
}

/// Who chooses the worker of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Balancing {
    /// The filter.
    Kinference,
    /// Envoy, at random: as a Kubernetes Service does.
    Random,
    /// Envoy, in turn.
    RoundRobin,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    host: String,
    port: u16,
    /// True when the host is an IP address, so that nothing has to be looked up.
    is_ip: bool,
}

impl std::str::FromStr for Authority {
    type Err = String;

    fn from_str(text: &str) -> Result<Authority, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Authority { host: address.ip().to_string(), port: address.port(), is_ip: true });
        }
        let (host, port) = text.rsplit_once(':').ok_or("the port is missing; write HOST:PORT")?;
        let is_part = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !host.trim_end_matches('.').split('.').all(is_part) {
            return Err(format!("`{host}` is not a host; write HOST:PORT, IPv6 in brackets"));
        }
        Ok(Authority {
            host: host.to_string(),
            port: port.parse().map_err(|_| format!("`{port}` is not a port"))?,
            is_ip: false,
        })
    }
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let control_tls = args.control_tls.render(&args.control)?;
    let config = render(args, &control_tls)?;
    control_tls.write()?;
    Ok(Output::success(config))
}

fn render(args: &Args, control_tls: &control_tls::Rendered) -> Result<String> {
    let buffer = args.body_limit.bytes().saturating_add(BUFFER_MARGIN);
    if buffer > u64::from(u32::MAX >> 1) {
        bail!("--body-limit {}: Envoy buffers less than 2Gi", args.body_limit);
    }
    if args.node_id.trim().is_empty() {
        bail!("--node-id is empty; name this proxy");
    }
    let providers = match args.balancing {
        Balancing::Kinference => providers::from_files(&args.paths, &args.gateway_backend)?,
        Balancing::Random | Balancing::RoundRobin => Vec::new(),
    };
    let filter = match args.balancing {
        Balancing::Kinference => gateway_filter(args, &providers)?,
        Balancing::Random | Balancing::RoundRobin => String::new(),
    };
    let provider_filter = |configuration: &serde_json::Value| filter_part(args, "kinference_provider", configuration);
    let extensions = if providers.is_empty() { "" } else { include_str!("envoy_config/internal_listeners.yaml") };
    let balancing = match args.balancing {
        Balancing::Kinference => include_str!("envoy_config/override_host.yaml"),
        Balancing::Random => include_str!("envoy_config/random.yaml"),
        Balancing::RoundRobin => include_str!("envoy_config/round_robin.yaml"),
    };
    let discovery = if args.control.is_ip { "STATIC" } else { "STRICT_DNS" };
    template::fill(
        include_str!("envoy_config/bootstrap.yaml"),
        &[
            ("NODE_ID", quoted(&args.node_id)),
            ("ADMIN_ADDRESS", quoted(&args.admin.ip().to_string())),
            ("ADMIN_PORT", args.admin.port().to_string()),
            ("LISTEN_ADDRESS", quoted(&args.listen.ip().to_string())),
            ("LISTEN_PORT", args.listen.port().to_string()),
            // The workers of this backend alone: what the filter cannot decide goes to any of them.
            ("WORKERS", quoted(&format!("kinference_workers/{}", args.gateway_backend))),
            ("CONTROL_ADDRESS", quoted(&args.control.host)),
            ("CONTROL_PORT", args.control.port.to_string()),
            ("CONTROL_DISCOVERY", discovery.to_string()),
            ("CONTROL_TLS", control_tls.transport_socket.clone()),
            ("BUFFER_LIMIT", buffer.to_string()),
            // HTTP/2 windows cannot be smaller than the protocol's own.
            ("STREAM_WINDOW", buffer.max(65_535).to_string()),
            ("LOCAL_REPLY", include_str!("envoy_config/local_reply.yaml").to_string()),
            ("FORWARDING", include_str!("envoy_config/forwarding.yaml").to_string()),
            ("PROVIDER_LISTENERS", providers::listeners(&providers, buffer, provider_filter)?),
            ("PROVIDER_CLUSTERS", providers::clusters(&providers, &absolute("--provider-ca", &args.provider_ca)?)?),
            ("BOOTSTRAP_EXTENSIONS", extensions.to_string()),
            ("FILTER", filter),
            ("BALANCING", balancing.to_string()),
        ],
    )
}

fn gateway_filter(args: &Args, providers: &[providers::Provider]) -> Result<String> {
    let mut configuration = serde_json::json!({
        "gatewayBackend": plain_name(&args.gateway_backend),
        "controlCluster": "kinference_control",
    });
    if !providers.is_empty() {
        configuration["providers"] = providers.iter().map(|provider| provider.name.as_str()).collect();
    }
    filter_part(args, "kinference", &configuration)
}

/// The filter in a listener. All of them share one virtual machine in each worker thread.
fn filter_part(args: &Args, root: &str, configuration: &serde_json::Value) -> Result<String> {
    let Some(wasm) = &args.wasm else {
        bail!("--wasm is missing: where is kinference_filter.wasm? (`cargo xtask build` makes it)");
    };
    template::fill(
        include_str!("envoy_config/filter.yaml"),
        &[
            ("ROOT", root.to_string()),
            ("WASM", quoted(&absolute("--wasm", wasm)?)),
            ("CONFIGURATION", quoted(&configuration.to_string())),
        ],
    )
}

/// The name as users write it: without the namespace `default`.
fn plain_name(key: &ObjectKey) -> String {
    if key.namespace == kinference_api::DEFAULT_NAMESPACE { key.name.clone() } else { key.to_string() }
}

/// Envoy may be started in another folder than this program.
fn absolute(flag: &str, path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).with_context(|| format!("{flag} {}", path.display()))?;
    match absolute.to_str() {
        Some(text) => Ok(text.to_string()),
        None => bail!("{flag} {}: the path is not UTF-8, which Envoy's configuration must be", path.display()),
    }
}

/// A string as JSON has it, which YAML reads the same way.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
