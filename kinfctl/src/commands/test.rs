//! `kinfctl test`.

use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use kinference_api::policy_test::{PolicyTest, TestCase};
use kinference_api::{Problems, Resources, plain, source};
use serde_json::{Value, json};

use super::{Output, validate};
use crate::outcome::Outcome;
use crate::paint::Paint;
use crate::scene::Scene;
use crate::told;

const EXAMPLES: &str = "Examples:
  kinfctl test examples/policies
  kinfctl test policies/ --watch                   # again whenever something changed
  kinfctl test policies/ --output json | jq '.cases[] | select(.passed | not)'

A test is a document of kind PolicyTest beside the policies:
  apiVersion: kinference.dev/v1alpha1
  kind: PolicyTest
  metadata: {name: house-rules}
  cases:
  - name: personal data never leaves
    request: {tenant: research, model: glm-5.3, tags: [pii-detected], promptTokens: 900}
    state: {workers: {glm/a: {ready: false}, glm/b: {ready: false}}}
    expect: {rejected: {status: 503}}

What a test does not state: every worker is ready, idle and without cache, every provider is ready, the prompt has 256
tokens, and the tenant is some tenant without settings of its own (`tenant: \"\"` is a request without one). A worker set
with a selector has the workers that states name, or else one named `worker`. Predicted times to first token are those
of the default coefficients: 20 ms, 0.1 ms for each prompt token to compute or queued before it (512 for each queued
request), and 0.5 ms for each request there.";

/// Runs the policy tests of files and folders: what would become of a request in a state that the test makes up.
///
/// Prints every case, and the whole trace of those that fail. Ends with 1 when one fails or the resources are not valid.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders, resources and tests together; of a folder every .yaml, .yml and .json file in it and below.
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Runs the tests again whenever a file changed, until it is stopped.
    #[arg(long)]
    watch: bool,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How often files are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn run(args: &Args) -> Result<Output> {
    if !args.watch {
        return once(args);
    }
    let mut last = String::new();
    loop {
        // A file may be gone for a moment while an editor writes it; the next round shows how that ended.
        let text = match once(args) {
            Ok(output) => output.text,
            Err(error) => format!("{} {error:#}\n", Paint::for_stdout().red("error:")),
        };
        if text != last {
            println!("{text}");
            last = text;
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

/// A case, and what came of it.
struct Run<'t> {
    test: &'t PolicyTest,
    case: &'t TestCase,
    line: usize,
    outcome: Outcome,
    unmet: Vec<String>,
}

fn once(args: &Args) -> Result<Output> {
    let paint = Paint::for_stdout();
    let resources = match source::load(&args.paths) {
        Ok(resources) => resources,
        Err(Problems(problems)) => {
            return Ok(match args.output {
                Format::Text => Output { text: validate::listing(&problems, paint)?, code: 1 },
                Format::Json => Output { text: validate::as_json(&problems, &Resources::default())?, code: 1 },
            });
        }
    };
    let runs = play(&resources)?;
    if runs.is_empty() {
        bail!("there is no PolicyTest in these files; name the files with tests too (see kinfctl test --help)");
    }
    let failed = runs.iter().filter(|run| !run.unmet.is_empty()).count();
    let passed = runs.len() - failed;
    let text = match args.output {
        Format::Text => in_text(&runs, passed, failed, paint)?,
        Format::Json => {
            let cases: Vec<Value> = runs.iter().map(in_json).collect();
            format!("{:#}\n", json!({"passed": passed, "failed": failed, "cases": cases}))
        }
    };
    Ok(Output { text, code: u8::from(failed > 0) })
}

fn play(resources: &Resources) -> Result<Vec<Run<'_>>> {
    let mut runs = Vec::new();
    for test in &resources.policy_tests {
        let Some(backend) = test.backend(resources) else {
            bail!("{}: which GatewayBackend is tested is not clear", test.origin.file().display());
        };
        for (case, line) in test.spec.cases.iter().zip(&test.case_lines) {
            let outcome = Scene::new(resources, backend, &[&test.spec.state, &case.state])?.play(&case.request);
            let unmet = outcome.unmet(&case.expect);
            runs.push(Run { test, case, line: *line, outcome, unmet });
        }
    }
    Ok(runs)
}

fn in_text(runs: &[Run<'_>], passed: usize, failed: usize, paint: Paint) -> Result<String> {
    let mut text = String::new();
    let mut before: Option<&PolicyTest> = None;
    for run in runs {
        if before.is_none_or(|test| test.origin != run.test.origin) {
            let title = format!("{}: {}", run.test.origin.file().display(), run.test.key.name);
            writeln!(text, "{}", paint.bold(&plain(&title)))?;
            before = Some(run.test);
        }
        let name = plain(&run.case.name);
        if run.unmet.is_empty() {
            writeln!(text, "  {}  {name}", paint.green("pass"))?;
            continue;
        }
        writeln!(text, "  {}  {name} (line {})", paint.red("FAIL"), run.line)?;
        for unmet in &run.unmet {
            writeln!(text, "        expected  {}", plain(unmet))?;
        }
        writeln!(text, "        got       {}\n", plain(&run.outcome.summary()))?;
        writeln!(text, "{}", told::tables(&run.case.request, &run.outcome, "        ", paint))?;
    }
    let summary = format!("{passed} passed, {failed} failed");
    writeln!(text, "{}", if failed == 0 { paint.green(&summary) } else { paint.red(&summary) })?;
    Ok(text)
}

fn in_json(run: &Run<'_>) -> Value {
    json!({
        "file": run.test.origin.file(),
        "line": run.line,
        "test": run.test.key.name,
        "name": run.case.name,
        "passed": run.unmet.is_empty(),
        "unmet": run.unmet,
        "outcome": told::value(&run.case.request, &run.outcome),
    })
}
