//! A first look at a document, before anything is made of it: bounded, without duplicate keys, without tags.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};

use super::MAX_FILE_VALUES;

/// Walks a whole document, aliases followed, and counts its values down. Yields whether there was anything in it.
pub(super) struct Probe<'b> {
    /// Values that the file may still have.
    pub(super) budget: &'b mut usize,
}

impl Probe<'_> {
    fn spend<E: de::Error>(&mut self) -> Result<(), E> {
        match self.budget.checked_sub(1) {
            Some(rest) => {
                *self.budget = rest;
                Ok(())
            }
            None => Err(E::custom(format!("more than {MAX_FILE_VALUES} values, those that aliases repeat counted"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<bool, D::Error> {
        self.spend()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<bool, A::Error> {
        let budget = self.budget;
        while elements.next_element_seed(Probe { budget })?.is_some() {}
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<bool, A::Error> {
        let budget = self.budget;
        let mut keys = HashSet::new();
        while entries.next_key_seed(UniqueKey(&mut keys))?.is_some() {
            entries.next_value_seed(Probe { budget })?;
        }
        Ok(true)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<bool, A::Error> {
        Err(de::Error::custom("YAML tags (!name) have no meaning here"))
    }
}

/// Reads a key, and refuses it when the mapping had it before.
struct UniqueKey<'k>(&'k mut HashSet<String>);

impl<'de> DeserializeSeed<'de> for UniqueKey<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for UniqueKey<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<(), E> {
        if self.0.insert(key.to_string()) {
            return Ok(());
        }
        Err(E::custom(format!("the key `{key}` is there twice")))
    }
}
