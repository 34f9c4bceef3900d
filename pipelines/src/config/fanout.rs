//! How many neighbors a hop takes: one number, or one for each edge type.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Neighbours by the name or number of the edge type.
pub type FanoutsByType = BTreeMap<String, i64>;

/// Neighbours that a hop takes of each node; -1 is all of them.
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
    /// So many.
    Each(i64),
    /// So many of each type; none of types that are not named.
    ByType(FanoutsByType),
}

impl Fanout {
    /// Neighbours that a node gets at most; -1 when there is no bound.
    pub fn most(&self) -> i64 {
        match self {
            Self::Each(fanout) => *fanout,
            Self::ByType(_) if self.takes_all() => -1,
            Self::ByType(fanouts) => fanouts.values().sum(),
        }
    }

    /// Whether no neighbour is ever taken.
    pub fn is_nothing(&self) -> bool {
        self.most() == 0
    }

    /// Whether all neighbors, or all of some type, are taken.
    pub fn takes_all(&self) -> bool {
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
