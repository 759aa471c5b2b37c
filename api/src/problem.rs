//! What is wrong with what a user wrote: where, what, and what to do.

use std::fmt;
use std::path::PathBuf;

use crate::{FieldPath, Kind, ObjectKey, Origin, plain};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// It keeps the resources from being used.
    Error,
    /// They can be used, but most likely do not do what was meant.
    Warning,
}

/// A problem of a file. Displays as `file:line: path: message (remedy)`, without the parts that are not known; a warning
/// says so before its message. What it quotes of a file is shown with control characters escaped: it is always one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, or the folder when it could not be read.
    pub file: PathBuf,
    /// Line within the file, from 1; 0 when the problem is of the file as a whole.
    pub line: usize,
    /// Field path, such as `spec.workers.port`; empty when the problem is of the document as a whole.
    pub path: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong: one sentence without full stop.
    pub message: String,
    /// What to do about it; empty when the message says it all.
    pub remedy: String,
    /// The resource that it is a problem of, as far as kind and name are known.
    pub resource: Option<(Kind, ObjectKey)>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", plain(&self.file.to_string_lossy()))?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.path.is_empty() {
            write!(f, " {}:", plain(&self.path))?;
        }
        if self.severity == Severity::Warning {
            f.write_str(" warning:")?;
        }
        write!(f, " {}", plain(&self.message))?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", plain(&self.remedy))?;
        }
        Ok(())
    }
}

/// All errors of a load, in the order of files and lines; never empty. Displays one a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

/// A problem of a resource, wherever it came from. [`crate::source`] turns it into a [`Problem`] with a line; a
/// Kubernetes source can turn it into a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where the resource came from.
    pub origin: Origin,
    /// The resource's kind; None for a policy test.
    pub kind: Option<Kind>,
    /// The resource's namespace and name.
    pub key: ObjectKey,
    /// The field.
    pub path: FieldPath,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong: one sentence without full stop.
    pub message: String,
    /// What to do about it; empty when the message says it all.
    pub remedy: String,
    /// The resource that does not exist, when that is what is wrong.
    pub missing: Option<(Kind, ObjectKey)>,
}

/// Displays as `path: message (remedy)`, for those who see which resource it is of; control characters are escaped.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string();
        if !path.is_empty() {
            write!(f, "{}: ", plain(&path))?;
        }
        f.write_str(&plain(&self.message))?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", plain(&self.remedy))?;
        }
        Ok(())
    }
}
