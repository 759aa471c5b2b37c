//! The command line.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use rustls::pki_types::ServerName;
use tracing_subscriber::EnvFilter;

use crate::push::Guard;
use crate::tls::{TlsFiles, client_name};

/// Builds routing snapshots from a configuration, the workers' KV-cache events and their metrics, and pushes them to
/// the filters. Serves the workers' addresses to Envoy on the same port.
#[derive(Debug, Clone, Parser)]
#[command(name = "kinference-control", version)]
pub struct Args {
    /// Folder of the configuration: YAML files of the kinds. Watched for changes.
    #[arg(long, value_name = "DIR", required_unless_present = "kubernetes", conflicts_with = "kubernetes")]
    pub config: Option<PathBuf>,
    /// Folder of the Secrets that providers refer to, as Kubernetes mounts them: NAME/KEY, or NAMESPACE/NAME/KEY. Read
    /// again when they change.
    #[arg(long, value_name = "DIR", conflicts_with = "kubernetes")]
    pub secrets: Option<PathBuf>,
    /// The cluster, when the configuration is in one.
    #[command(flatten)]
    pub cluster: KubernetesArgs,
    /// Address of the gRPC services (snapshots for filters, endpoints for Envoy). Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18100")]
    pub listen: SocketAddr,
    /// TLS of the gRPC services.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Address of /metrics, /healthz, /readyz, /status and /snapshot. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18101")]
    pub admin: SocketAddr,
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged: a level, or levels by module such as `info,kinference_control::push=debug`.
    #[arg(long, value_name = "FILTER", env = "KINFERENCE_LOG", default_value = "info")]
    pub log: String,
}

/// Name of the Lease where none is given.
pub const LEASE: &str = "kinference-control-status";

/// Where in which cluster the configuration is.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KubernetesArgs {
    /// Takes the configuration from a Kubernetes cluster: that of the Pod's service account, or of KUBECONFIG.
    #[arg(long)]
    pub kubernetes: bool,
    /// Namespace to follow; may be given several times. Default: all namespaces.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub namespace: Vec<String>,
    /// The kubeconfig, where it is not the usual one.
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub context: Option<String>,
    /// Namespace of the Lease by which replicas agree on the one that writes statuses. Default: that of the service
    /// account or context.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Name of that Lease. Services that follow different namespaces need different ones where they share a namespace of
    /// the Lease: the one that holds it writes the statuses of its own namespaces only.
    #[arg(long, value_name = "NAME", default_value = LEASE)]
    pub lease_name: String,
    /// Name of this replica in the Lease, which no other may have. Default: host name and process id.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,
}

impl KubernetesArgs {
    /// Name of this replica.
    pub fn identity(&self) -> String {
        let by_host = || {
            let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
            let host = if host.trim().is_empty() { "kinference-control" } else { host.trim() };
            format!("{host}-{}", std::process::id())
        };
        self.pod_name.clone().filter(|name| !name.is_empty()).unwrap_or_else(by_host)
    }
}

/// TLS of the gRPC services.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsArgs {
    /// The certificate of the gRPC services in PEM form, with those between it and its authority. Watched for changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities in PEM form: only who shows a certificate of one of them is served. Without it, and beyond loopback,
    /// filters are not told any credentials.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// A DNS name that a client's certificate must have, or several with commas between, of which it must have one; may be
    /// repeated. Without it any certificate of the authorities will do, so they must be for filters alone.
    #[arg(long, value_name = "NAME", requires = "tls_client_ca", value_delimiter = ',', value_parser = client_name)]
    pub tls_client_name: Vec<ServerName<'static>>,
}

impl TlsArgs {
    /// The files; `None` when the gRPC services are in plain text.
    pub fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        let client_names = self.tls_client_name.clone();
        Some(TlsFiles { certificate, key, client_ca: self.tls_client_ca.clone(), client_names })
    }

    /// How the gRPC port is guarded.
    pub fn guard(&self) -> Guard {
        match self.files() {
            None => Guard::PlainText,
            Some(TlsFiles { client_ca: None, .. }) => Guard::ServerTls,
            Some(TlsFiles { client_ca: Some(_), .. }) => Guard::MutualTls,
        }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends log lines to standard error.
///
/// # Errors
/// When `filter` is no log filter, or logging was set up before.
pub fn init_logging(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        anyhow::anyhow!("--log {filter:?}: {error}; give a level (error, warn, info, debug, trace)")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    set.map_err(|error| anyhow::anyhow!("logging cannot be set up: {error}"))
}
