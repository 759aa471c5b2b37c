//! Validation rules in the schemas, which an API server runs (CEL). What each refuses, [`crate::check`] refuses in files
//! with the same words.

use std::fmt::Display;

use kube::core::{ListMerge, Message, Rule};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::units::{Period, Size};

/// What a resource may be called.
pub(super) const RESOURCE_NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Text with something in it.
pub(super) const NOT_BLANK: &str = r"\S";

/// A rule and what to say when it does not hold.
pub(super) fn rule(rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(rule).message(Message::Message(message.into()))
}

/// An object that is kept as it is. The control service writes it, and reads it as it reads a spec.
pub(super) fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

/// Exactly one of several optional fields is given.
pub(super) fn exactly_one(fields: &[&str]) -> Rule {
    let given: Vec<String> = fields.iter().map(|field| format!("has(self.{field})")).collect();
    rule(
        format!("[{}].exists_one(given, given)", given.join(", ")),
        format!("give exactly one of {}", fields.join(", ")),
    )
}

/// A list whose elements are told apart by their `name`: no two have the same.
pub(super) fn by_name() -> ListMerge {
    ListMerge::Map(vec!["name".to_string()])
}

/// A duration within bounds.
pub(super) fn period_within((least, most): (Period, Period)) -> Rule {
    within("duration", least, most)
}

/// A size within bounds.
pub(super) fn size_within((least, most): (Size, Size)) -> Rule {
    rule(
        format!(
            "quantity(self).compareTo(quantity('{least}')) >= 0 && quantity(self).compareTo(quantity('{most}')) <= 0"
        ),
        out_of_range(least, most),
    )
}

fn within(read: &str, least: impl Display, most: impl Display) -> Rule {
    rule(format!("{read}(self) >= {read}('{least}') && {read}(self) <= {read}('{most}')"), out_of_range(least, most))
}

fn out_of_range(least: impl Display, most: impl Display) -> String {
    format!("out of range ({least} to {most})")
}

/// A duration that is more than nothing.
pub(super) fn not_zero() -> Rule {
    rule("duration(self) >= duration('1ms')", "zero (give a duration of at least 1ms)")
}

/// Text that is matched by a regular expression.
pub(super) fn matches(pattern: &str, message: &str) -> Rule {
    rule(format!("self.matches(r\"{pattern}\")"), message)
}

/// A URL of a server.
pub(super) fn url() -> Rule {
    matches("^https?://[!-.0-~][!-~]*$", "not a URL (start with https:// or http:// and a host)")
}

/// The name of a header.
pub(super) fn header_name() -> Rule {
    matches("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "not a header's name (letters, digits and `-`)")
}

/// The name of a rule or a worker.
pub(super) fn short_name(of: &str) -> Rule {
    matches("^[A-Za-z0-9._-]{1,63}$", &format!("not a {of}'s name (at most 63 letters, digits, `-`, `_` and `.`)"))
}

/// The bounds of a signal go together with it.
pub(super) mod bound {
    use super::{Rule, exactly_one as one_of, rule};

    /// Exactly one bound.
    pub(in super::super) fn exactly_one() -> Rule {
        one_of(&["max", "below", "atLeast"])
    }

    /// Usage is a share.
    pub(in super::super) fn share() -> Rule {
        let at_most_1 = |field: &str| format!("(!has(self.{field}) || double(self.{field}) <= 1.0)");
        let limits = ["max", "below", "atLeast"].map(at_most_1).join(" && ");
        rule(
            format!("self.signal != 'KvCacheUsage' || {limits}"),
            "KvCacheUsage is never above 1 (write a share such as \"0.9\")",
        )
    }

    /// Something can be below it.
    pub(in super::super) fn can_be_below() -> Rule {
        rule("!has(self.below) || double(self.below) > 0.0", "nothing is below 0 (write max: \"0\")")
    }

    /// Aggregates other than the newest value need a window.
    pub(in super::super) fn aggregate_needs_window() -> Rule {
        rule(
            "has(self.over) || self.aggregate == 'Last' || self.signal == 'PredictedTTFT'",
            "the aggregate needs a window (add one, such as over: 30s)",
        )
    }

    /// The predicted time is of the request at hand.
    pub(in super::super) fn prediction_has_no_window() -> Rule {
        rule(
            "self.signal != 'PredictedTTFT' || !has(self.over) && self.aggregate == 'Last'",
            "PredictedTTFT has no window (it is of the request at hand; remove `over` and `aggregate`)",
        )
    }
}
