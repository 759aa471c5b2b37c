//! Files and folders to [`Resources`].
//!
//! A file holds any number of documents (YAML, or JSON in `.json` files). Everything that is wrong is reported at once,
//! each problem with file, line and field path. What is read is bounded: file size, files, depth, and what aliases
//! expand to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::problem::{Problem, Problems};
use crate::{Resources, check};
use sink::Sink;

mod document;
mod files;
mod locate;
mod message;
mod probe;
mod sink;
mod suggest;
#[cfg(test)]
mod tests;
mod text;

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

/// Loads files and folders. Of a folder: every `.yaml`, `.yml` and `.json` file in it and below, in the order of their
/// names; hidden files and folders are left out (a mounted ConfigMap keeps its versions in some). A file that is named
/// itself is loaded whatever it is called.
///
/// # Errors
/// Every problem there is: unreadable files, bad YAML, unknown kinds and fields, wrong values, and all that
/// [`crate::check`] finds.
pub fn load(paths: &[PathBuf]) -> Result<Resources, Problems> {
    let (files, problems) = files::collect(paths);
    let mut sink = Sink::default();
    problems.into_iter().for_each(|problem| sink.push(problem));
    load_with(files, sink)
}

/// Loads files that are in memory.
///
/// # Errors
/// As [`load`].
pub fn load_files(files: Vec<SourceFile>) -> Result<Resources, Problems> {
    load_with(files, Sink::default())
}

fn load_with(files: Vec<SourceFile>, mut sink: Sink) -> Result<Resources, Problems> {
    let mut resources = Resources::default();
    let mut unread = document::Unread { anything: sink.len() > 0, ..Default::default() };
    let mut texts: BTreeMap<PathBuf, text::Text> = BTreeMap::new();
    for file in files {
        match text::Text::new(file) {
            Ok(text) => {
                document::read_all(&text, &mut resources, &mut sink, &mut unread);
                texts.insert(text.path.clone(), text);
            }
            Err(problem) => {
                sink.push(problem);
                unread.anything = true;
            }
        }
    }
    for finding in check::check(&resources) {
        // What is missing may be what could not be read: that would be the same mistake reported twice.
        let is_echo = finding.missing.as_ref().is_some_and(|missing| unread.may_hold(missing));
        if is_echo || !sink.admit(&finding.origin) {
            continue;
        }
        let text = texts.get(&finding.origin.file);
        let document = text.and_then(|text| text.document(finding.origin.document));
        sink.push(Problem {
            line: document.map_or(0, |document| document.line_of(&finding.path)),
            path: finding.path.to_string(),
            message: finding.message,
            remedy: finding.remedy,
            file: finding.origin.file,
        });
    }
    sink.finish().map(|()| resources)
}
