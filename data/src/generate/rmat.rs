//! The recursive-matrix generator (Chakrabarti, Zhan, Faloutsos 2004) with Graph500's defaults.

use std::path::Path;
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};

use super::nodes::NodeTable;
use super::table::{EDGES, NODES, Output, Table};
use super::{Generated, check_common, is_made_by, note, recipe, refuse};
use crate::error::Result;
use crate::progress::Progress;
use crate::rng::{Key, Permutation, Purpose};

/// A graph of `2^scale` nodes and `edge_factor · 2^scale` edges. Each edge falls into one quadrant of the adjacency
/// matrix with probabilities `a`, `b`, `c` and `1 - a - b - c`, then into a quadrant of that quadrant, and so on. Node ids
/// are permuted, so an id does not depend on the degree.
///
/// An edge is one row. The graph is intended to be read with `undirected = true`. Duplicates, self-loops (as in Graph500)
/// and isolated nodes occur. Labels are optional, uniform, and independent of the edges. The graph is for measuring
/// speed; use [`Planted`](super::Planted) to measure learning.
///
/// ```
/// use gnnflow_data::generate::Rmat;
///
/// let folder = tempfile::tempdir().unwrap();
/// let dump = Rmat { scale: 8, ..Rmat::default() }.write(folder.path(), &gnnflow_data::progress::Silent).unwrap();
/// assert_eq!((dump.nodes, dump.edges), (256, 4096));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rmat {
    /// Logarithm of the number of nodes, 1 to 31.
    pub scale: u32,
    /// Edges per node. Ignored if `edges` is set.
    pub edge_factor: u64,
    /// Number of edge rows, instead of `edge_factor`.
    pub edges: Option<u64>,
    /// Probability of the quadrant "low to low".
    pub a: f64,
    /// Probability of the quadrant "low to high".
    pub b: f64,
    /// Probability of the quadrant "high to low".
    pub c: f64,
    /// Standard normal features per node, shifted by class if there are classes; 0 for none.
    pub features: usize,
    /// Number of classes; 0 for no labels and splits.
    pub classes: u64,
    /// Fractions of train, validation and test nodes; the others are in no split.
    pub split: [f64; 3],
    /// Seed of all random choices.
    pub seed: u64,
    /// Files per table.
    pub files: usize,
}

impl Default for Rmat {
    fn default() -> Self {
        Self {
            scale: 16,
            edge_factor: 16,
            edges: None,
            a: 0.57,
            b: 0.19,
            c: 0.19,
            features: 0,
            classes: 0,
            split: [0.1, 0.1, 0.8],
            seed: 1,
            files: 1,
        }
    }
}

impl Rmat {
    /// Checks the settings and returns the number of nodes.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a setting out of range.
    pub fn check(&self) -> Result<u64> {
        if !(1..=31).contains(&self.scale) {
            return Err(refuse("scale", format!("scale {}: must be 1 to 31", self.scale)));
        }
        let d = 1.0 - self.a - self.b - self.c;
        for (key, p) in [("a", self.a), ("b", self.b), ("c", self.c), ("a + b + c", d)] {
            if !(-1e-9..=1.0).contains(&p) {
                return Err(refuse(key, "a, b and c must be probabilities that add up to at most 1"));
            }
        }
        if self.classes > 1 << 16 {
            return Err(refuse("classes", format!("{} classes: must be at most 65536", self.classes)));
        }
        let nodes = 1 << self.scale;
        check_common(nodes, self.features, self.files, self.split)?;
        Ok(nodes)
    }

    /// Returns whether `out` has the dump of these settings.
    pub fn is_written(&self, out: &Path) -> bool {
        is_made_by(out, &recipe("rmat", self), self.files)
    }

