//! What was found: one line each, and what to do about it.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It does not work.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) category: &'static str,
    pub(super) level: Level,
    pub(super) message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

/// All findings, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, category: &'static str, message: impl Into<String>) {
        self.0.push(Finding { category, level: Level::Ok, message: message.into(), hint: None });
    }

    pub(super) fn warning(&mut self, category: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push(Finding { category, level: Level::Warning, message: message.into(), hint: Some(hint.into()) });
    }

    pub(super) fn problem(&mut self, category: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push(Finding { category, level: Level::Problem, message: message.into(), hint: Some(hint.into()) });
    }

    pub(super) fn all(&self) -> &[Finding] {
        &self.0
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }
}

/// `1 worker`, `2 workers`.
pub(super) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
