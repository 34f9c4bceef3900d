//! `train.checkpoint_every`: epochs, steps or time between checkpoints.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{borrow::Cow, fmt, str::FromStr};

use super::values::{Loose, Span};

/// How often a run writes a checkpoint.
///
/// ```
/// use gnnflow_pipelines::config::{CheckpointEvery, Span};
///
/// assert_eq!("10".parse(), Ok(CheckpointEvery::Epochs(10)));
/// assert_eq!("500 steps".parse(), Ok(CheckpointEvery::Steps(500)));
/// assert_eq!("10min".parse(), Ok(CheckpointEvery::Time(Span::seconds(600))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// After this number of epochs; 0: after the last one only.
    Epochs(usize),
    /// After this number of steps of an epoch, in schedules that can pause there, and at its end.
    Steps(u32),
    /// When this time has passed: after a step, in schedules that can pause there, otherwise after an epoch.
    Time(Span),
}

/// Maximum number of epochs.
const MOST_EPOCHS: usize = 1_000_000;

impl CheckpointEvery {
    /// Returns the epochs between checkpoints, or 0.
    pub fn epochs(self) -> usize {
        match self {
            Self::Epochs(epochs) => epochs,
            Self::Steps(_) | Self::Time(_) => 0,
        }
    }
}

impl FromStr for CheckpointEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || {
            format!(
                "expected a number of epochs, or a text such as \"500 steps\" or \"10min\", found \"{text}\"; epochs are at most {MOST_EPOCHS}"
            )
        };
        if let Ok(epochs) = text.parse::<usize>() {
            return if epochs <= MOST_EPOCHS { Ok(Self::Epochs(epochs)) } else { Err(wrong()) };
        }
        if let Some(steps) = text.strip_suffix("steps").or_else(|| text.strip_suffix("step")) {
            let steps = steps.trim().parse().ok().filter(|&steps: &u32| steps > 0);
            return steps.map(Self::Steps).ok_or_else(wrong);
        }
        // A number without a unit is no time here.
        let has_unit = text.contains(char::is_alphabetic);
        text.parse().ok().filter(|_| has_unit).map(Self::Time).ok_or_else(wrong)
    }
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epochs(epochs) => write!(f, "{epochs}"),
            Self::Steps(1) => f.write_str("1 step"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::Time(span) => write!(f, "{span}"),
        }
    }
}

impl Serialize for CheckpointEvery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Epochs(epochs) => serializer.serialize_u64(*epochs as u64),
            Self::Steps(_) | Self::Time(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for CheckpointEvery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Loose::deserialize(deserializer)?.text().parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for CheckpointEvery {
    fn schema_name() -> Cow<'static, str> {
        "CheckpointEvery".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"], "format": "checkpoints", "minimum": 0, "maximum": MOST_EPOCHS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_parse_their_display() {
        for value in [
            CheckpointEvery::Epochs(0),
            CheckpointEvery::Epochs(7),
            CheckpointEvery::Steps(1),
            CheckpointEvery::Steps(500),
            CheckpointEvery::Time(Span::seconds(90)),
        ] {
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for text in ["0 steps", "-1", "many", "1000001", "1.5", "5 epochs", "", "steps"] {
            let error = text.parse::<CheckpointEvery>().unwrap_err();
            assert!(error.contains("500 steps") && error.contains(text), "{error}");
        }
    }
}
