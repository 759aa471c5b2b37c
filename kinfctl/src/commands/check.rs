//! `kinfctl check`.

mod cluster;
mod envoy;
mod finding;
mod gather;
mod pages;
mod report;
mod service;
#[cfg(test)]
mod tests;
mod world;

use std::time::SystemTime;

use anyhow::Result;
use clap::ValueEnum;

use super::Output;
use crate::paint::Paint;
use finding::{Findings, Level};

const EXAMPLES: &str = "Examples:
  kinfctl check                                         # a control service on this machine
  kinfctl check --envoy-admin 127.0.0.1:9901            # and its Envoy
  kinfctl check --kubernetes --namespace inference      # resources, rights, Pods and Secrets of a cluster
  kinfctl check --kubernetes --control 127.0.0.1:18101  # and the control service, by kubectl port-forward
  kinfctl check --output json | jq '.findings[] | select(.level == \"problem\")'";

const DEFAULT_CONTROL: &str = "127.0.0.1:18101";

/// Looks at a running system, and says what is wrong and what to do about it. Changes nothing.
///
/// Ends with 0 when there is no problem (warnings may be), with 1 when there is one.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The control service's admin address. Default: 127.0.0.1:18101, and none with --kubernetes.
    #[arg(long, value_name = "HOST:PORT", env = "KINFERENCE_ADMIN")]
    control: Option<String>,
    /// Envoy's admin address: its configuration and its counters are looked at too.
    #[arg(long, value_name = "HOST:PORT")]
    envoy_admin: Option<String>,
    /// Looks at a cluster: definitions, Deployment, rights, conditions, Secrets, Pods.
    #[arg(long)]
    kubernetes: bool,
    /// The context of the kubeconfig. Default: the one in use.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    context: Option<String>,
    /// Looks at the resources of this namespace alone. Default: of all.
    #[arg(long, short, value_name = "NAME", requires = "kubernetes")]
    namespace: Option<String>,
    /// How findings are printed.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people: ✓ as it should be, ! a warning, ✗ a problem.
    Text,
    /// For programs: an object with `problems`, `warnings` and `findings`.
    Json,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let mut findings = Findings::default();
    if args.kubernetes {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let world = runtime.block_on(async {
            let client = gather::client(args.context.as_deref()).await?;
            anyhow::Ok(gather::cluster(client, args.namespace.as_deref()).await)
        })?;
        cluster::judge(&world, now, &mut findings);
    }
    let local = (!args.kubernetes).then_some(DEFAULT_CONTROL);
    if let Some(address) = args.control.as_deref().or(local) {
        service::judge(&pages::service(address), now, &mut findings);
    }
    if let Some(address) = &args.envoy_admin {
        envoy::judge(&pages::envoy(address), &mut findings);
    }
    let text = match args.output {
        Format::Text => report::text(&findings, Paint::for_stdout()),
        Format::Json => report::json(&findings)?,
    };
    Ok(Output { text, code: u8::from(findings.count(Level::Problem) > 0) })
}
