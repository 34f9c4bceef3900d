//! Types of values that TOML lacks: sizes, durations, one or many values, "auto".

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{borrow::Cow, convert::Infallible, fmt, str::FromStr, time::Duration};

/// A size in bytes: `"2GiB"`, `"500MB"`, or a number of bytes.
///
/// ```
/// use gnnflow_pipelines::config::Bytes;
///
/// assert_eq!("2GiB".parse(), Ok(Bytes(2 << 30)));
/// assert_eq!("1.5 kB".parse(), Ok(Bytes(1500)));
/// assert_eq!(Bytes(2 << 30).to_string(), "2GiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number_and_unit(text);
        let wrong = || format!("expected a size such as \"2GiB\" or \"500MB\", found \"{text}\"");
        let scale = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|&(_, scale)| scale);
        let scale = if unit.is_empty() { 1 } else { scale.ok_or_else(wrong)? };
        let bytes = number.parse::<f64>().map_err(|_| wrong())? * scale as f64;
        if !(0.0..=i64::MAX as f64).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Self(bytes as u64))
    }
}

impl Bytes {
    /// Rounds down to a multiple of the largest binary unit of which the size has at least ten.
    ///
    /// ```
    /// use gnnflow_pipelines::config::Bytes;
    ///
    /// assert_eq!(Bytes(36_616_884).rounded_down().to_string(), "34MiB");
    /// assert_eq!(Bytes(900).rounded_down().to_string(), "900B");
    /// ```
    pub fn rounded_down(self) -> Self {
        let shift = [40, 30, 20, 10].into_iter().find(|shift| self.0 >> shift >= 10).unwrap_or(0);
        Self(self.0 >> shift << shift)
    }
}

impl fmt::Display for Bytes {
    /// Prints a whole number of the largest unit that divides the size, without rounding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &(unit, scale) =
            UNITS.iter().find(|(_, scale)| self.0 != 0 && self.0.is_multiple_of(*scale)).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}

/// A duration: `"30s"`, `"500ms"`, `"5min"`, `"2h"`, or a number of seconds.
///
/// ```
/// use gnnflow_pipelines::config::Span;
///
/// assert_eq!("90s".parse(), Ok(Span::seconds(90)));
/// assert_eq!("1.5s".parse::<Span>().map(|span| span.0.as_millis()), Ok(1500));
/// assert_eq!(Span::seconds(60).to_string(), "1min");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const SPANS: [(&str, u64); 4] = [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];

impl Span {
    /// A duration of `seconds` seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number_and_unit(text);
        let wrong = || format!("expected a duration such as \"30s\", \"500ms\", \"5min\" or \"2h\", found \"{text}\"");
        let unit = match unit {
            "" => "s",
            "m" => "min",
            unit => unit,
        };
        let millis = SPANS.iter().find(|(name, _)| *name == unit).map(|&(_, millis)| millis).ok_or_else(wrong)?;
        let millis = number.parse::<f64>().map_err(|_| wrong())? * millis as f64;
        // The bound of a year keeps sums of deadlines far from overflow.
        if !(1.0..=365.0 * 24.0 * 3_600_000.0).contains(&millis) {
            return Err(format!("expected a duration between 1ms and a year, found \"{text}\""));
        }
        Ok(Self(Duration::from_millis(millis as u64)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis() as u64;
        let &(unit, scale) =
            SPANS.iter().find(|(_, scale)| millis != 0 && millis.is_multiple_of(*scale)).unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", millis / scale)
    }
}

/// Splits `"1.5 kB"` into `"1.5"` and `"kB"`.
fn number_and_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// One value or a list of values; TOML accepts `"a"` for `["a"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> OneOrMany<T> {
    /// A single value.
    pub fn one(value: T) -> Self {
        Self(vec![value])
    }
}

/// A string or a number in TOML.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Loose {
    Integer(u64),
    Float(f64),
    Text(String),
}

impl Loose {
    pub(super) fn text(self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// Serializes by `Display`, deserializes by `FromStr` from a string or a number.
macro_rules! by_text {
    ($type:ty, $name:literal, $schema:tt) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Loose::deserialize(deserializer)?.text().parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

by_text!(Bytes, "Bytes", { "type": ["string", "number"], "format": "size", "minimum": 0 });
by_text!(Span, "Span", { "type": ["string", "number"], "format": "duration", "exclusiveMinimum": 0 });

/// The name of an edge type, or its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName(pub String);

impl FromStr for TypeName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

by_text!(TypeName, "TypeName", { "type": ["string", "integer"], "minimum": 0 });

/// Declares a positive number or one word.
macro_rules! count_or_word {
    ($(#[$doc:meta])* $name:ident, $(#[$count_doc:meta])* Count <= $most:literal, $(#[$word_doc:meta])* $word_name:ident = $word:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$count_doc])*
            Count(usize),
            $(#[$word_doc])*
            $word_name,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Count(count) => write!(f, "{count}"),
                    Self::$word_name => f.write_str($word),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    Self::Count(count) => serializer.serialize_u64(*count as u64),
                    Self::$word_name => serializer.serialize_str($word),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match Loose::deserialize(deserializer)? {
                    Loose::Integer(count) if count > 0 => Ok(Self::Count(count as usize)),
                    Loose::Text(text) if text == $word => Ok(Self::$word_name),
                    _ => Err(D::Error::custom($expected)),
                }
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": $most }, { "type": "string", "const": $word }] })
            }
        }
    };
}

count_or_word! {
    /// A number of partitions, or `"auto"`.
    Parts,
    /// This number.
    Count <= 65536,
    /// The number that the plan chooses.
    Auto = "auto",
    "expected a number of partitions or \"auto\""
}

count_or_word! {
    /// The nodes among which an end of a held-out edge is ranked: a number of drawn nodes, or `"all"`.
    RankAmong,
    /// This many drawn nodes.
    Count <= 16777216,
    /// All nodes of the end's type.
    All = "all",
    "expected a number of nodes or \"all\""
}

impl<T: Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            One(T),
            Many(Vec<T>),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::One(one) => Self::one(one),
            Either::Many(many) => Self(many),
        })
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_parse_their_display() {
        for bytes in [0, 1, 999, 1000, 1024, 1500, 3 << 30, (1 << 40) + 1] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        for millis in [1, 999, 1000, 60_000, 61_000, 7_200_000] {
            let span = Span(Duration::from_millis(millis));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }

    #[test]
    fn malformed_sizes_and_spans_are_refused() {
        for text in ["", "GiB", "2 gigs", "-1GiB", "1e400", "nan", "1.2.3MB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for text in ["", "s", "0s", "-3s", "5 fortnights", "99999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
