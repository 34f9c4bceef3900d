//! Exchanges between workers before the first epoch: out-edges, and the lists of ghosts.

use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::{Array, Place};

use crate::collectives::{Collectives, Driver, Sender};
use crate::context::WorkerContext;
use crate::engine::aggregation::edge_types::types;
use crate::engine::aggregation::transpose::HeldEdges;
use crate::error::Error;

/// Sends every worker the list of its rows that are ghosts here. Returns, by worker, the own rows that are ghosts there.
pub(crate) fn exchange_ghosts(
    driver: &mut Driver<'_>,
    collectives: &mut Collectives,
    starts: &[u32],
    ghosts: &[u32],
) -> Result<Vec<Vec<u32>>, Error> {
    let owner = |node: u32| starts.partition_point(|&start| start <= node) - 1;
    let mut wanted = vec![Vec::new(); starts.len()];
    collectives.all_to_all(
        driver,
        |sender| ghosts.iter().try_for_each(|&node| sender.send(owner(node), node)),
        |from, nodes: &[u32]| {
            wanted[from].extend_from_slice(nodes);
            Ok(())
        },
    )?;
    wanted.iter_mut().for_each(|nodes| nodes.sort_unstable());
    Ok(wanted)
}

/// Returns the out-edges of own nodes to the `slots` slots of each node, by partition hosted here. The owners of the destinations send them.
pub(crate) fn reverse(
    driver: &mut Driver<'_>,
    collectives: &mut Collectives,
    context: &WorkerContext,
    own: &Range<u32>,
    slots: u32,
    place: &Place,
) -> Result<Vec<Arc<dyn InEdges>>, Error> {
    let failed = |error: std::io::Error| Error::io("write the out-edges of own nodes in", &context.scratch)(error);
    let graph = &context.graph;
    let mut file = BufWriter::new(tempfile::tempfile_in(&context.scratch).map_err(failed)?);
    let mut degrees = vec![0i64; own.len()];
    let send = |sender: &mut Sender<'_, '_, [u32; 2]>| {
        for part in graph.hosted() {
            let (edges, first) = (graph.in_edges(part), graph.range(part).start);
            let types = types(edges, slots)?;
            for (local, bounds) in edges.indptr().windows(2).enumerate() {
                for edge in bounds[0] as usize..bounds[1] as usize {
                    let (source, slot) = (edges.indices()[edge], types.map_or(0, |types| u32::from(types[edge])));
                    sender.send(graph.worker_of(source), [source, (first + local as u32) * slots + slot])?;
                }
            }
        }
        Ok(())
    };
    // Pairs (own node, destination) are written to disk; memory holds only their number per own node.
    let receive = |_: usize, pairs: &[[u32; 2]]| {
        pairs.iter().for_each(|&[node, _]| degrees[(node - own.start) as usize] += 1);
        let written = file.write_all(bytemuck::cast_slice(pairs));
        written.map_err(|error| Error::Machine(format!("cannot write the out-edges of own nodes: {error}")))
    };
    collectives.all_to_all(driver, send, receive)?;
    let _busy = driver.runtime.busy("sorting the reversed edges");
    let mut file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.rewind().map_err(failed)?;
    // By own node, the position of its next edge.
    let mut next: Vec<i64> = Vec::with_capacity(own.len());
    let mut arrays = Vec::new();
    for part in graph.hosted() {
        let range = graph.range(part);
        let degrees = &degrees[(range.start - own.start) as usize..(range.end - own.start) as usize];
        let mut indptr = vec![0];
        for degree in degrees {
            next.push(indptr[indptr.len() - 1]);
            indptr.push(indptr[indptr.len() - 1] + degree);
        }
        let edges = indptr[indptr.len() - 1] as usize;
        arrays.push((range.start, HeldEdges { indptr, indices: Array::zeros(edges, place).map_err(failed)? }));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut pair = [0u8; 8];
    for _ in 0..degrees.iter().sum::<i64>() {
        reader.read_exact(&mut pair).map_err(failed)?;
        let [source, destination]: [u32; 2] = bytemuck::cast(pair);
        let slot = &mut next[(source - own.start) as usize];
        let array = arrays.partition_point(|(first, _)| *first <= source) - 1;
        arrays[array].1.indices[*slot as usize] = destination;
        *slot += 1;
    }
    let sorted = arrays.into_iter().map(|(_, mut edges)| {
        // Sorts by id: messages arrive in any order.
        let HeldEdges { indptr, indices } = &mut edges;
        indptr.windows(2).for_each(|bounds| indices[bounds[0] as usize..bounds[1] as usize].sort_unstable());
        Arc::new(edges) as Arc<dyn InEdges>
    });
    Ok(sorted.collect())
}
