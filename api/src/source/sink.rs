//! Collects problems, as many as anyone would read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{MAX_DOCUMENT_PROBLEMS, MAX_PROBLEMS};
use crate::{Origin, Problem, Severity};

/// The problems of a load. Finding a problem's line takes another look at its document, so both the problems of a
/// document and those of a load are bounded; those beyond are counted.
#[derive(Default)]
pub(super) struct Sink {
    problems: Vec<Problem>,
    by_document: BTreeMap<Origin, usize>,
    omitted: usize,
    first_omitted: Option<PathBuf>,
    omitted_errors: bool,
}

impl Sink {
    /// Counts a problem of a document; true when there is room for it, and the caller is to [`Sink::push`] it.
    pub(super) fn admit(&mut self, origin: &Origin, severity: Severity) -> bool {
        let of_document = self.by_document.entry(origin.clone()).or_default();
        *of_document += 1;
        if *of_document <= MAX_DOCUMENT_PROBLEMS && self.problems.len() < MAX_PROBLEMS {
            return true;
        }
        self.omitted += 1;
        self.omitted_errors |= severity == Severity::Error;
        self.first_omitted.get_or_insert_with(|| origin.file().to_path_buf());
        false
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Problems so far, those without room too.
    pub(super) fn len(&self) -> usize {
        self.problems.len() + self.omitted
    }

    /// The problems in the order of files and lines.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        self.problems.sort();
        self.problems.dedup();
        if let Some(file) = self.first_omitted {
            let message = format!("{} more problems from here on", self.omitted);
            let remedy = "they show when some of the others are solved".to_string();
            let severity = if self.omitted_errors { Severity::Error } else { Severity::Warning };
            self.problems.push(Problem {
                file,
                line: 0,
                path: String::new(),
                severity,
                message,
                remedy,
                resource: None,
            });
        }
        self.problems
    }
}
