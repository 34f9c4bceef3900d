//! The rows that own nodes keep between node tasks, for both row exchanges.

use std::ops::Range;

use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::ModelProfile;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use crate::engine::aggregation::rows::Selection;
use crate::error::Error;
use gnnflow_nn::node_task::{NodeRows, matrix};

/// The rows that nodes keep at a hop, and their gradients.
struct Held {
    rows: Table,
    /// Empty if no gradient is needed.
    gradient: Table,
}

/// Rows of own nodes, by own row: row 0 is the worker's first node.
pub(crate) struct NodeTables {
    own: Range<u32>,
    features: FeatureView,
    /// By hop; `None` if no later task reads these rows.
    held: Vec<Option<Held>>,
    /// By node task, whether it reads the rows held before the first layer.
    reads_initial: Vec<bool>,
}

impl NodeTables {
    /// Reserves the tables. `is_whole` tells whether a node task reads whole rows, `goes_back` whether a hop needs gradients.
    pub(crate) fn new(
        own: Range<u32>,
        features: FeatureView,
        profile: &ModelProfile,
        is_whole: &dyn Fn(usize) -> bool,
        goes_back: &dyn Fn(usize) -> bool,
        place: &Place,
    ) -> std::io::Result<Self> {
        let reads_initial: Vec<bool> = profile.tasks.iter().map(|task| task.reads_initial).collect();
        let mut held = Vec::with_capacity(profile.hops.len());
        for (index, hop) in profile.hops.iter().enumerate() {
            let read_at_end = index == 0 && reads_initial.contains(&true);
            held.push(match hop.keeps_held && (is_whole(index + 1) || read_at_end) {
                true => Some(Held {
                    rows: Table::zeros(own.len(), hop.held, place)?,
                    gradient: Table::zeros(if goes_back(index) { own.len() } else { 0 }, hop.held, place)?,
                }),
                false => None,
            });
        }
        Ok(Self { own, features, held, reads_initial })
    }

    /// Returns the global ids of own rows.
    pub(crate) fn nodes(&self, rows: &Range<usize>) -> Range<u32> {
        self.own.start + rows.start as u32..self.own.start + rows.end as u32
    }

    /// Returns the global id of an own row.
    pub(crate) fn node(&self, row: usize) -> u32 {
        self.own.start + row as u32
    }

    /// Returns the own row of a node.
    pub(crate) fn row(&self, node: u32) -> usize {
        (node - self.own.start) as usize
    }

    /// Returns the inputs of node task `index` for some own rows; `aggregated` is one of them.
    pub(crate) fn inputs(&self, index: usize, rows: &Selection<'_>, aggregated: Option<Matrix>) -> NodeRows {
        if index == 0 {
            let nodes: Vec<u32> = rows.iter().map(|row| self.node(row)).collect();
            let FeatureView { number, dim, .. } = self.features;
            let features = self.features.open();
            let held = Matrix::gather(number, dim, |node| features.row(node), &nodes);
            return NodeRows { held: Some(held), ..NodeRows::default() };
        }
        let held_rows = |held: &Held| rows.copy(&held.rows, |row| row);
        let initial = self.reads_initial[index].then(|| self.held[0].as_ref()).flatten();
        NodeRows { held: self.held[index - 1].as_ref().map(held_rows), initial: initial.map(held_rows), aggregated }
    }

    /// Stores the rows that an interval's nodes keep at hop `hop`, if a later task reads them.
    pub(crate) fn hold(&mut self, hop: usize, rows: &Range<usize>, outputs: &NodeOutputs) -> Result<(), Error> {
        if let Some(table) = &mut self.held[hop] {
            read(outputs.held()?, |found| table.rows.some_mut(rows.clone()).copy_from_slice(found))?;
        }
        Ok(())
    }

    /// Tells whether a later task reads the rows that nodes keep at hop `hop`.
    pub(crate) fn keeps(&self, hop: usize) -> bool {
        self.held[hop].is_some()
    }

    /// Sets the gradients of some rows to zero, at all hops.
    pub(crate) fn clear_gradients(&mut self, rows: &Range<usize>) {
        for held in self.held.iter_mut().flatten().filter(|held| held.gradient.rows() > 0) {
            held.gradient.some_mut(rows.clone()).fill(0.0);
        }
    }

    /// Adds gradients of the rows held at hop `hop`, and of those held before the first layer.
    pub(crate) fn add_gradients(
        &mut self,
        hop: usize,
        rows: &Selection<'_>,
        held: Option<&[f32]>,
        initial: Option<&[f32]>,
    ) {
        for (hop, values) in [(hop, held), (0, initial)] {
            let (Some(Held { gradient, .. }), Some(values)) = (&mut self.held[hop], values) else { continue };
            for (row, values) in rows.iter().zip(values.chunks_exact(gradient.width())) {
                gradient.some_mut(row..row + 1).iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
            }
        }
    }

    /// Returns the gradients of the rows that an interval's nodes keep at hop `hop`.
    pub(crate) fn gradient(&self, hop: usize, rows: &Range<usize>) -> Option<Matrix> {
        let Held { gradient, .. } = self.held[hop].as_ref()?;
        Some(matrix(gradient.some(rows.clone()).to_vec(), gradient.width()))
    }
}
