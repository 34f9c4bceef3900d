//! Rows of nodes that a model with learned rows has not seen.
//!
//! *In*: the own nodes without a row. *Out*: their rows, in place. *Sent*: the ids of their in-neighbors to the owners, and the rows of these back.
//!
//! Results do not depend on the number of workers: a node's neighbors are added in the order of its in-edges.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gnnflow_dataflow::graph::local_graph::LocalGraph;

use super::NodeEmbeddings;
use crate::collectives::{Collectives, Driver};
use crate::error::Error;
use crate::model_file::Unseen;
use crate::neighborhood::search::in_neighbors;

/// Nodes whose neighbors' rows are in memory at the same time.
const ROUND: usize = 1 << 12;

impl NodeEmbeddings {
    /// Sets the rows of own nodes that the model has not seen, ascending. A collective operation.
    ///
    /// # Errors
    /// If the program ends the run; [`Error::Bug`] if the rows are open.
    pub(crate) fn set_unseen(
        &self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        graph: &LocalGraph,
        (nodes, unseen): (&[u32], Unseen),
    ) -> Result<(), Error> {
        let mut rows = vec![0.0; nodes.len() * self.dim()];
        if unseen == Unseen::Mean {
            let rounds = collectives.all_gather(driver, &(nodes.len().div_ceil(ROUND) as u64))?;
            let all: HashSet<u32> = nodes.iter().copied().collect();
            for round in 0..rounds.into_iter().max().unwrap_or(0) as usize {
                let start = (round * ROUND).min(nodes.len());
                let own = &nodes[start..(start + ROUND).min(nodes.len())];
                let found = self.rows_of_neighbors(driver, collectives, graph, (own, &all))?;
                for (node, row) in own.iter().zip(rows[start * self.dim()..].chunks_exact_mut(self.dim())) {
                    mean(in_neighbors(graph, *node).iter().filter_map(|neighbor| found.get(neighbor)), row);
                }
            }
        }
        self.table.rows().write()?.set(nodes, &rows);
        Ok(())
    }

    /// Returns the rows of the in-neighbors of `nodes` that the model has seen. `unseen` are all own nodes that it has not seen.
    fn rows_of_neighbors(
        &self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        graph: &LocalGraph,
        (nodes, unseen): (&[u32], &HashSet<u32>),
    ) -> Result<HashMap<u32, Vec<f32>>, Error> {
        let wanted: BTreeSet<u32> = nodes.iter().flat_map(|&node| in_neighbors(graph, node)).copied().collect();
        let mut asked = BTreeMap::<usize, Vec<u32>>::new();
        collectives.all_to_all(
            driver,
            |sender| wanted.iter().try_for_each(|&node| sender.send(graph.worker_of(node), node)),
            |from, nodes: &[u32]| {
                asked.entry(from).or_default().extend(nodes);
                Ok(())
            },
        )?;
        let (rows, mut found) = (self.read()?, HashMap::<u32, Vec<f32>>::new());
        collectives.all_to_all(
            driver,
            |sender| {
                for (&to, nodes) in &asked {
                    for &node in nodes.iter().filter(|node| !unseen.contains(node)) {
                        let mut numbers = (0..).zip(rows.row(node));
                        numbers.try_for_each(|(column, value)| sender.send(to, [node, column, value.to_bits()]))?;
                    }
                }
                Ok(())
            },
            |_, numbers: &[[u32; 3]]| {
                for &[node, column, bits] in numbers {
                    let row = found.entry(node).or_insert_with(|| vec![0.0; self.dim()]);
                    row[column as usize] = f32::from_bits(bits);
                }
                Ok(())
            },
        )?;
        Ok(found)
    }
}

