//! Sampling on a device, and the arrays that it derives from sampled blocks.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::sample::Fanout;

use super::found::Found;
use crate::device_topology::DeviceTopology;
use crate::error::Result;
use crate::graph_block::GraphBlock;

/// Fanouts of the hops of a batch, with a name.
pub(super) const HOPS: [(&str, &[Fanout]); 3] = [
    ("fanouts 5, 3", &[Fanout::Uniform { k: 5 }, Fanout::Uniform { k: 3 }]),
    ("fanouts 600, all", &[Fanout::Uniform { k: 600 }, Fanout::All]),
    ("fanouts 7 with replacement, 40", &[Fanout::UniformWithReplacement { k: 7 }, Fanout::Uniform { k: 40 }]),
];

const NODES: u64 = 1200;

/// Returns a graph in three parts, of which one is empty. Node 5 has most in-edges and node 6 most out-edges; every ninth node has no in-edges. Some edges
/// are parallel, and some are self-loops.
fn graph() -> [(Vec<i64>, Vec<u32>); 3] {
    let key = Key::new(1, Purpose::GenerateEdges);
    let sources = |node: u64| {
        let edges = match node {
            5 => 900,
            node if node.is_multiple_of(9) => return Vec::new(),
            node => key.below(node, 24),
        };
        let mut sources: Vec<u32> = (0..edges).map(|e| key.fold(node).below(e, NODES) as u32).collect();
        sources.extend([6, node as u32]);
        sources.sort_unstable();
        sources
    };
    [0..500, 500..500, 500..NODES].map(|part| {
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for node in part {
            indices.extend(sources(node));
            indptr.push(indices.len() as i64);
        }
        (indptr, indices)
    })
}

/// Samples two batches with these fanouts. Returns their nodes and blocks, and the arrays that layers read.
pub(super) fn run(fanouts: &[Fanout], device: &Device) -> Result<Found> {
    let parts = graph();
    let graph = DeviceTopology::new(parts.iter().map(|(indptr, indices)| (&indptr[..], &indices[..])), device)?;
    let key = Key::new(7, Purpose::Sample);
    let hops: Vec<_> = (0..).zip(fanouts).map(|(hop, &fanout)| (fanout, key.fold(hop))).collect();
    let mut found = Vec::new();
    for seeds in [(100..160).collect::<Vec<u32>>(), vec![5, 6, 0]] {
        let batch = graph.sample(&seeds, &hops)?;
        found.push(("nodes".to_owned(), integers(batch.nodes())?));
        for block in batch.blocks() {
            arrays(block, device, &mut found)?;
            arrays(block.with_self_loops_on(device)?, device, &mut found)?;
        }
    }
    Ok(found)
}

/// Adds the arrays of a block on a device.
fn arrays(block: &Arc<GraphBlock>, device: &Device, found: &mut Found) -> Result<()> {
    let on = block.on_device(device);
    for (side, rows) in [("destination", on.by_destination()?), ("source", on.by_source()?)] {
        found.push((format!("bounds by {side}"), integers(&rows.indptr)?));
        found.push((format!("edges by {side}"), integers(&rows.indices)?));
        let long = rows.long_rows.as_ref().map_or_else(|| Ok(Vec::new()), integers)?;
        found.push((format!("long rows by {side}"), long));
    }
    found.push(("numbers of edges by source".to_owned(), integers(&on.edges_by_source()?)?));
    found.push(("destinations of edges".to_owned(), integers(&on.destinations()?)?));
    let degrees = on.inverse_degrees()?.to_vec1::<f32>()?;
    found.push(("inverse degrees".to_owned(), degrees.into_iter().map(f64::from).collect()));
    Ok(())
}

fn integers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_vec1::<u32>()?.into_iter().map(f64::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_batches_have_long_rows_in_both_directions() -> Result<()> {
        let mut all = Vec::new();
        for (_, fanouts) in HOPS {
            all.extend(run(fanouts, &Device::Cpu)?);
        }
        for side in ["destination", "source"] {
            let name = format!("long rows by {side}");
            assert!(all.iter().any(|(of, rows)| *of == name && !rows.is_empty()), "{name}");
        }
        Ok(())
    }
}
