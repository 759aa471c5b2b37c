//! A file as text, cut into its documents.

use std::ops::Range;
use std::path::PathBuf;

use serde::de::{DeserializeSeed, Error as _};

use super::locate::Locate;
use super::message::without_locations;
use super::{MAX_FILE_BYTES, SourceFile};
use crate::{FieldPath, Problem, Severity};

/// A file as text.
pub(super) struct Text {
    pub(super) path: PathBuf,
    content: String,
    json: bool,
    documents: Vec<Span>,
}

/// Where a document is.
struct Span {
    bytes: Range<usize>,
    /// The line that its text starts on, from 1.
    first_line: usize,
}

/// One document of a file.
#[derive(Clone, Copy)]
pub(super) struct Document<'a> {
    text: &'a str,
    json: bool,
    first_line: usize,
}

/// Why a document does not parse.
pub(super) struct ParseError {
    /// Line within the file; 0 when the parser does not say.
    pub(super) line: usize,
    /// The parser's words, without places.
    pub(super) message: String,
}

impl Text {
    /// # Errors
    /// The problem, when the file is too large or no UTF-8.
    pub(super) fn new(file: SourceFile) -> Result<Text, Box<Problem>> {
        let problem = |line: usize, message: String, remedy: &str| {
            Box::new(Problem {
                file: file.path.clone(),
                line,
                path: String::new(),
                severity: Severity::Error,
                message,
                remedy: remedy.to_string(),
                resource: None,
            })
        };
        if file.content.len() as u64 > MAX_FILE_BYTES {
            let message = format!("larger than {} MiB", MAX_FILE_BYTES >> 20);
            return Err(problem(0, message, "split it into several files"));
        }
        let content = match String::from_utf8(file.content) {
            Ok(content) => content.strip_prefix('\u{feff}').map(String::from).unwrap_or(content),
            Err(error) => {
                let good = error.utf8_error().valid_up_to();
                let line = 1 + error.as_bytes().iter().take(good).filter(|b| **b == b'\n').count();
                return Err(problem(line, "not UTF-8".into(), "save the file as UTF-8"));
            }
        };
        let json = file.path.extension().is_some_and(|extension| extension == "json");
        if !json && let Some(line) = too_deep(&content) {
            let message = format!("more than {MAX_NESTING} brackets open at a time");
            return Err(problem(line, message, "nest less; no resource needs it"));
        }
        let documents = if json { vec![Span { bytes: 0..content.len(), first_line: 1 }] } else { split(&content) };
        Ok(Text { path: file.path, content, json, documents })
    }

    pub(super) fn documents(&self) -> impl Iterator<Item = Document<'_>> {
        (0..self.documents.len()).filter_map(|index| self.document(index))
    }

    pub(super) fn document(&self, index: usize) -> Option<Document<'_>> {
        let span = self.documents.get(index)?;
        Some(Document { text: self.content.get(span.bytes.clone())?, json: self.json, first_line: span.first_line })
    }
}

/// More brackets are never open at a time in what people write. Readers of YAML take quadratic time for them.
const MAX_NESTING: usize = 500;

/// The line where too many brackets are open. Those in texts count too: they are closed there as well.
fn too_deep(content: &str) -> Option<usize> {
    let mut open = 0usize;
    for (line, number) in content.lines().zip(1..) {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > MAX_NESTING {
                return Some(number);
            }
        }
    }
    None
}

/// Cuts YAML at its document marks. A line that starts with `---` or `...` is a mark wherever it stands, so no parser
/// is needed; and since each document is then parsed alone, a broken one does not hide the mistakes of the next.
fn split(content: &str) -> Vec<Span> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut first_line = 1;
    let mut has_content = false;
    let mut position = 0;
    for (line, number) in content.split_inclusive('\n').zip(1..) {
        let next = position + line.len();
        let starts = is_mark(line, "---");
        let ends = is_mark(line, "...");
        // What comes before the first `---` may be comments and directives, which belong to the document after it.
        if starts && has_content {
            documents.push(Span { bytes: start..position, first_line });
            (start, first_line, has_content) = (position, number, false);
        }
        let trimmed = line.trim();
        has_content |= starts || !(ends || trimmed.is_empty() || trimmed.starts_with(['#', '%']));
        if ends {
            if has_content {
                documents.push(Span { bytes: start..position, first_line });
            }
            (start, first_line, has_content) = (next, number + 1, false);
        }
        position = next;
    }
    if has_content {
        documents.push(Span { bytes: start..position, first_line });
    }
    documents
}

fn is_mark(line: &str, mark: &str) -> bool {
    line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

impl<'a> Document<'a> {
    /// Reads the document with `seed`.
    ///
    /// # Errors
    /// When the text is no YAML or JSON, or the seed refuses it.
    pub(super) fn read<S: DeserializeSeed<'a>>(&self, seed: S) -> Result<S::Value, ParseError> {
        if self.json {
            let mut deserializer = serde_json::Deserializer::from_str(self.text);
            let value = seed.deserialize(&mut deserializer);
            return value
                .and_then(|value| deserializer.end().map(|()| value))
                .map_err(|error| self.error(error.line(), &error));
        }
        let mut documents = serde_yaml_ng::Deserializer::from_str(self.text);
        let value = match documents.next() {
            Some(document) => seed.deserialize(document),
            None => Err(serde_yaml_ng::Error::custom("the document is empty")),
        };
        value.map_err(|error| self.error(error.location().map_or(0, |l| l.line()), &error))
    }

    fn error(&self, line: usize, error: &dyn std::error::Error) -> ParseError {
        ParseError {
            line: if line == 0 { 0 } else { self.first_line + line - 1 },
            message: without_locations(&error.to_string()),
        }
    }

    /// True when the document is YAML.
    pub(super) fn language(&self) -> &'static str {
        if self.json { "JSON" } else { "YAML" }
    }

    /// The line of a field, or of the closest thing around it that the document has.
    pub(super) fn line_of(&self, path: &FieldPath) -> usize {
        let mut path = path.clone();
        loop {
            // The seed finds by failing: only then does a parser tell where it is.
            if let Err(found) = self.read(Locate(path.steps()))
                && found.line > 0
            {
                return found.line;
            }
            match path.parent() {
                Some(parent) => path = parent,
                None => return self.first_line,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(content: &str) -> Vec<(usize, &str)> {
        let spans = split(content).into_iter();
        spans.map(|span| (span.first_line, &content[span.bytes])).collect()
    }

    #[test]
    fn documents_are_cut_at_their_marks() {
        assert_eq!(spans(""), []);
        assert_eq!(spans("# only a comment\n\n"), []);
        assert_eq!(spans("a: 1\n"), [(1, "a: 1\n")]);
        assert_eq!(spans("a: 1\n---\nb: 2"), [(1, "a: 1\n"), (2, "---\nb: 2")]);
        assert_eq!(spans("# c\n%YAML 1.2\n--- \na: 1\n"), [(1, "# c\n%YAML 1.2\n--- \na: 1\n")]);
        assert_eq!(spans("---\r\na: 1\r\n...\r\nb: 2\r\n"), [(1, "---\r\na: 1\r\n"), (4, "b: 2\r\n")]);
        assert_eq!(spans("a: |\n  ---\n  x\n---x: 1\n").len(), 1);
        assert_eq!(spans("---\n---\na: 1\n"), [(1, "---\n"), (2, "---\na: 1\n")]);
    }
}
