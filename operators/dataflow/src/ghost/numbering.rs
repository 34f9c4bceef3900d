//! Which of a worker's nodes have a row, and where.

use std::ops::Range;

use gnnflow_kernels::node_index::NodeIndex;

/// Rows of some of the nodes of a range, in the order of their ids.
#[derive(Clone, Debug)]
pub enum Numbering {
    /// All of them.
    All(Range<u32>),
    /// These.
    Some(NodeIndex),
}

impl Numbering {
    /// The nodes of `range` that `wanted` names, or all.
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

    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self {
            Self::All(range) => range.len(),
            Self::Some(index) => index.nodes().len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row of `node`, if it has one.
    #[inline]
    pub fn find(&self, node: u32) -> Option<usize> {
        match self {
            Self::All(range) => range.contains(&node).then(|| (node - range.start) as usize),
            Self::Some(index) => index.find(node),
        }
    }

    /// The rows of the nodes of `range`.
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

    /// The node of row `row`.
    ///
    /// # Panics
    /// When there is none.
    pub fn node(&self, row: usize) -> u32 {
        match self {
            Self::All(range) => range.start + row as u32,
            Self::Some(index) => index.nodes()[row],
        }
    }
}
