//! Finds and reads files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{MAX_FILE_BYTES, MAX_FILES, SourceFile};
use crate::{Problem, Severity};

/// Folders deeper than this are refused: most likely a symbolic link leads in a circle.
const MAX_DEPTH: usize = 32;

/// The files of `paths`, each once, and what could not be read.
pub(super) fn collect(paths: &[PathBuf]) -> (Vec<SourceFile>, Vec<Problem>) {
    let mut collector = Collector::default();
    for path in paths {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let before = collector.found;
                collector.folder(path, 0);
                if collector.found == before && collector.problems.is_empty() {
                    let remedy =
                        "resources are in files that end in .yaml, .yml or .json; name the folder that has them";
                    collector.problem(path, "no files were found here".into(), remedy);
                }
            }
            Ok(_) => collector.file(path),
            Err(error) => collector.unreadable(path, &error),
        }
    }
    (collector.files, collector.problems)
}

#[derive(Default)]
struct Collector {
    files: Vec<SourceFile>,
    problems: Vec<Problem>,
    seen: BTreeSet<PathBuf>,
    /// Files, those that were seen before too.
    found: usize,
}

impl Collector {
    fn folder(&mut self, folder: &Path, depth: usize) {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} folders deep");
            return self.problem(folder, message, "is there a symbolic link to a folder above?");
        }
        let mut names = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries.into_iter().map(|entry| entry.file_name()).collect::<Vec<_>>(),
            Err(error) => return self.unreadable(folder, &error),
        };
        names.sort();
        for name in names {
            let path = folder.join(&name);
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.folder(&path, depth + 1),
                // Reading a pipe would wait for whoever writes to it.
                Ok(metadata) if metadata.is_file() && is_resource_file(&path) => self.file(&path),
                Ok(_) => {}
                // Gone since the folder was listed, or a dangling link.
                Err(error) if is_resource_file(&path) => self.unreadable(&path, &error),
                Err(_) => {}
            }
        }
    }

    fn file(&mut self, path: &Path) {
        self.found += 1;
        let identity = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if !self.seen.insert(identity) {
            return;
        }
        if self.files.len() >= MAX_FILES {
            if self.files.len() == MAX_FILES && self.seen.len() == MAX_FILES + 1 {
                self.problem(path, format!("more than {MAX_FILES} files"), "name a smaller folder");
            }
            return;
        }
        match read_bounded(path) {
            Ok(content) => self.files.push(SourceFile { path: path.to_path_buf(), content }),
            Err(error) => self.unreadable(path, &error),
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        self.problem(path, format!("cannot be read: {error}"), "");
    }

    fn problem(&mut self, path: &Path, message: String, remedy: &str) {
        self.problems.push(Problem {
            file: path.to_path_buf(),
            line: 0,
            path: String::new(),
            severity: Severity::Error,
            message,
            remedy: remedy.to_string(),
            resource: None,
        });
    }
}

fn is_resource_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    ["yaml", "yml", "json"].contains(&extension)
}

/// Reads at most one byte more than is allowed, so that the size is judged by what is there and not by what the file
/// system says (a pipe or device says 0).
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    Ok(content)
}
