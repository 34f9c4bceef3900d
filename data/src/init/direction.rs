//! Whether edges have a direction, as the first rows show it.

use std::collections::HashSet;

use arrow::array::LargeStringArray;

/// How often the reverse of a row is a row, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reversed {
    /// Never: a row may be an edge in one direction or in both.
    #[default]
    Never,
    /// For some rows: they are edges in one direction.
    Sometimes,
    /// For all rows: an edge in both directions is two rows.
    Always,
}

impl Reversed {
    /// `whole`: the rows are all rows of the table.
    pub(super) fn of(src: &LargeStringArray, dst: &LargeStringArray, whole: bool) -> Self {
        let ends = || src.iter().flatten().zip(dst.iter().flatten());
        let pairs: HashSet<(&str, &str)> = ends().filter(|(src, dst)| src != dst).collect();
        let reversed = pairs.iter().filter(|&&(src, dst)| pairs.contains(&(dst, src))).count();
        if reversed == 0 {
            return Self::Never;
        }
        let sources = (!whole).then(|| complete(ends().map(|(src, _)| src))).flatten();
        let targets = (!whole).then(|| complete(ends().map(|(_, dst)| dst))).flatten();
        // Pairs whose reverse is among these rows if all edges are in both directions.
        let expected = pairs.iter().filter(|(src, dst)| match (&sources, &targets) {
            (Some(sources), _) => sources.contains(dst),
            (_, Some(targets)) => targets.contains(src),
            _ => true,
        });
        let missing = expected.filter(|&&(src, dst)| !pairs.contains(&(dst, src))).count();
        // If the two directions follow each other, the last row may lack its reverse.
        let allowed = usize::from(!whole && sources.is_none() && targets.is_none());
        if missing <= allowed { Self::Always } else { Self::Sometimes }
    }
}

/// Returns the nodes whose rows are all here, if rows of a node follow each other: all nodes but the last.
fn complete<'a>(nodes: impl Iterator<Item = &'a str>) -> Option<HashSet<&'a str>> {
    let (mut seen, mut last) = (HashSet::new(), None);
    for node in nodes {
        if last != Some(node) && !seen.insert(node) {
            return None;
        }
        last = Some(node);
    }
    last.map(|last| seen.remove(last));
    Some(seen)
}
