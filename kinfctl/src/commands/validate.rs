//! `kinfctl validate`.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use kinference_api::{Problem, Problems, Resources, source};

use super::Output;
use crate::paint::Paint;

/// Checks files and folders of resources: fields, values, units, references.
///
/// Prints every problem with file, line and field path, and ends with 1 when there is one.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  kinfctl validate examples/local\n  kinfctl validate pools.yaml policies/")]
pub(crate) struct Args {
    /// Files and folders; of a folder every .yaml, .yml and .json file in it and below.
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let paint = Paint::for_stdout();
    match source::load(&args.paths) {
        Ok(resources) => Ok(Output::success(summary(&resources, paint))),
        Err(Problems(problems)) => Ok(Output { text: listing(&problems, paint)?, code: 1 }),
    }
}

fn summary(resources: &Resources, paint: Paint) -> String {
    let counts = [
        (resources.backends.len(), "GatewayBackend"),
        (resources.pools.len(), "InferencePool"),
        (resources.worker_sets.len(), "InferenceWorkerSet"),
        (resources.providers.len(), "InferenceProvider"),
        (resources.policies.len(), "InferencePolicy"),
        (resources.policy_tests.len(), "PolicyTest"),
    ];
    let there = counts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = there.map(|(count, kind)| format!("{count} {kind}")).collect();
    if parts.is_empty() {
        return format!("{} there are no resources in these files\n", paint.yellow("nothing to check:"));
    }
    format!("{} {}\n", paint.green("valid:"), parts.join(", "))
}

fn listing(problems: &[Problem], paint: Paint) -> Result<String> {
    let mut text = String::new();
    for problem in problems {
        // The first `: ` ends the place; the rest is what a reader looks for.
        let line = problem.to_string();
        match line.split_once(": ") {
            Some((place, rest)) => writeln!(text, "{} {rest}", paint.bold(&format!("{place}:")))?,
            None => writeln!(text, "{line}")?,
        }
    }
    let count = match problems.len() {
        1 => "1 problem".to_string(),
        many => format!("{many} problems"),
    };
    writeln!(text, "{}", paint.red(&count))?;
    Ok(text)
}
