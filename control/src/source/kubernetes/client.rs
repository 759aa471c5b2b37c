//! The connection to the API server.

use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::KubernetesArgs;

/// An API server that does not take a connection within this time is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// A client, and the API server's address for messages. Nothing is sent yet.
///
/// # Errors
/// When neither a kubeconfig nor a service account says where the API server is, or what they say cannot be used.
pub(super) async fn connect(args: &KubernetesArgs) -> anyhow::Result<(Client, String)> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match &args.kubeconfig {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {} cannot be used", file.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(|| format!("--kubeconfig {} cannot be used", file.display()))?
        }
        None if args.context.is_some() => {
            Config::from_kubeconfig(&options).await.context("the kubeconfig cannot be used; see --context")?
        }
        None => Config::infer().await.context(
            "there is no cluster to connect to: run in a Pod with a service account, set KUBECONFIG, or give --kubeconfig",
        )?,
    };
    config.connect_timeout = Some(CONNECT);
    // Whoever asks tries again, and says why meanwhile. The client's own retries of 429, 503 and 504 would hide them, and
    // keep a watch silent for minutes.
    config.default_retry = false;
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = Client::try_from(config).context("the client of the API server cannot be made")?;
    Ok((client, address))
}
