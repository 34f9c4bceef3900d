//! The columns of features in the tables of a dataset.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::format::plural;

/// Maximum number of columns in a description.
const LISTED: usize = 20;

/// Feature columns of nodes or edges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureColumns {
    /// Values per row.
    pub values: usize,
    /// The columns, in the order of their values; empty if a dataset of an older version does not have their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<FeatureColumn>,
}

/// A column with features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureColumn {
    /// Its name in the tables.
    pub name: String,
    /// The type of the rows that have it, if there is a table for each type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_type: Option<String>,
    /// Values per row: the length of lists; 1 for numbers.
    pub values: usize,
}

impl FeatureColumns {
    /// Compares the columns of two datasets and their order. Names that are not known are not compared. Returns what differs, in words for `self`
    /// and for `other`; `what` is the word for a value.
    ///
    /// ```
    /// use gnnflow_data::dataset::{FeatureColumn, FeatureColumns};
    ///
    /// let column = |name: &str, values| FeatureColumn { name: name.into(), row_type: None, values };
    /// let of = |columns: &[FeatureColumn]| FeatureColumns { values: 3, columns: columns.to_vec() };
    /// let [age_first, text_first] = [[0, 1], [1, 0]].map(|order| of(&order.map(|at| [column("age", 1), column("text", 2)][at].clone())));
    /// assert_eq!(age_first.difference(&of(&[]), "feature"), None);
    /// let differs = age_first.difference(&text_first, "feature").unwrap();
    /// assert_eq!(differs, ["3 features: age, text (2)", "3 features: text (2), age"]);
    /// ```
    pub fn difference(&self, other: &Self, what: &str) -> Option<[String; 2]> {
        let known = !self.columns.is_empty() && !other.columns.is_empty();
        if self.values == other.values && (!known || self.columns == other.columns) {
            return None;
        }
        let names = |this: &Self| this.columns.iter().map(FeatureColumn::to_string).collect::<Vec<_>>();
        let counts_suffice = self.values != other.values && names(self) == names(other);
        Some([self, other].map(|this| if counts_suffice { plural(this.values, what) } else { this.describe(what) }))
    }

    /// Returns the number of values, which are called `what`, and the columns, if their names are known.
    pub fn describe(&self, what: &str) -> String {
        if self.columns.is_empty() {
            return plural(self.values, what);
        }
        let column = |column: &FeatureColumn| match column.values {
            1 => column.to_string(),
            values => format!("{column} ({values})"),
        };
        let columns: Vec<String> = self.columns.iter().take(LISTED).map(column).collect();
        let rest = if self.columns.len() > LISTED { ", …" } else { "" };
        format!("{}: {}{rest}", plural(self.values, what), columns.join(", "))
    }
}

impl fmt::Display for FeatureColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.row_type {
            Some(row_type) => write!(f, "{row_type}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
