//! A column of node ids.

use arrow::array::{Array, LargeStringArray};
use arrow::buffer::ScalarBuffer;

/// Node ids of one chunk.
#[derive(Clone, Debug)]
pub enum Ids {
    /// Integers.
    Int(ScalarBuffer<i64>),
    /// Strings.
    Text(LargeStringArray),
}

impl Ids {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Self::Int(ids) => ids.len(),
            Self::Text(ids) => ids.len(),
        }
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns id `i` as text for messages.
    pub fn show(&self, i: usize) -> String {
        match self {
            Self::Int(ids) => ids[i].to_string(),
            Self::Text(ids) => format!("{:?}", ids.value(i)),
        }
    }
}
