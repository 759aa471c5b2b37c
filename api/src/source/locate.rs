//! Finds the line of a field.
//!
//! Parsers of the serde kind tell places only in errors. So this reads the document once more, walks to the field, and
//! fails there: the error's place is the field's.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::path::Step;

/// Fails at the value that the steps lead to; at its key, when it has one. Succeeds when there is no such value.
pub(super) struct Locate<'p>(pub(super) &'p [Step]);

impl<'de> DeserializeSeed<'de> for Locate<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Locate<'_> {
    fn arrived<E: de::Error>(&self) -> Result<(), E> {
        if self.0.is_empty() {
            return Err(E::custom("here"));
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Locate<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.arrived()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.arrived()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.arrived()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.arrived()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        self.arrived()
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.arrived()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.arrived()?;
        let wanted = match self.0.split_first() {
            Some((Step::Index(index), rest)) => Some((*index, rest)),
            _ => None,
        };
        let mut index = 0;
        loop {
            let more = match wanted {
                Some((place, rest)) if place == index => elements.next_element_seed(Locate(rest))?.is_some(),
                _ => elements.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.arrived()?;
        let (wanted, rest) = match self.0.split_first() {
            Some((Step::Key(key), rest)) => (Some(key.as_str()), rest),
            _ => (None, &[][..]),
        };
        let key = LocateKey { wanted, is_last: rest.is_empty() };
        while let Some(matches) = entries.next_key_seed(key)? {
            if matches {
                entries.next_value_seed(Locate(rest))?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Tells whether a key is the wanted one; fails at it when it is the last step.
#[derive(Clone, Copy)]
struct LocateKey<'p> {
    wanted: Option<&'p str>,
    is_last: bool,
}

impl<'de> DeserializeSeed<'de> for LocateKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for LocateKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<bool, E> {
        let matches = self.wanted == Some(key);
        if matches && self.is_last {
            return Err(E::custom("here"));
        }
        Ok(matches)
    }
}
