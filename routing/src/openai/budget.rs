//! How much of a body becomes values in memory. A value of a few bytes of JSON takes some hundred as a value of the
//! template engine, and a wasm VM that runs out of memory takes every request of its thread along.

use std::cell::Cell;
use std::fmt;

use minijinja::Value;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// JSON values of one body that are kept: some 25 MB at most. A conversation of a thousand messages with a hundred tools
/// has about 20,000.
const VALUES: u32 = 100_000;

/// What is left of the values that may be kept. Past its end, everything is read and nothing kept.
#[derive(Debug)]
pub(super) struct Budget {
    /// None once more was asked for than there was.
    left: Cell<Option<u32>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(Some(VALUES)) }
    }
}

impl Budget {
    /// Takes one value; false when there is none left.
    pub(super) fn take(&self) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(1)));
        !self.exceeded()
    }

    /// Something was left out.
    pub(super) fn exceeded(&self) -> bool {
        self.left.get().is_none()
    }
}

/// Any JSON value, as far as the budget goes; undefined past it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnyValue<'b>(pub(super) &'b Budget);

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0.take() {
            deserializer.deserialize_any(self)
        } else {
            deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Value::UNDEFINED)
        }
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            if !self.0.exceeded() {
                list.push(value);
            }
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            let value = map.next_value_seed(self)?;
            if !self.0.exceeded() {
                pairs.push((key, value));
            }
        }
        Ok(Value::from_pairs(pairs))
    }
}

/// JSON text as a value; `None` when it is not JSON, or more than may be kept.
pub(crate) fn value_of(json: &str) -> Option<Value> {
    let budget = Budget::default();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value = AnyValue(&budget).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    (!budget.exceeded()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_template_engine() {
        for json in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "9007199254740993",
            "0.5",
            "\"a\\u00e9\"",
            "[]",
            "[1, [2]]",
            "{\"b\": 1, \"a\": {\"c\": []}, \"b\": 2}",
        ] {
            let theirs: Value = serde_json::from_str(json).unwrap();
            let ours = value_of(json).unwrap();
            assert_eq!(ours, theirs, "{json}");
            assert_eq!((ours.kind(), ours.to_string()), (theirs.kind(), theirs.to_string()), "{json}");
        }
        assert!(value_of("{\"a\": }").is_none() && value_of("1 2").is_none());
    }

    #[test]
    fn past_the_budget_nothing_is_kept_and_all_is_read() {
        let list = |length: u32| format!("[{}0]", "0,".repeat(length as usize));
        assert_eq!(value_of(&list(VALUES - 2)).unwrap().len(), Some(VALUES as usize - 1));
        assert!(value_of(&list(VALUES)).is_none());
        let budget = Budget::default();
        let json = format!("{} true", list(3 * VALUES));
        let mut deserializer = serde_json::Deserializer::from_str(&json);
        let kept = AnyValue(&budget).deserialize(&mut deserializer).unwrap();
        assert!(budget.exceeded() && kept.len() <= Some(VALUES as usize));
        assert!(AnyValue(&budget).deserialize(&mut deserializer).unwrap().is_undefined());
        assert!(deserializer.end().is_ok());
    }
}
