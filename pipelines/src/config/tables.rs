//! The Parquet tables of nodes or edges: one table, or one for each type.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::values::OneOrMany;

/// Paths and URLs of Parquet files.
///
/// ```
/// use gnnflow_pipelines::config::{OneOrMany, Tables};
///
/// let one = Tables::One(OneOrMany::one("nodes.parquet".into()));
/// let by_type = Tables::ByType([("user".into(), OneOrMany::one("users.parquet".into()))].into());
/// assert_eq!((one.types().len(), by_type.types()), (0, vec!["user".to_owned()]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Tables {
    /// One table.
    One(OneOrMany<PathBuf>),
    /// A table for each type.
    ByType(BTreeMap<String, OneOrMany<PathBuf>>),
}

impl Tables {
    /// Returns all paths; for tables by type, in the order of the types' names.
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::One(paths) => paths.0.clone(),
            Self::ByType(tables) => tables.values().flat_map(|paths| paths.0.clone()).collect(),
        }
    }

    /// Returns the type of each path; nothing for one table.
    pub fn types(&self) -> Vec<String> {
        match self {
            Self::One(_) => Vec::new(),
            Self::ByType(tables) => tables.iter().flat_map(|(name, paths)| vec![name.clone(); paths.0.len()]).collect(),
        }
    }

    /// Whether each type has its table.
    pub(crate) fn are_by_type(&self) -> bool {
        matches!(self, Self::ByType(_))
    }

    pub(crate) fn paths_mut(&mut self) -> Box<dyn Iterator<Item = &mut PathBuf> + '_> {
        match self {
            Self::One(paths) => Box::new(paths.0.iter_mut()),
            Self::ByType(tables) => Box::new(tables.values_mut().flat_map(|paths| &mut paths.0)),
        }
    }
}

impl JsonSchema for Tables {
    fn schema_name() -> Cow<'static, str> {
        "Tables".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (one, many) = (
            serde_json::json!({ "type": "string" }),
            serde_json::json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
        );
        json_schema!({ "anyOf": [
            one,
            many,
            { "type": "object", "additionalProperties": { "anyOf": [one, many] }, "minProperties": 1 },
        ] })
    }
}
