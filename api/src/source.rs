//! Files and folders to [`Resources`].
//!
//! A file holds any number of documents (YAML, or JSON in `.json` files). Everything that is wrong is reported at once,
//! each problem with file, line and field path. What is read is bounded: file size, files, depth, and what aliases
//! expand to.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::policy_test::TestState;
use crate::problem::{Problem, Problems, Severity};
use crate::{Origin, Resources, check};
use document::Tests;
use sink::Sink;

mod document;
mod files;
mod locate;
mod message;
mod probe;
mod sink;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod text;
mod value;

pub use value::{SpecError, read_spec};

/// Larger files are refused, in bytes.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
/// More files in all folders together are refused.
pub const MAX_FILES: usize = 10_000;
/// A file with more values, those that aliases repeat counted, is refused.
pub const MAX_FILE_VALUES: usize = 1_000_000;
/// More problems of one document are counted and not told.
pub const MAX_DOCUMENT_PROBLEMS: usize = 50;
/// More problems of one load are counted and not told.
pub const MAX_PROBLEMS: usize = 1_000;

/// A file's name and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The name that problems show; relative tokenizer paths start from its folder. `.json` makes it JSON.
    pub path: PathBuf,
    /// The content.
    pub content: Vec<u8>,
}

/// What files hold, and everything that is wrong with it.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What could be read.
    pub resources: Resources,
    /// Errors and warnings, in the order of files and lines.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// The resources, unless there is an error.
    ///
    /// # Errors
    /// All errors.
    pub fn valid(self) -> Result<Resources, Problems> {
        let errors: Vec<Problem> = self.problems.into_iter().filter(|p| p.severity == Severity::Error).collect();
        if errors.is_empty() { Ok(self.resources) } else { Err(Problems(errors)) }
    }
}

/// Loads files and folders. Of a folder: every `.yaml`, `.yml` and `.json` file in it and below, in the order of their
/// names; hidden files and folders are left out (a mounted ConfigMap keeps its versions in some). A file that is named
/// itself is loaded whatever it is called.
///
/// # Errors
/// Every error there is: unreadable files, bad YAML, unknown kinds and fields, wrong values, and all that
/// [`crate::check`] finds.
pub fn load(paths: &[PathBuf]) -> Result<Resources, Problems> {
    examine(paths).valid()
}

/// Like [`load`], with warnings too, and with what could be read in spite of errors.
pub fn examine(paths: &[PathBuf]) -> Loaded {
    let (files, sink) = collect(paths);
    examine_with(files, Tests::Read, sink)
}

/// Like [`examine`], but for what is to take force: policy tests are passed over, whatever is wrong with them.
pub fn examine_resources(paths: &[PathBuf]) -> Loaded {
    let (files, sink) = collect(paths);
    examine_with(files, Tests::Skip, sink)
}

fn collect(paths: &[PathBuf]) -> (Vec<SourceFile>, Sink) {
    let (files, problems) = files::collect(paths);
    let mut sink = Sink::default();
    problems.into_iter().for_each(|problem| sink.push(problem));
    (files, sink)
}

/// A number that changes when [`examine`] would read something else: with every file's name and content, and with what
/// cannot be read. It is of no use in another process.
pub fn fingerprint(paths: &[PathBuf]) -> u64 {
    let (files, problems) = files::collect(paths);
    let mut hasher = DefaultHasher::new();
    for file in files {
        (file.path, file.content).hash(&mut hasher);
    }
    for problem in problems {
        (problem.file, problem.message).hash(&mut hasher);
    }
    hasher.finish()
}

/// Like [`examine`], of files that are in memory.
pub fn examine_files(files: Vec<SourceFile>) -> Loaded {
    examine_with(files, Tests::Read, Sink::default())
}

/// Loads a file that holds nothing but the `state` of a policy test.
///
/// # Errors
/// Every problem of the file.
pub fn load_state(path: &Path) -> Result<TestState, Problems> {
    let (files, mut sink) = collect(&[path.to_path_buf()]);
    let mut state = None;
    for file in files {
        match text::Text::new(file) {
            Ok(text) => state = document::read_state(&text, &mut sink),
            Err(problem) => sink.push(*problem),
        }
    }
    let problems = sink.finish();
    if problems.is_empty() { Ok(state.unwrap_or_default()) } else { Err(Problems(problems)) }
}

/// Loads files that are in memory.
///
/// # Errors
/// As [`load`].
pub fn load_files(files: Vec<SourceFile>) -> Result<Resources, Problems> {
    examine_files(files).valid()
}

fn examine_with(files: Vec<SourceFile>, tests: Tests, mut sink: Sink) -> Loaded {
    let mut resources = Resources::default();
    let mut unread = document::Unread { anything: sink.len() > 0, ..Default::default() };
    let mut texts: BTreeMap<PathBuf, text::Text> = BTreeMap::new();
    for file in files {
        match text::Text::new(file) {
            Ok(text) => {
                document::read_all(&text, tests, &mut resources, &mut sink, &mut unread);
                texts.insert(text.path.clone(), text);
            }
            Err(problem) => {
                sink.push(*problem);
                unread.anything = true;
            }
        }
    }
    let mut findings = check::each(&resources);
    // Half of the resources would make all sorts of things look wrong.
    if unread.is_empty() {
        findings.extend(check::together(&resources));
    }
    findings.sort_by_key(|finding| finding.severity);
    for finding in findings {
        // What is missing may be what could not be read: that would be the same mistake reported twice.
        let is_echo = finding.missing.as_ref().is_some_and(|missing| unread.may_hold(missing));
        if is_echo || !sink.admit(&finding.origin, finding.severity) {
            continue;
        }
        let Origin::File { file, document } = finding.origin else { continue };
        let document = texts.get(&file).and_then(|text| text.document(document));
        sink.push(Problem {
            line: document.map_or(0, |document| document.line_of(&finding.path)),
            path: finding.path.to_string(),
            severity: finding.severity,
            message: finding.message,
            remedy: finding.remedy,
            file,
            resource: finding.kind.map(|kind| (kind, finding.key)),
        });
    }
    Loaded { resources, problems: sink.finish() }
}
