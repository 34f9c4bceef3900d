//! Intervals of nodes: the unit of work in full-graph training.

use std::ops::Range;

/// Splits `nodes` nodes into `count` ranges whose lengths differ by one at most (Dorylus, section 4). Returns at most `nodes` ranges.
///
/// ```
/// use gnnflow_dataflow::ghost::intervals::intervals;
///
/// assert_eq!(intervals(7, 3), [0..3, 3..5, 5..7]);
/// assert!(intervals(0, 3).is_empty());
/// ```
///
/// # Panics
/// When `count` is 0.
pub fn intervals(nodes: usize, count: usize) -> Vec<Range<usize>> {
    assert!(count > 0, "at least one interval");
    let count = count.min(nodes);
    let start = |k: usize| k * (nodes / count) + k.min(nodes % count);
    (0..count).map(|k| start(k)..start(k + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_cover_all_nodes_and_differ_by_one_at_most() {
        for nodes in [1, 2, 9, 10, 1000] {
            for count in [1, 2, 3, 7, 2000] {
                let cut = intervals(nodes, count);
                assert_eq!(cut.len(), count.min(nodes));
                assert_eq!((cut[0].start, cut[cut.len() - 1].end), (0, nodes));
                assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start));
                let lengths: Vec<usize> = cut.iter().map(|range| range.len()).collect();
                assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            }
        }
    }
}
