//! A port by number or by name.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A port: its number, or the name that a Pod's container gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// 1 to 65535 in checked resources.
    Number(u16),
    /// The `name` of one of the Pod's container ports, such as `http`.
    Name(String),
}

impl Port {
    /// The number, when it is stated as one.
    pub fn number(&self) -> Option<u16> {
        match self {
            Port::Number(number) => Some(*number),
            Port::Name(_) => None,
        }
    }

    /// True for names that Kubernetes takes for ports: at most 15 lower-case letters, digits and single dashes between
    /// them, with a letter among them.
    pub fn is_name(text: &str) -> bool {
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=15).contains(&text.len())
            && text.bytes().all(is_plain)
            && text.bytes().any(|b| b.is_ascii_lowercase())
            && text.split('-').all(|part| !part.is_empty())
    }
}

impl From<u16> for Port {
    fn from(number: u16) -> Port {
        Port::Number(number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Number(number) => number.fmt(f),
            Port::Name(name) => name.fmt(f),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Port::Number(number) => number.serialize(serializer),
            Port::Name(name) => name.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Port, D::Error> {
        deserializer.deserialize_any(PortVisitor)
    }
}

struct PortVisitor;

impl Visitor<'_> for PortVisitor {
    type Value = Port;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port from 1 to 65535 or the name of a container's port")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Port, E> {
        let invalid = |_| E::invalid_value(de::Unexpected::Unsigned(number), &self);
        u16::try_from(number).map(Port::Number).map_err(invalid)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Port, E> {
        let invalid = |_| E::invalid_value(de::Unexpected::Signed(number), &self);
        u16::try_from(number).map(Port::Number).map_err(invalid)
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Port, E> {
        Ok(Port::Name(name.to_string()))
    }
}

impl JsonSchema for Port {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed("Port")
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        for name in ["http", "h2c", "a", "engine-http-1", "123456789012-ab"] {
            assert!(Port::is_name(name), "{name}");
        }
        for name in ["", "8000", "HTTP", "-a", "a-", "a--b", "a_b", "abcdefghijklmnop"] {
            assert!(!Port::is_name(name), "{name}");
        }
    }

    #[test]
    fn both_forms_are_read_and_written() {
        let ports: Vec<Port> = serde_yaml_ng::from_str("[8000, http]").unwrap();
        assert_eq!(ports, [Port::Number(8000), Port::Name("http".into())]);
        assert_eq!(serde_json::to_string(&ports).unwrap(), r#"[8000,"http"]"#);
        for wrong in ["70000", "-1", "1.5", "true"] {
            let error = serde_yaml_ng::from_str::<Port>(wrong).unwrap_err().to_string();
            assert!(error.contains("a port from 1 to 65535 or the name of a container's port"), "{error}");
        }
    }
}
