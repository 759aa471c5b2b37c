//! SARIF 2.1.0, the format of code scanning.

use kinference_api::{Problem, Severity};
use serde_json::{Value, json};

use super::severity;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A report of one run.
pub(super) fn report(problems: &[Problem]) -> Value {
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "kinfctl",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [
                    {"id": rule(Severity::Error), "shortDescription": {"text": "A resource that is not valid"}},
                    {"id": rule(Severity::Warning), "shortDescription": {
                        "text": "A resource that most likely does not do what was meant"
                    }},
                ],
            }},
            "results": problems.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn rule(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "kinference/invalid",
        Severity::Warning => "kinference/suspicious",
    }
}

fn result(problem: &Problem) -> Value {
    // Readers of SARIF take paths as URIs relative to the root of the repository.
    let file = problem.file.to_string_lossy().replace('\\', "/").replace(' ', "%20");
    let mut place = json!({"artifactLocation": {"uri": file.trim_start_matches("./")}});
    if problem.line > 0 {
        place["region"] = json!({"startLine": problem.line});
    }
    let path = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
    let remedy = if problem.remedy.is_empty() { String::new() } else { format!(" ({})", problem.remedy) };
    json!({
        "ruleId": rule(problem.severity),
        "level": severity(problem.severity),
        "message": {"text": format!("{path}{}{remedy}", problem.message)},
        "locations": [{"physicalLocation": place}],
    })
}
