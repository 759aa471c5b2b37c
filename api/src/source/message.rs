//! Parsers' messages in a user's words.

use crate::FieldPath;
use crate::path::Step;

/// What is wrong and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) path: FieldPath,
    pub(super) message: String,
    pub(super) remedy: String,
}

/// Takes ` at line 3 column 7` out of a message: the problem says where it is, counted from the start of the file.
pub(super) fn without_locations(message: &str) -> String {
    let mut result = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find(" at line ") {
        let (before, tail) = rest.split_at(at);
        result.push_str(before);
        let after = tail.trim_start_matches(" at line ").trim_start_matches(|c: char| c.is_ascii_digit());
        rest = match after.strip_prefix(" column ") {
            Some(after) => after.trim_start_matches(|c: char| c.is_ascii_digit()),
            None => after,
        };
    }
    result.push_str(rest);
    result
}

/// Turns serde's message about the value at `path` into one for users.
pub(super) fn translate(path: FieldPath, raw: &str) -> Message {
    // The YAML parser puts its own idea of the path in front.
    let mut raw = raw;
    let mut around = Some(path.clone());
    while let Some(place) = around {
        let prefix = format!("{}: ", unquoted(&place));
        if prefix.len() > 2
            && let Some(stripped) = raw.strip_prefix(&prefix)
        {
            raw = stripped;
            break;
        }
        around = place.parent();
    }
    if let Some(field) = raw.strip_prefix("missing field `").and_then(|r| r.strip_suffix('`')) {
        return Message { path: path.key(field), message: "missing".into(), remedy: "the field is required".into() };
    }
    if let Some((value, expected)) =
        raw.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected "))
    {
        let expected = expected.trim_start_matches("one of ").replace('`', "");
        return Message {
            path,
            message: format!("unknown value `{value}`"),
            remedy: format!(
                "write {}",
                expected.replacen(", ", " or ", usize::from(expected.matches(", ").count() == 1))
            ),
        };
    }
    if let Some((got, expected)) = raw.rsplit_once(", expected ")
        && let Some(got) = got.strip_prefix("invalid type: ").or(got.strip_prefix("invalid value: "))
    {
        return Message {
            path,
            message: format!("{} where {} belongs", in_words(got), expected_in_words(expected)),
            remedy: String::new(),
        };
    }
    let (message, remedy) = raw.split_once("; ").unwrap_or((raw, ""));
    Message { path, message: message.to_string(), remedy: remedy.to_string() }
}

/// A path as the YAML parser writes it: keys as they are.
fn unquoted(path: &FieldPath) -> String {
    let steps = path.steps().iter().map(|step| match step {
        Step::Index(index) => format!("[{index}]"),
        Step::Key(key) => format!(".{key}"),
    });
    let text: String = steps.collect();
    text.strip_prefix('.').map(String::from).unwrap_or(text)
}

/// What serde says it got, in words.
fn in_words(got: &str) -> String {
    let got = got
        .replace("unit value", "nothing")
        .replace("integer ", "the number ")
        .replace("floating point ", "the number ")
        .replace("string ", "the text ")
        .replace("boolean ", "the value ");
    match got.as_str() {
        "map" => "a mapping".into(),
        "sequence" => "a list".into(),
        "null" => "nothing".into(),
        _ => got,
    }
}

/// What serde says it expected, in words.
fn expected_in_words(expected: &str) -> String {
    match expected {
        "u8" => "a whole number from 0 to 255".into(),
        "u16" => "a whole number from 0 to 65535".into(),
        "u32" => "a whole number from 0 to 4294967295".into(),
        "u64" | "usize" => "a whole number of 0 or more".into(),
        "i32" | "i64" => "a whole number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        _ if expected.starts_with("struct ") => "a mapping".into(),
        _ if expected.starts_with("enum ") || expected == "variant identifier" => "a word".into(),
        _ => expected.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_out() {
        let raw = "did not find expected key at line 3 column 1, while parsing a block mapping at line 2 column 5";
        assert_eq!(without_locations(raw), "did not find expected key, while parsing a block mapping");
        assert_eq!(without_locations("nothing to do"), "nothing to do");
    }

    #[test]
    fn messages_lose_the_parsers_own_path() {
        let path = FieldPath::spec("workers").key("port");
        let message = translate(path.clone(), "spec.workers.port: invalid value: integer `70000`, expected u16");
        assert_eq!(message.message, "the number `70000` where a whole number from 0 to 65535 belongs");
        let message = translate(path.clone(), "unknown variant `a`, expected `b` or `c`");
        assert_eq!((message.message.as_str(), message.remedy.as_str()), ("unknown value `a`", "write b or c"));
        let message = translate(path.clone(), "unknown variant `a`, expected one of `b`, `c`, `d`");
        assert_eq!(message.remedy, "write b, c, d");
        assert_eq!(translate(FieldPath::root(), "missing field `spec`").path.to_string(), "spec");
    }
}
