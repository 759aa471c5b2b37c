//! `kinfctl`: the command line of Kinference.

mod commands;
mod http;
mod live;
mod outcome;
mod paint;
mod scene;
mod status;
mod table;
mod told;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::paint::Paint;

/// Checks, tests and explains policies, configures Envoy for Kinference, and shows what the control service knows.
#[derive(Parser)]
#[command(name = "kinfctl", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(output) => match io::stdout().write_all(output.text.as_bytes()) {
            Ok(()) => ExitCode::from(output.code),
            // Whoever read the output has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(output.code),
            Err(error) => failure(&format!("cannot write to standard output: {error}")),
        },
        Err(error) => failure(&format!("{error:#}")),
    }
}

fn failure(message: &str) -> ExitCode {
    let paint = Paint::for_stderr();
    // Errors quote files and answers; only the line ends are meant.
    let lines: Vec<_> = message.lines().map(kinference_api::plain).collect();
    // Nothing is left to be done when standard error is gone too.
    let _ = writeln!(io::stderr(), "{} {}", paint.red("error:"), lines.join("\n"));
    ExitCode::FAILURE
}