    /// Writes the dump below the folder `out`.
    ///
    /// # Errors
    /// When a setting is out of range or a file cannot be written.
    pub fn write(&self, out: &Path, progress: &dyn Progress) -> Result<Generated> {
        let nodes = self.check()?;
        let edges = self.edges.unwrap_or(self.edge_factor << self.scale);
        let mut output = Output::new(out, note(recipe("rmat", self)))?;

        let class_key = Key::new(self.seed, Purpose::GenerateNodes).fold(2);
        let class_of = |id: u64| class_key.below(id, self.classes);
        let table = NodeTable::new(nodes, self.features, self.classes, 1.0, self.split, self.seed, class_of);
        output.write(
            &Table {
                name: NODES,
                schema: table.schema(),
                rows: nodes,
                row_bytes: table.row_bytes(),
                make: &|rows| table.rows(rows),
            },
            self.files,
            progress,
        )?;

        let quadrants = Quadrants::new(self);
        output.write(
            &Table {
                name: EDGES,
                schema: edge_schema(),
                rows: edges,
                row_bytes: 16,
                make: &|rows| {
                    let (src, dst): (Vec<i64>, Vec<i64>) = rows.map(|e| quadrants.edge(e)).unzip();
                    Ok(vec![Arc::new(Int64Array::from(src)), Arc::new(Int64Array::from(dst))])
                },
            },
            self.files,
            progress,
        )?;
        let (nodes_path, edges_path) = (output.place(NODES), output.place(EDGES));
        Ok(Generated { nodes_path, edges_path, nodes, edges, bytes: output.publish()? })
    }
}

/// Returns the schema of edges: `src` and `dst`, 64-bit integers without nulls.
pub(super) fn edge_schema() -> arrow::datatypes::SchemaRef {
    let field = |name| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![field("src"), field("dst")]))
}

/// Draws edges with 32 random bits per level of the recursion.
struct Quadrants {
    scale: u32,
    /// Cumulative probabilities of the first three quadrants, in units of 2^-32.
    ends: [u64; 3],
    key: Key,
    ids: Permutation,
}

impl Quadrants {
    fn new(settings: &Rmat) -> Self {
        let end = |p: f64| (p * (1u64 << 32) as f64).round() as u64;
        let Rmat { a, b, c, scale, seed, .. } = *settings;
        let root = Key::new(seed, Purpose::GenerateEdges);
        Self {
            scale,
            ends: [end(a), end(a + b), end(a + b + c)],
            key: root.fold(0),
            ids: Permutation::new(root.fold(1), 1 << scale),
        }
    }

    fn edge(&self, e: u64) -> (i64, i64) {
        let key = self.key.fold(e);
        let (mut src, mut dst) = (0, 0);
        for level in 0..self.scale {
            let bits = (key.draw(u64::from(level / 2)) >> (32 * (level % 2))) & 0xffff_ffff;
            let quadrant = self.ends.iter().map(|&end| u64::from(bits >= end)).sum::<u64>();
            src = 2 * src + quadrant / 2;
            dst = 2 * dst + quadrant % 2;
        }
        (self.ids.at(src) as i64, self.ids.at(dst) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quadrants_have_their_probabilities_at_every_level() {
        let settings = Rmat { scale: 6, a: 0.5, b: 0.25, c: 0.15, ..Rmat::default() };
        let quadrants = Quadrants::new(&settings);
        // Undo the scrambling, then count quadrants by level. 3 degrees of freedom, 0.9999 quantile 21.1.
        let mut unscrambled = vec![0u64; 64];
        (0..64).for_each(|raw| unscrambled[quadrants.ids.at(raw) as usize] = raw);
        let edges = 40_000;
        let mut counts = [[0f64; 4]; 6];
        for e in 0..edges {
            let (src, dst) = quadrants.edge(e);
            let (src, dst) = (unscrambled[src as usize], unscrambled[dst as usize]);
            (0..6).for_each(|bit| counts[bit][(2 * (src >> bit & 1) + (dst >> bit & 1)) as usize] += 1.0);
        }
        for (bit, counts) in counts.iter().enumerate() {
            let expected = [0.5, 0.25, 0.15, 0.1].map(|p| p * edges as f64);
            let chi: f64 = counts.iter().zip(expected).map(|(c, e)| (c - e).powi(2) / e).sum();
            assert!(chi < 21.1, "bit {bit}: {counts:?}");
        }
    }
}
