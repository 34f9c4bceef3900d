//! Adding rows up, forwards and backwards.

use std::ops::Range;

use gnnflow_operators::kernel::propagate::{Coefficient, Own, Propagate, Scale, Sources};
use gnnflow_operators::propagate::{Links, Table};
use rayon::prelude::*;

use super::scales::Scales;

/// `out[v] = after[v] · (Σ table[u] + own[v] · table[v])` for the rows `rows` of `links`; scales are by own node, of which `first`
/// is the first.
pub(super) fn gather(links: &Links, rows: Range<usize>, table: &Table, scales: &Scales, first: u32, out: &mut [f32]) {
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
    // Where all own nodes have rows, an interval's lie together.
    let together = (links.table().len() == links.rows().len()).then(|| place(rows.start)).flatten();
    let own = match (&shares, together) {
        (Some(shares), Some(start)) => Some(Own {
            rows: table.some(start..start + rows.len()),
            stride: width,
            coefficient: Coefficient::ByRow(shares),
        }),
        _ => None,
    };
    Propagate { scale, own, ..Propagate::sum(indptr, indices, Sources::new(table.values(), width), width) }.run(out);
    if let (Some(shares), None) = (&shares, together) {
        out.par_chunks_exact_mut(width).zip(rows).zip(shares).for_each(|((out, row), share)| {
            if let Some(place) = place(row) {
                out.iter_mut().zip(table.some(place..place + 1)).for_each(|(out, x)| *out += share * x);
            }
        });
    }
}
