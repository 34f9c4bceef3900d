//! Sums of neighbor rows, forward and backward.

use std::ops::Range;

use bytemuck::Pod;
use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::Table;
use gnnflow_kernels::aggregate::{Coefficient, Own, Propagate, Scale, Sources};
use gnnflow_kernels::simd::element::Element;
use rayon::prelude::*;

use super::row_table::RowTable;
use super::scales::Scales;

/// Computes `out[v] = after[v] · (Σ table[u] + own[v] · table[v])` for the rows `rows` of `links`. Scales are by own node, from node `first`.
pub(crate) fn gather(
    links: &Links,
    rows: Range<usize>,
    table: &RowTable,
    scales: &Scales,
    first: u32,
    out: &mut [f32],
) {
    match table {
        RowTable::F32(table) => sum_rows(links, rows, table, scales, first, out),
        RowTable::Bf16(table) => sum_rows(links, rows, table, scales, first, out),
    }
}

fn sum_rows<T: Element<Acc = f32> + Pod>(
    links: &Links,
    rows: Range<usize>,
    table: &Table<T>,
    scales: &Scales,
    first: u32,
    out: &mut [f32],
) {
    let width = table.width();
    if rows.is_empty() || width == 0 {
        return;
    }
    let (indptr, indices) = links.edges(rows.clone());
    let place = |row: usize| links.table().find(links.rows().node(row));
    let select = |scale: &Option<Vec<f32>>| -> Option<Vec<f32>> {
        let scale = scale.as_ref()?;
        Some(rows.clone().map(|row| scale[(links.rows().node(row) - first) as usize]).collect())
    };
    let (after, own) = (select(&scales.after), select(&scales.own));
    let scale = after.as_deref().map_or(Scale::One, Scale::ByRow);
    let shares: Option<Vec<f32>> = own.map(|own| match &after {
        Some(after) => own.iter().zip(after).map(|(own, after)| own * after).collect(),
        None => own,
    });
    // If all own nodes have rows of edges, the rows of an interval are contiguous in the table.
    let contiguous = (links.table().len() == links.rows().len()).then(|| place(rows.start)).flatten();
    let own = match (&shares, contiguous) {
        (Some(shares), Some(start)) => Some(Own {
            rows: table.some(start..start + rows.len()),
            stride: width,
            coefficient: Coefficient::ByRow(shares),
        }),
        _ => None,
    };
    Propagate { scale, own, ..Propagate::sum(indptr, indices, Sources::new(table.values(), width), width) }.run(out);
    if let (Some(shares), None) = (&shares, contiguous) {
        out.par_chunks_exact_mut(width).zip(rows).zip(shares).for_each(|((out, row), share)| {
            if let Some(place) = place(row) {
                out.iter_mut().zip(table.some(place..place + 1)).for_each(|(out, x)| *out += share * x.widen());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gnnflow_dataflow::ghost::Ends;
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::storage::Place;
    use gnnflow_nn::layers::Aggregation;

    use super::*;
    use crate::config::RowDtype;

    #[test]
    fn gather_of_rounded_rows_equals_plain_loops() {
        // Nodes 1 to 3 of 5 are own.
        let edges = OwnedInEdges { indptr: vec![0, 3, 3, 5], indices: vec![0, 2, 4, 2, 3], ..Default::default() };
        let parts: [Arc<dyn InEdges>; 1] = [Arc::new(edges)];
        let links = Links::new(Ends::nodes(1..4, 5), &parts, Default::default(), &Place::Memory).unwrap();
        let scales = Scales::of_parts(Aggregation::Symmetric, 1, &parts);
        let width = 20;
        let values: Vec<f32> = (0..links.table_rows() * width).map(|i| (i as f32).sin()).collect();
        for dtype in [RowDtype::F32, RowDtype::Bf16] {
            let mut table = RowTable::zeros(dtype, links.table_rows(), width, &Place::Memory).unwrap();
            table.write(0..links.table_rows(), &values, None);
            let read = |place: usize| match &table {
                RowTable::F32(table) => table.values()[place],
                RowTable::Bf16(table) => table.values()[place].to_f32(),
            };
            let mut out = vec![0.0; 3 * width];
            gather(&links, 0..3, &table, &scales, 1, &mut out);
            let [after, own] = [&scales.after, &scales.own].map(|scale| scale.as_ref().unwrap());
            for (row, out) in out.chunks_exact(width).enumerate() {
                let (bounds, sources) = links.edges(row..row + 1);
                for (column, &out) in out.iter().enumerate() {
                    let mut sum = 0.0;
                    for &source in &sources[bounds[0] as usize..bounds[1] as usize] {
                        sum += read(source as usize * width + column);
                    }
                    assert_eq!(out, read(row * width + column) * (own[row] * after[row]) + sum * after[row]);
                }
            }
        }
    }
}
