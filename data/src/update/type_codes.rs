//! The dataset's numbers of the types of nodes and edges.

use crate::dataset::TypeInfo;
use crate::dump::Types;
use crate::error::{Error, Location, Result};

/// Converts types to numbers.
pub(super) struct TypeCodes<'a> {
    info: Option<&'a TypeInfo>,
    /// Number of types that rows may have: all except that of added self-loops.
    count: u32,
    /// Largest type of any row, plus 1.
    pub(super) largest: u32,
}

impl<'a> TypeCodes<'a> {
    pub(super) fn new(info: Option<&'a TypeInfo>, loop_type: bool) -> Self {
        let count = info.map_or(0, |info| info.count.saturating_sub(u32::from(loop_type)));
        Self { info, count, largest: 0 }
    }

    /// Returns the dataset's numbers of types. New numbers are allowed if types have no names. New names are refused,
    /// because they would change the numbers of other types.
    pub(super) fn of(&mut self, found: &Types, place: impl Fn(usize) -> Box<Location>) -> Result<Vec<u16>> {
        let names = self.info.map_or(&[][..], |info| &info.names[..]);
        let names = &names[..names.len().min(self.count as usize)];
        let refuse = |row: usize, value: String| {
            let wanted = match names {
                [] => "an integer, like the types of the dataset".into(),
                _ => "a type of the dataset; prepare the changed dump to add types".into(),
            };
            Error::Value { place: place(row), value, wanted }
        };
        let code = |row: usize, value: &str| {
            let found = names.iter().position(|name| name == value);
            found.map(|code| code as u16).ok_or_else(|| refuse(row, format!("{value:?}")))
        };
        let codes: Vec<u16> = match found {
            Types::Name(values) => {
                values.iter().enumerate().map(|(row, value)| code(row, value.unwrap_or(""))).collect::<Result<_>>()?
            }
            Types::Code(values) if self.info.is_some_and(|info| info.names.is_empty()) => values.clone(),
            Types::Code(values) => {
                values.iter().enumerate().map(|(row, value)| code(row, &value.to_string())).collect::<Result<_>>()?
            }
        };
        self.largest = codes.iter().fold(self.largest, |largest, &code| largest.max(u32::from(code) + 1));
        Ok(codes)
    }
}
