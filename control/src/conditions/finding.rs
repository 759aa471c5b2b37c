//! One thing that is so, or is not.

use serde::Serialize;

use super::reasons::{HELD, INVALID, REFERENCE_MISSING};
use crate::state::{Outcome, Standing};

/// Longest message, in characters: the rest of a long list is counted.
const MESSAGE: usize = 1000;

/// A condition without its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// One of [`types`](super::reasons::types).
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether it is so.
    pub status: Truth,
    /// One of [`reasons`](super::reasons).
    pub reason: &'static str,
    /// What is so, and what to do about it. Holds neither prompts nor credentials.
    pub message: String,
}

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Truth {
    /// It is.
    True,
    /// It is not.
    False,
    /// That is not known, or makes no sense to ask.
    Unknown,
}

impl Truth {
    /// As conditions write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a finding of one type says.
pub(super) type Said = (Truth, &'static str, String);

pub(super) fn finding(kind: &'static str, (status, reason, message): Said) -> Finding {
    Finding { kind, status, reason, message }
}

pub(super) fn yes(reason: &'static str, message: impl Into<String>) -> Said {
    (Truth::True, reason, message.into())
}

pub(super) fn no(reason: &'static str, message: impl Into<String>) -> Said {
    (Truth::False, reason, message.into())
}

pub(super) fn unknown(reason: &'static str, message: impl Into<String>) -> Said {
    (Truth::Unknown, reason, message.into())
}

/// What keeps the version of a resource that was read last out of force; none when it is in force.
pub(super) fn kept_out(outcome: &Outcome) -> Option<Said> {
    let earlier = match outcome.standing {
        Standing::InForce => return None,
        Standing::LastGood => "; an earlier version stays in force",
        Standing::NotInForce => "",
    };
    if let Some(why) = &outcome.held {
        return Some(no(HELD, format!("{why}{earlier}")));
    }
    (!outcome.problems.is_empty()).then(|| no(INVALID, format!("{}{earlier}", list(&outcome.problems))))
}

/// What is said of a version in force that refers to what is not there and is used without that.
pub(super) fn in_spite_of(outcome: &Outcome, (status, reason, message): Said) -> Said {
    if outcome.problems.is_empty() {
        return (status, reason, message);
    }
    let reason = if status == Truth::True { REFERENCE_MISSING } else { reason };
    (status, reason, format!("{message}; {}", list(&outcome.problems)))
}

/// Problems one after the other, as many as fit.
pub(super) fn list(problems: &[String]) -> String {
    let mut text = String::new();
    for (number, problem) in problems.iter().enumerate() {
        let room = MESSAGE.saturating_sub(text.chars().count());
        if number > 0 && problem.chars().count() + 2 > room {
            text.push_str(&format!("; and {} more", problems.len() - number));
            break;
        }
        if number > 0 {
            text.push_str("; ");
        }
        text.extend(problem.chars().take(room));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_counted() {
        assert_eq!(list(&["a".into(), "b".into()]), "a; b");
        let many: Vec<String> = (0..50).map(|number| format!("{number}: {}", "x".repeat(90))).collect();
        let text = list(&many);
        assert!(text.chars().count() < MESSAGE + 20 && text.ends_with("; and 40 more"), "{text}");
        assert_eq!(list(&["ä".repeat(2000)]).chars().count(), MESSAGE);
    }
}
