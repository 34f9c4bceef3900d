//! Copies of a batch's edges on a device, made before its pass.

use std::sync::Arc;

use candle_core::Device;

use super::Model;
use super::pass_memory::BlockSize;
use crate::error::Result;
use crate::graph_block::GraphBlock;
use crate::layers::{Aggregation, Pass, degree_weights};
use crate::target::Target;
use crate::upload::Upload;

/// The arrays of edges that the layers of a model read on its device.
///
/// Passes copy what is missing. So copying is not needed, but another thread can do it before a pass, without the model.
#[derive(Clone, Debug)]
pub struct EdgeCopies {
    device: Device,
    layers: Vec<Need>,
}

/// The arrays that a layer reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Need {
    /// `None`: unknown. Nothing is copied.
    aggregation: Option<Aggregation>,
    /// Whether gradients pass through the aggregation.
    learns: bool,
}

impl Model {
    /// Returns the arrays of edges that training reads. `learned`: whether the input rows get gradients.
    pub fn edge_copies(&self, learned: bool) -> EdgeCopies {
        let layers = self.layers.iter().enumerate().map(|(index, layer)| Need {
            aggregation: layer.info().aggregation,
            learns: learned || index > 0 || self.first_task_learns(),
        });
        EdgeCopies { device: self.device.clone(), layers: layers.collect() }
    }
}

impl EdgeCopies {
    /// Returns the model's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the model's number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns what each layer reads.
    pub(super) fn needs(&self) -> &[Need] {
        &self.layers
    }

    /// Copies the edges of `blocks`, one for each layer, to the device, asynchronously with `upload`. Does nothing on the CPU.
    ///
    /// # Errors
    /// [`Error::Input`](crate::Error::Input) when a layer needs degrees that are missing; [`Error::OutOfMemory`](crate::Error::OutOfMemory)
    /// when the device has no memory left.
    pub fn copy(&self, blocks: &[Arc<GraphBlock>], degrees: Option<&[u32]>, upload: Option<&Upload>) -> Result<()> {
        if self.device.is_cpu() {
            return Ok(());
        }
        let target = Target::new(&self.device, upload);
        for (need, block) in self.layers.iter().zip(blocks) {
            need.copy(&Pass { degrees, ..Pass::new(block) }, target)?;
        }
        Ok(())
    }
}

impl Need {
    /// Returns the bytes of what [`Need::copy`] copies, without the numbers of the rows with 512 edges or more.
    pub(super) fn bytes(self, BlockSize { sources, destinations, edges }: BlockSize) -> u64 {
        use Aggregation::{Attention, Max, Mean, MeanByRelation, MeanWithSelf, Nothing, Sum, Symmetric};
        let Some(aggregation) = self.aggregation else { return 0 };
        let edges = match aggregation {
            Nothing | MeanByRelation { .. } => return 0,
            Sum | Mean | Max => edges,
            MeanWithSelf | Symmetric | Attention { .. } => edges + destinations,
        };
        let mut numbers = destinations + 1 + edges;
        if matches!(aggregation, Attention { .. } | Symmetric) {
            numbers += edges;
        }
        if self.learns {
            numbers += sources + 1 + edges;
            numbers += match aggregation {
                Mean | MeanWithSelf => destinations,
                Max | Symmetric | Attention { .. } => edges,
                Sum | Nothing | MeanByRelation { .. } => 0,
            };
        }
        4 * numbers
    }

    fn copy(self, pass: &Pass<'_>, target: Target<'_>) -> Result<()> {
        use Aggregation::{Attention, Max, Mean, MeanByRelation, MeanWithSelf, Nothing, Sum, Symmetric};
        // The host derives the other arrays.
        let on_device = matches!(self.aggregation, Some(Nothing | Sum | Mean | Max | MeanWithSelf | Attention { .. }));
        if !on_device {
            pass.block.read_back()?;
        }
        let Some(aggregation) = self.aggregation else { return Ok(()) };
        let block = match aggregation {
            Nothing | MeanByRelation { .. } => return Ok(()),
            Sum | Mean | Max => pass.block,
            MeanWithSelf | Symmetric | Attention { .. } => pass.block.with_self_loops_on(target.device())?,
        };
        let on = block.on(target);
        on.by_destination()?;
        if let Attention { .. } = aggregation {
            on.destinations()?;
        }
        if aggregation == Symmetric {
            degree_weights(pass, target)?;
        }
        if self.learns {
            on.by_source()?;
            match aggregation {
                Mean | MeanWithSelf => drop(on.inverse_degrees()?),
                Max | Symmetric | Attention { .. } => drop(on.edges_by_source()?),
                Sum | Nothing | MeanByRelation { .. } => {}
            }
        }
        Ok(())
    }
}
