//! `reverse_edges`: the types of reverse edges.

use crate::dataset::{FORWARD_AND_REVERSE, TypeInfo};
use crate::error::{Error, Result};

/// Maximum number of types.
const LIMIT: u64 = u16::MAX as u64;

/// Appends the types of the reverse edges to `types`, in the same order. Returns all types, and the offset from the type of an edge to
/// that of its reverse.
pub(in crate::prepare) fn with_reverse(types: Option<TypeInfo>) -> Result<(TypeInfo, u16)> {
    let Some(types) = types else {
        return Ok((TypeInfo { count: 2, names: FORWARD_AND_REVERSE.map(String::from).into() }, 1));
    };
    let found = 2 * u64::from(types.count);
    if found > LIMIT {
        return Err(Error::TooLarge {
            what: "number of edge types, reverse ones included".into(),
            found,
            limit: LIMIT,
        });
    }
    let reverse: Vec<String> = types.names.iter().map(|name| format!("rev_{name}")).collect();
    if let Some(name) = reverse.iter().find(|name| types.names.contains(name)) {
        let reason = format!("the type of reverse edges {name:?} is already an edge type; rename that type");
        return Err(Error::Setting { key: "graph.reverse_edges", reason });
    }
    let offset = types.count as u16;
    Ok((TypeInfo { count: 2 * types.count, names: types.names.into_iter().chain(reverse).collect() }, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reverse_types_follow_forward_types() {
        let types = |count, names: &[&str]| TypeInfo { count, names: names.iter().map(ToString::to_string).collect() };
        assert_eq!(with_reverse(None).unwrap(), (types(2, &["forward", "reverse"]), 1));
        assert_eq!(with_reverse(Some(types(3, &[]))).unwrap(), (types(6, &[]), 3));
        assert_eq!(with_reverse(Some(types(2, &["a", "b"]))).unwrap().0.names, ["a", "b", "rev_a", "rev_b"]);
        assert!(with_reverse(Some(types(40_000, &[]))).is_err());
        assert!(with_reverse(Some(types(2, &["a", "rev_a"]))).unwrap_err().to_string().contains("rev_a"));
    }
}
