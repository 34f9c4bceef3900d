//! Maps node indexes to global ids: a range per partition, with nodes in the order of their indexes.

use crate::error::{Error, Fault, Result};
use crate::partition_book::PartitionBook;
use crate::partitioner::{Assignment, Partitioner};

/// The global id of every node index.
pub(super) struct Relabel {
    pub(super) book: PartitionBook,
    /// `None` if global ids equal indexes. Four bytes per node.
    global: Option<Vec<u32>>,
}

impl Relabel {
    pub(super) fn new(assignment: &Assignment, nodes: u64, parts: u32, partitioner: &dyn Partitioner) -> Result<Self> {
        let refuse =
            |reason: String| Error::Partitioner { method: partitioner.name().to_string(), reason, fault: Fault::Bug };
        if let Assignment::Ranges(book) = assignment {
            if book.parts() != parts as usize || book.nodes() != nodes {
                return Err(refuse(format!(
                    "it returned {} ranges of {} nodes instead of {parts} of {nodes}",
                    book.parts(),
                    book.nodes()
                )));
            }
            return Ok(Self { book: book.clone(), global: None });
        }
        if let Assignment::Stored(stored) = assignment
            && stored.len() as u64 != nodes
        {
            return Err(refuse(format!("it assigned {} nodes instead of {nodes}", stored.len())));
        }
        let mut offsets = vec![0u64; parts as usize + 1];
        let mut global = vec![0u32; nodes as usize];
        // First, `global` holds the part of each node, and then the global id.
        for (node, slot) in global.iter_mut().enumerate() {
            let part = assignment.part(node as u64);
            if part >= parts {
                return Err(refuse(format!("it assigned node {node} to part {part} of {parts}")));
            }
            *slot = part;
            offsets[part as usize + 1] += 1;
        }
        for part in 0..parts as usize {
            offsets[part + 1] += offsets[part];
        }
        let mut next = offsets.clone();
        for slot in &mut global {
            let cursor = &mut next[*slot as usize];
            *slot = *cursor as u32;
            *cursor += 1;
        }
        let book = PartitionBook::new(offsets).ok_or_else(|| Error::Bug("offsets decrease".into()))?;
        Ok(Self { book, global: Some(global) })
    }

    /// Returns the global id of node index `index`.
    #[inline]
    pub(super) fn global(&self, index: u32) -> u32 {
        match &self.global {
            Some(global) => global[index as usize],
            None => index,
        }
    }

    /// Returns the node index of global id `global`, for messages. Time: O(nodes).
    pub(super) fn index(&self, global: u32) -> Option<u32> {
        match &self.global {
            Some(all) => all.iter().position(|&id| id == global).map(|index| index as u32),
            None => Some(global),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitioner::{Goal, GraphStream};

    struct Any;
    impl Partitioner for Any {
        fn name(&self) -> &str {
            "any"
        }
        fn assign(&self, _: &dyn GraphStream, _: &Goal) -> Result<Assignment> {
            Ok(Assignment::computed(|_| 0))
        }
    }

    #[test]
    fn partitions_are_ranges_in_index_order() {
        let relabel = Relabel::new(&Assignment::Stored(vec![2, 0, 2, 0, 0]), 5, 4, &Any).unwrap();
        assert_eq!(relabel.book.offsets(), [0, 3, 3, 5, 5]);
        assert_eq!((0..5).map(|i| relabel.global(i)).collect::<Vec<_>>(), [3, 0, 4, 1, 2]);
        assert_eq!((0..5).map(|g| relabel.index(g).unwrap()).collect::<Vec<_>>(), [1, 3, 4, 0, 2]);
    }

    #[test]
    fn invalid_assignment_is_refused() {
        for (assignment, word) in [
            (Assignment::Stored(vec![0; 4]), "4 nodes instead of 5"),
            (Assignment::computed(|_| 9), "part 9 of 2"),
            (Assignment::Ranges(PartitionBook::new(vec![0, 5]).unwrap()), "1 ranges"),
        ] {
            let error = Relabel::new(&assignment, 5, 2, &Any).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