/// Sets `mean` to the mean of rows; it stays as it is without rows.
fn mean<'a>(rows: impl Iterator<Item = &'a Vec<f32>>, mean: &mut [f32]) {
    let (mut sums, mut count) = (vec![0.0f64; mean.len()], 0);
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        count += 1;
    }
    if count > 0 {
        mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = (sum / f64::from(count)) as f32);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gnnflow_data::PartitionBook;
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::graph::placement::Placement;

    use super::*;
    use crate::collectives::tests::{PARTS, at};
    use crate::config;

    const NODES: u64 = 9_000;
    const DIM: usize = 3;

    /// The in-neighbors of a node; one of them twice.
    fn neighbors(node: u64) -> Vec<u32> {
        let key = Key::new(5, Purpose::GenerateEdges).fold(node);
        let mut all: Vec<u32> = (0..node % 5).map(|edge| key.below(edge, NODES) as u32).collect();
        all.extend(all.first().copied());
        all.sort_unstable();
        all
    }

    /// More than one round of nodes. The neighbors of the first ones are all unseen.
    fn is_unseen(node: u32) -> bool {
        node < 6_000 || node.is_multiple_of(7)
    }

    /// Returns the rows of all nodes, as text of their bits.
    fn rows(workers: usize, unseen: Option<Unseen>) -> Vec<Vec<u32>> {
        let of_workers = at(workers, move |collectives, driver| {
            let rank = driver.worker.index();
            let placement = Placement::new(PARTS, workers);
            let book = PartitionBook::even(NODES, placement.parts());
            let load = |part: usize| -> Result<Arc<dyn InEdges>, ()> {
                let sources = |node: u32| neighbors(u64::from(node)).into_iter();
                Ok(Arc::new(OwnedInEdges::from_fn(book.range(part), sources)))
            };
            let graph = Arc::new(LocalGraph::load(&book, placement, rank, false, load).unwrap());
            let scratch = tempfile::tempdir().unwrap();
            let config = config::Embedding { dim: DIM, ..config::Embedding::default() };
            let learned = NodeEmbeddings::create(&config, scratch.path(), &graph, rank, 3, 1).unwrap();
            let own: Vec<u32> = (0..NODES as u32).filter(|&node| graph.hosts(node)).collect();
            if let Some(unseen) = unseen {
                let nodes: Vec<u32> = own.iter().copied().filter(|&node| is_unseen(node)).collect();
                learned.set_unseen(driver, collectives, &graph, (&nodes, unseen)).unwrap();
            }
            let rows = learned.read().unwrap();
            own.iter()
                .map(|&node| rows.row(node).iter().map(|value| value.to_bits()).collect())
                .collect::<Vec<Vec<u32>>>()
        });
        of_workers.into_iter().flatten().collect()
    }

    #[test]
    fn rows_are_those_of_a_plain_program_at_1_2_and_4_workers() {
        let learned = rows(1, None);
        let expected = |node: u32| -> Vec<u32> {
            if !is_unseen(node) {
                return learned[node as usize].clone();
            }
            let seen: Vec<u32> = neighbors(u64::from(node)).into_iter().filter(|&other| !is_unseen(other)).collect();
            let column = |column: usize| {
                let values = seen.iter().map(|&other| f64::from(f32::from_bits(learned[other as usize][column])));
                if seen.is_empty() { 0.0 } else { (values.sum::<f64>() / seen.len() as f64) as f32 }
            };
            (0..DIM).map(|of| column(of).to_bits()).collect()
        };
        let means: Vec<Vec<u32>> = (0..NODES as u32).map(expected).collect();
        assert!(means.iter().filter(|row| row.iter().all(|&bits| bits == 0)).count() > 100);
        for workers in [1, 2, 4] {
            assert!(rows(workers, Some(Unseen::Mean)) == means, "{workers} workers");
            let zeros = rows(workers, Some(Unseen::Zero));
            for (node, row) in (0..).zip(&zeros) {
                assert_eq!(*row == [0; DIM], is_unseen(node) || learned[node as usize] == [0; DIM], "node {node}");
            }
        }
    }
}
