//! `kinfctl crds`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kinference_api::crds;

use super::Output;

const EXAMPLES: &str = "Examples:
  kinfctl crds | kubectl apply --server-side -f -
  kinfctl crds --folder crds/     # one file a kind, to keep in git";

/// Prints the custom resource definitions of the five kinds, for Kubernetes 1.30 and later.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Writes one file a kind into this folder instead, named by its plural.
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let manifests = crds::manifests()?;
    let Some(folder) = &args.folder else {
        let documents: Vec<String> = manifests.into_iter().map(|manifest| manifest.yaml).collect();
        return Ok(Output::success(documents.join("---\n")));
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for manifest in manifests {
        let path = folder.join(format!("{}.yaml", manifest.plural));
        std::fs::write(&path, manifest.yaml).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Output::success(String::new()))
}
