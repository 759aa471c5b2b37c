//! Durations, sizes and decimals as users write them: text with a unit, so that a bare number can never be taken for
//! the wrong one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// A length of time: `250ms`, `10s`, `1m30s`, `2h`. At most 10 years; resolution 1 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(Duration);

/// An amount of memory: `64Mi`, `8M`, `65536`. Binary units Ki, Mi, Gi, Ti; decimal units k, M, G, T; bytes without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// A number in quotes, such as `"0.7"`: Kubernetes resources carry no floating-point numbers. Never negative,
/// always finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Decimal(f64);

/// Text that is no duration, size or decimal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a duration.
    #[error("`{0}` is not a duration; write a number with a unit, such as 250ms, 10s, 1m30s or 2h")]
    Period(String),
    /// Longer than 10 years.
    #[error("`{0}` is longer than 10 years")]
    PeriodTooLong(String),
    /// Not a size.
    #[error("`{0}` is not a size; write a whole number with a unit, such as 256Ki, 64Mi or 1Gi")]
    Size(String),
    /// More bytes than 64 bits can count.
    #[error("`{0}` is too large a size")]
    SizeTooLarge(String),
    /// Not a decimal.
    #[error("`{0}` is not a decimal number; write digits, such as \"2\" or \"0.75\"")]
    Decimal(String),
}

/// Characters that any of the three may have.
const MAX_TEXT: usize = 32;
const MAX_PERIOD_MS: u128 = 10 * 366 * 24 * 3_600_000;
const PERIOD_PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$";
const SIZE_PATTERN: &str = r"^[0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?$";
const DECIMAL_PATTERN: &str = r"^[0-9]+(\.[0-9]+)?$";

const SIZE_UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

impl Period {
    /// A period of whole milliseconds.
    pub const fn from_millis(ms: u64) -> Period {
        Period(Duration::from_millis(ms))
    }

    /// A period of whole seconds.
    pub const fn from_secs(seconds: u64) -> Period {
        Period(Duration::from_secs(seconds))
    }

    /// The period as the standard library's type.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The period in whole milliseconds.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl From<Duration> for Period {
    fn from(duration: Duration) -> Period {
        Period(duration)
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Period, UnitError> {
        let bad = || UnitError::Period(text.to_string());
        let mut rest = text;
        let mut total: u128 = 0;
        if rest.is_empty() || rest.len() > MAX_TEXT {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
            let (number, tail) = rest.split_at(digits);
            let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            let unit_ms: u128 = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(bad()),
            };
            total = total.saturating_add(scaled(number, unit_ms).ok_or_else(bad)?);
            rest = tail;
        }
        if total > MAX_PERIOD_MS {
            return Err(UnitError::PeriodTooLong(text.to_string()));
        }
        Ok(Period::from_millis(total as u64))
    }
}

/// `number` (digits, perhaps with a fraction) times `unit`, rounded down to whole milliseconds. Exact, so that `0.3s`
/// is 300 ms whatever floating point makes of it.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 15 || fraction.len() > 9 || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let mut value = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    if !fraction.is_empty() {
        let scale = 10u128.pow(fraction.len() as u32);
        value += fraction.parse::<u128>().ok()? * unit / scale;
    }
    Some(value)
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms == 0 {
            return f.write_str("0s");
        }
        for (size, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
            let above = match unit {
                "h" => ms,
                "m" => ms % 3_600_000,
                "s" => ms % 60_000,
                _ => ms % 1_000,
            };
            if above / size > 0 {
                write!(f, "{}{unit}", above / size)?;
            }
        }
        Ok(())
    }
}

impl Size {
    /// A size in bytes.
    pub const fn from_bytes(bytes: u64) -> Size {
        Size(bytes)
    }

    /// A size in units of 1,048,576 bytes.
    pub const fn from_mebibytes(mebibytes: u64) -> Size {
        Size(mebibytes << 20)
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Size, UnitError> {
        let (digits, unit) =
            SIZE_UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit))).unwrap_or((text, 1));
        if digits.is_empty() || text.len() > MAX_TEXT || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(UnitError::Size(text.to_string()));
        }
        let number: Option<u64> = digits.parse().ok();
        number.and_then(|n| n.checked_mul(unit)).map(Size).ok_or_else(|| UnitError::SizeTooLarge(text.to_string()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = SIZE_UNITS.iter().take(4);
        match binary.into_iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Decimal {
    /// A decimal of a number; None when it is negative or not finite.
    pub fn new(value: f64) -> Option<Decimal> {
        (value.is_finite() && value >= 0.0).then_some(Decimal(value))
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Decimal {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Decimal, UnitError> {
        let plain = text.len() <= MAX_TEXT
            && text.starts_with(|c: char| c.is_ascii_digit())
            && text.ends_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        plain
            .then(|| text.parse().ok().and_then(Decimal::new))
            .flatten()
            .ok_or_else(|| UnitError::Decimal(text.to_string()))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Reads text only, and says what a bare number should have been.
struct TextOf {
    expected: &'static str,
}

impl Visitor<'_> for TextOf {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_string())
    }
}

macro_rules! text_type {
    ($type:ty, $name:literal, $expected:literal, $pattern:expr, $rules:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextOf { expected: $expected })?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let mut schema = json_schema!({ "type": "string", "maxLength": MAX_TEXT, "pattern": $pattern });
                let rules: &[Value] = &$rules;
                if !rules.is_empty() {
                    schema.insert("x-kubernetes-validations".to_string(), rules.into());
                }
                schema
            }
        }
    };
}

text_type!(
    Period,
    "Period",
    "a duration such as 250ms or 10s",
    PERIOD_PATTERN,
    [json!({
        "rule": format!("duration(self) <= duration('{}')", Period::from_millis(MAX_PERIOD_MS as u64)),
        "message": "longer than 10 years",
    })]
);
text_type!(Size, "Size", "a size in quotes such as \"64Mi\"", SIZE_PATTERN, []);
text_type!(Decimal, "Decimal", "a number in quotes such as \"0.75\"", DECIMAL_PATTERN, []);
