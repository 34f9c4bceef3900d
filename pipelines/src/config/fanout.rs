//! Numbers of neighbors that a hop takes: one number, or one for each edge type.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Numbers of neighbors by the name or number of the edge type.
pub type FanoutsByType = BTreeMap<String, i64>;

/// The number of neighbors that a hop takes per node; -1 takes all.
///
/// ```
/// use gnnflow_pipelines::config::Fanout;
///
/// let each = Fanout::Each(10);
/// let by_type = Fanout::ByType([("cites".into(), 10), ("writes".into(), 5)].into());
/// assert_eq!((each.most(), by_type.most()), (10, 15));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fanout {
    /// A number of any type.
    Each(i64),
    /// A number for each type; 0 for types without an entry.
    ByType(FanoutsByType),
}

impl Fanout {
    /// Maximum number of neighbors per node; -1 without a bound.
    pub fn most(&self) -> i64 {
        match self {
            Self::Each(fanout) => *fanout,
            Self::ByType(_) if self.takes_all() => -1,
            Self::ByType(fanouts) => fanouts.values().sum(),
        }
    }

    /// Whether no neighbor is taken.
    pub(crate) fn is_nothing(&self) -> bool {
        self.most() == 0
    }

    /// Whether all neighbors, or all of one type, are taken.
    pub(crate) fn takes_all(&self) -> bool {
        match self {
            Self::Each(fanout) => *fanout < 0,
            Self::ByType(fanouts) => fanouts.values().any(|&fanout| fanout < 0),
        }
    }
}

impl JsonSchema for Fanout {
    fn schema_name() -> Cow<'static, str> {
        "Fanout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": -1, "maximum": 1_000_000 },
            { "type": "object", "additionalProperties": { "type": "integer", "minimum": -1, "maximum": 1_000_000 } },
        ] })
    }
}
