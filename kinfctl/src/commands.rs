//! The commands, one file each.

mod check;
mod completions;
mod crds;
mod envoy_config;
mod explain;
mod status;
mod test;
mod validate;

use anyhow::Result;
use clap::Subcommand;

/// What a command prints, and the code that the program ends with.
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Output {
    fn success(text: String) -> Output {
        Output { text, code: 0 }
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    EnvoyConfig(envoy_config::Args),
    Status(status::Args),
    Check(check::Args),
    Validate(validate::Args),
    Test(test::Args),
    Explain(explain::Args),
    Crds(crds::Args),
    Completions(completions::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<Output> {
        match self {
            Command::EnvoyConfig(args) => envoy_config::run(&args),
            Command::Status(args) => status::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Validate(args) => validate::run(&args),
            Command::Test(args) => test::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Crds(args) => crds::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}
