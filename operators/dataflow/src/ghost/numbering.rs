//! Row numbers of nodes.

use std::ops::Range;

use gnnflow_kernels::node_index::NodeIndex;

/// Gives a row to all or some nodes of a range, in ascending order of their ids.
#[derive(Clone, Debug)]
pub enum Numbering {
    /// All nodes of this range.
    All(Range<u32>),
    /// These nodes.
    Some(NodeIndex),
}

impl Numbering {
    /// Numbers the nodes of `range` for which `wanted` returns true; all without it.
    ///
    /// ```
    /// use gnnflow_dataflow::ghost::Numbering;
    ///
    /// let odd = |node: u32| node % 2 == 1;
    /// let rows = Numbering::new(10..20, Some(&odd));
    /// assert_eq!((rows.len(), rows.find(13), rows.find(14), rows.between(&(12..18))), (5, Some(1), None, 1..4));
    /// ```
    pub fn new(range: Range<u32>, wanted: Option<&dyn Fn(u32) -> bool>) -> Self {
        match wanted {
            None => Self::All(range),
            Some(wanted) => Self::Some(NodeIndex::new(range.filter(|&node| wanted(node)).collect())),
        }
    }

    /// Returns the number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::All(range) => range.len(),
            Self::Some(index) => index.nodes().len(),
        }
    }

    /// Returns whether there are no rows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the row of `node`, if it has one.
    #[inline]
    pub fn find(&self, node: u32) -> Option<usize> {
        match self {
            Self::All(range) => range.contains(&node).then(|| (node - range.start) as usize),
            Self::Some(index) => index.find(node),
        }
    }

    /// Returns the rows of the nodes of `range`.
    #[inline]
    pub fn between(&self, range: &Range<u32>) -> Range<usize> {
        match self {
            Self::All(all) => {
                let at = |node: u32| (node.clamp(all.start, all.end) - all.start) as usize;
                at(range.start)..at(range.end)
            }
            Self::Some(index) => {
                let at = |node: u32| index.nodes().partition_point(|&known| known < node);
                at(range.start)..at(range.end)
            }
        }
    }

    /// Returns the node of row `row`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn node(&self, row: usize) -> u32 {
        match self {
            Self::All(range) => range.start + row as u32,
            Self::Some(index) => index.nodes()[row],
        }
    }
}
