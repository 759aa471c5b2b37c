//! `kinfctl validate`.

mod sarif;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use kinference_api::{Problem, Resources, Severity, source};
use serde_json::{Value, json};

use super::Output;
use crate::paint::Paint;

const EXAMPLES: &str = "Examples:
  kinfctl validate examples/local
  kinfctl validate pools.yaml policies/ --strict                     # for CI: warnings fail too
  kinfctl validate policies/ --output sarif > kinference.sarif       # for code scanning

Ends with 0 when the resources are valid, 1 when they are not, 2 when the command line is not.";

/// Checks files and folders of resources: fields, values, units, references, and rules that never match, never count or
/// are not in force yet.
///
/// Prints every problem with file, line and field path; of a document that cannot be read as its kind, the first, and what
/// is wrong between resources once all can be read.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders; of a folder every .yaml, .yml and .json file in it and below.
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// How problems are printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Warnings fail too.
    #[arg(long)]
    strict: bool,
}

/// How problems are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

pub(super) fn run(args: &Args) -> Result<Output> {
    let paint = Paint::for_stdout();
    let loaded = source::examine(&args.paths);
    let problems = &loaded.problems;
    let (errors, warnings) = counts(problems);
    let text = match args.output {
        Format::Text if errors > 0 => listing(problems, paint)?,
        Format::Text if warnings > 0 => listing(problems, paint)? + &summary(&loaded.resources, paint),
        Format::Text => summary(&loaded.resources, paint),
        Format::Json => as_json(problems, &loaded.resources)?,
        Format::Sarif => format!("{:#}\n", sarif::report(problems)),
    };
    let fails = errors > 0 || (args.strict && warnings > 0);
    Ok(Output { text, code: u8::from(fails) })
}

/// Errors and warnings.
fn counts(problems: &[Problem]) -> (usize, usize) {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    (errors, problems.len() - errors)
}

fn by_kind(resources: &Resources) -> [(usize, &'static str); 6] {
    [
        (resources.backends.len(), "GatewayBackend"),
        (resources.pools.len(), "InferencePool"),
        (resources.worker_sets.len(), "InferenceWorkerSet"),
        (resources.providers.len(), "InferenceProvider"),
        (resources.policies.len(), "InferencePolicy"),
        (resources.policy_tests.len(), "PolicyTest"),
    ]
}

fn summary(resources: &Resources, paint: Paint) -> String {
    let counts = by_kind(resources);
    let there = counts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = there.map(|(count, kind)| format!("{count} {kind}")).collect();
    format!("{} {}\n", paint.green("valid:"), parts.join(", "))
}

/// The problems for people, and how many there are.
pub(super) fn listing(problems: &[Problem], paint: Paint) -> Result<String> {
    let mut text = String::new();
    for problem in problems {
        // The first `: ` ends the place; the rest is what a reader looks for.
        let line = problem.to_string();
        match line.split_once(": ") {
            Some((place, rest)) => writeln!(text, "{} {rest}", paint.bold(&format!("{place}:")))?,
            None => writeln!(text, "{line}")?,
        }
    }
    let count = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        many => Some(format!("{many} {what}s")),
    };
    let (errors, warnings) = counts(problems);
    let errors = count(errors, "problem").map(|text| paint.red(&text));
    let warnings = count(warnings, "warning").map(|text| paint.yellow(&text));
    let parts: Vec<String> = errors.into_iter().chain(warnings).collect();
    writeln!(text, "{}", parts.join(", "))?;
    Ok(text)
}

/// The problems for programs.
pub(super) fn as_json(problems: &[Problem], resources: &Resources) -> Result<String> {
    let (errors, warnings) = counts(problems);
    let resources: serde_json::Map<String, Value> =
        by_kind(resources).into_iter().map(|(count, kind)| (kind.to_string(), count.into())).collect();
    let problems = problems.iter().map(|problem| {
        json!({
            "file": problem.file,
            "line": (problem.line > 0).then_some(problem.line),
            "path": problem.path,
            "severity": severity(problem.severity),
            "message": problem.message,
            "remedy": problem.remedy,
        })
    });
    let report = json!({
        "valid": errors == 0,
        "errors": errors,
        "warnings": warnings,
        "problems": problems.collect::<Vec<_>>(),
        "resources": resources,
    });
    Ok(format!("{report:#}\n"))
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}
