//! Local ids of the nodes of a partition before and after some nodes are removed. The others keep their order.

/// The nodes of a partition that are not removed.
pub(crate) struct Kept {
    /// The number of kept nodes before each removed one.
    before: Vec<u32>,
}

impl Kept {
    /// All nodes except `removed`, local ids before the removal, ascending.
    pub(crate) fn without(removed: impl IntoIterator<Item = u32>) -> Self {
        Self { before: (0..).zip(removed).map(|(number, local)| local - number).collect() }
    }

    /// Returns the local id before the removal of a node, by its local id after it. Nodes that were added after the others follow them there, too.
    pub(crate) fn before_removal(&self, local: u32) -> u32 {
        local + self.before.partition_point(|&before| before <= local) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_a_plain_list() {
        for removed in [&[][..], &[0], &[4], &[0, 1, 4], &[1, 2, 3, 5]] {
            let kept = Kept::without(removed.iter().copied());
            let left = (0..9).filter(|local| !removed.contains(local));
            assert!((0..).zip(left).all(|(after, before)| kept.before_removal(after) == before), "{removed:?}");
        }
    }
}
