//! `kinfctl status`.

mod report;
mod resources;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result};

use super::Output;
use crate::http;
use crate::paint::Paint;
use crate::status::Status;

/// Shows what the control service knows: configuration, rules in force, worker sets, workers, the conditions of every
/// resource, filters, Envoys.
///
/// Ends with 0 when the control service answers, whatever it says; with 1 when it does not.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  kinfctl status\n  kinfctl status --admin 10.0.0.4:18101 --json | jq .config")]
pub(crate) struct Args {
    /// The control service's admin address.
    #[arg(long, value_name = "HOST:PORT", env = "KINFERENCE_ADMIN", default_value = "127.0.0.1:18101")]
    admin: String,
    /// Prints the JSON that the control service answers, indented.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let answer = http::get(&args.admin, "status")?;
    let foreign = || format!("what {} answers is not the status of a kinference-control", args.admin);
    if args.json {
        let value: serde_json::Value = serde_json::from_slice(&answer).with_context(foreign)?;
        return Ok(Output::success(format!("{value:#}\n")));
    }
    let status: Status = serde_json::from_slice(&answer).with_context(foreign)?;
    Ok(Output::success(report::render(&status, Paint::for_stdout())))
}
