//! The place of a field within a document: `spec.workers.static[1].port`.

use std::fmt;

/// A step from a value to one within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the value of a key.
    Key(String),
    /// To an element of a list, from 0.
    Index(usize),
}

/// The place of a field within a document. Displays as `spec.workers.static[1].port`; keys that are not plain words
/// are quoted: `metadata.labels["kinference.dev/tier"]`. The document itself is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(Vec<Step>);

impl FieldPath {
    /// The document itself.
    pub fn root() -> FieldPath {
        FieldPath::default()
    }

    /// The field `name` of the resource's spec.
    pub fn spec(name: &str) -> FieldPath {
        FieldPath::root().key("spec").key(name)
    }

    /// One step further, to the value of a key.
    pub fn key(&self, key: &str) -> FieldPath {
        self.then(Step::Key(key.to_string()))
    }

    /// One step further, to an element of a list.
    pub fn index(&self, index: usize) -> FieldPath {
        self.then(Step::Index(index))
    }

    fn then(&self, step: Step) -> FieldPath {
        let mut steps = self.0.clone();
        steps.push(step);
        FieldPath(steps)
    }

    /// The steps from the document to the field.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The path without its last step; None for the document itself.
    pub fn parent(&self) -> Option<FieldPath> {
        let (_, parents) = self.0.split_last()?;
        Some(FieldPath(parents.to_vec()))
    }

    /// The last step, when it is a key.
    pub fn last_key(&self) -> Option<&str> {
        match self.0.last() {
            Some(Step::Key(key)) => Some(key),
            _ => None,
        }
    }
}

impl From<&serde_path_to_error::Path> for FieldPath {
    fn from(path: &serde_path_to_error::Path) -> FieldPath {
        use serde_path_to_error::Segment;
        let steps = path.iter().filter_map(|segment| match segment {
            Segment::Seq { index } => Some(Step::Index(*index)),
            Segment::Map { key } => Some(Step::Key(key.clone())),
            Segment::Enum { .. } | Segment::Unknown => None,
        });
        FieldPath(steps.collect())
    }
}

impl From<&serde_ignored::Path<'_>> for FieldPath {
    fn from(path: &serde_ignored::Path<'_>) -> FieldPath {
        use serde_ignored::Path;
        match path {
            Path::Root => FieldPath::root(),
            Path::Seq { parent, index } => FieldPath::from(*parent).index(*index),
            Path::Map { parent, key } => FieldPath::from(*parent).key(key),
            Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
                FieldPath::from(*parent)
            }
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if is_plain(key) => {
                    write!(f, "{}{key}", if position == 0 { "" } else { "." })?;
                }
                Step::Key(key) => write!(f, "[{key:?}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_display_as_one_would_write_them() {
        assert_eq!(FieldPath::root().to_string(), "");
        let port = FieldPath::spec("workers").key("static").index(1).key("port");
        assert_eq!(port.to_string(), "spec.workers.static[1].port");
        let label = FieldPath::root().key("metadata").key("labels").key("a.b/c");
        assert_eq!(label.to_string(), "metadata.labels[\"a.b/c\"]");
    }
}
