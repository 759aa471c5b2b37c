//! `kinfctl completions`.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Output;

/// Prints a completion script for a shell.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  source <(kinfctl completions bash)")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "kinfctl", &mut script);
    Ok(Output::success(String::from_utf8(script)?))
}
