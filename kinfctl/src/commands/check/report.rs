//! The findings as people and programs read them.

use std::fmt::Write;

use anyhow::Result;
use kinference_api::plain;
use serde_json::json;

use super::finding::{Finding, Findings, Level};
use crate::paint::Paint;

/// By category, in the order of the first finding of each.
pub(super) fn text(findings: &Findings, paint: Paint) -> String {
    let mut text = String::new();
    let mut categories: Vec<&str> = Vec::new();
    for finding in findings.all() {
        if !categories.contains(&finding.category) {
            categories.push(finding.category);
        }
    }
    for category in categories {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", paint.bold(category));
        for finding in findings.all().iter().filter(|finding| finding.category == category) {
            line(&mut text, finding, paint);
        }
        text.push('\n');
    }
    let (problems, warnings) = (findings.count(Level::Problem), findings.count(Level::Warning));
    let verdict = match (problems, warnings) {
        (0, 0) => paint.green("all is well"),
        (0, warnings) => paint.yellow(&super::finding::counted(warnings, "warning")),
        (problems, warnings) => {
            let both = format!(
                "{}, {}",
                super::finding::counted(problems, "problem"),
                super::finding::counted(warnings, "warning")
            );
            paint.red(&both)
        }
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn line(text: &mut String, finding: &Finding, paint: Paint) {
    let mark = match finding.level {
        Level::Ok => paint.green("✓"),
        Level::Warning => paint.yellow("!"),
        Level::Problem => paint.red("✗"),
    };
    let _ = writeln!(text, "{mark} {}", plain(&finding.message));
    if let Some(hint) = &finding.hint {
        let _ = writeln!(text, "    {}", paint.dim(&plain(hint)));
    }
}

/// One JSON object.
pub(super) fn json(findings: &Findings) -> Result<String> {
    let (problems, warnings) = (findings.count(Level::Problem), findings.count(Level::Warning));
    let document = json!({"problems": problems, "warnings": warnings, "findings": findings.all()});
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
