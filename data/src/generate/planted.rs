//! A degree-corrected block model (Karrer and Newman 2011) with features and labels.

use std::path::Path;
use std::sync::Arc;

use arrow::array::Int64Array;
use serde::{Deserialize, Serialize};

use super::nodes::NodeTable;
use super::power_law::PowerLaw;
use super::rmat::edge_schema;
use super::table::{EDGES, NODES, Output, Table};
use super::{Generated, check_common, is_made_by, note, recipe, refuse};
use crate::error::Result;
use crate::progress::Progress;
use crate::rng::{Key, Permutation, Purpose};

/// A graph on which a graph neural network beats a model that uses features only.
///
/// Nodes belong to `classes` classes of equal size, in random order. An edge joins two nodes of one class with
/// probability `homophily`, and of different classes otherwise. Within a class, nodes are drawn in proportion to weights,
/// so that degrees follow a power law. The largest expected degree is limited to about `sqrt(2 · edges)`; above it, a
/// graph without duplicate edges cannot be random. Every node has at least one edge. There are no self-loops, and few
/// duplicate edges.
///
/// Features are the class mean plus standard normal noise. The mean is only `signal` standard deviations from the
/// origin, so the class shows in the average over neighbors better than in one node. With the defaults (10 % training
/// nodes), ridge regression and a multi-layer perceptron reach 53 % on raw features. Ridge regression reaches 94 % on
/// features averaged over two hops. Chance is 10 %.
///
/// An undirected edge is one row: read the dump with `undirected = true`.
///
/// ```
/// use gnnflow_data::generate::Planted;
///
/// let folder = tempfile::tempdir().unwrap();
/// let graph = Planted { nodes: 1000, edges: 5000, ..Planted::default() };
/// let dump = graph.write(folder.path(), &gnnflow_data::progress::Silent).unwrap();
/// assert_eq!((dump.nodes, dump.edges), (1000, 5000));
/// assert!(graph.is_written(folder.path()));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planted {
    /// Number of nodes, 2 to 2^32 - 1.
    pub nodes: u64,
    /// Number of edge rows (undirected edges), at least `nodes`.
    pub edges: u64,
    /// Features per node; 0 for none.
    pub features: usize,
    /// Number of classes, from 1 to `nodes` and at most 65536.
    pub classes: u64,
    /// Probability that both ends of an edge are of one class.
    pub homophily: f64,
    /// Exponent of the power law of degrees, above 2. Larger values give more equal degrees.
    pub degree_exponent: f64,
    /// Distance of a class mean from the origin, in standard deviations of the noise.
    pub signal: f64,
    /// Fractions of train, validation and test nodes; the others are in no split.
    pub split: [f64; 3],
    /// Seed of all random choices.
    pub seed: u64,
    /// Files per table.
    pub files: usize,
}

impl Default for Planted {
    fn default() -> Self {
        Self {
            nodes: 10_000,
            edges: 100_000,
            features: 64,
            classes: 10,
            homophily: 0.5,
            degree_exponent: 2.5,
            signal: 1.8,
            split: [0.1, 0.1, 0.8],
            seed: 1,
            files: 1,
        }
    }
}

impl Planted {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a setting out of range.
    pub fn check(&self) -> Result<()> {
        check_common(self.nodes, self.features, self.files, self.split)?;
        if self.edges < self.nodes {
            let problem = "must be at least the number of nodes, because every node has an edge";
            return Err(refuse("edges", format!("{} edges for {} nodes: {problem}", self.edges, self.nodes)));
        }
        if !(1..=self.nodes.min(1 << 16)).contains(&self.classes) {
            let most = self.nodes.min(1 << 16);
            return Err(refuse("classes", format!("{} classes: must be 1 to {most}", self.classes)));
        }
        if !(0.0..=1.0).contains(&self.homophily) {
            return Err(refuse("homophily", format!("{}: must be a probability", self.homophily)));
        }
        if !(self.degree_exponent > 2.0 && self.degree_exponent.is_finite()) {
            return Err(refuse("degree_exponent", format!("{}: must be above 2", self.degree_exponent)));
        }
        if !(self.signal.is_finite() && self.signal >= 0.0) {
            return Err(refuse("signal", format!("{}: must be 0 or more", self.signal)));
        }
        Ok(())
    }

    /// Returns whether `out` has the dump of these settings.
    pub fn is_written(&self, out: &Path) -> bool {
        is_made_by(out, &recipe("planted", self), self.files)
    }

    /// Writes the dump below the folder `out`. Memory: 4 bytes per node and the row groups in flight.
    ///
    /// # Errors
    /// When a setting is out of range or a file cannot be written.
    pub fn write(&self, out: &Path, progress: &dyn Progress) -> Result<Generated> {
        self.check()?;
        let mut output = Output::new(out, note(recipe("planted", self)))?;
        let blocks = Blocks::new(self);
        let class_of = |id: u64| blocks.class_of(id);
        let table =
            NodeTable::new(self.nodes, self.features, self.classes, self.signal, self.split, self.seed, class_of);
        output.write(
            &Table {
                name: NODES,
                schema: table.schema(),
                rows: self.nodes,
                row_bytes: table.row_bytes(),
                make: &|rows| table.rows(rows),
            },
            self.files,
            progress,
        )?;
        let ids = blocks.ids_by_rank();
        output.write(
            &Table {
                name: EDGES,
                schema: edge_schema(),
                rows: self.edges,
                row_bytes: 16,
                make: &|rows| {
                    let id = |rank: u64| i64::from(ids[rank as usize]);
                    let edges = rows.map(|e| blocks.edge(e)).map(|(a, b)| (id(a), id(b)));
                    let (src, dst): (Vec<i64>, Vec<i64>) = edges.unzip();
                    Ok(vec![Arc::new(Int64Array::from(src)), Arc::new(Int64Array::from(dst))])
                },
            },
            self.files,
            progress,
        )?;
        let (nodes_path, edges_path) = (output.place(NODES), output.place(EDGES));
        Ok(Generated { nodes_path, edges_path, nodes: self.nodes, edges: self.edges, bytes: output.publish()? })
    }
}

/// Classes and weights of nodes by rank. Rank `r` has class `r % classes`, and the `r / classes`-th weight in it.
struct Blocks {
    nodes: u64,
    edges: u64,
    classes: u64,
    homophily: f64,
    /// Weights within a class. The first is for classes with one more node.
    laws: [PowerLaw; 2],
    key: Key,
    rank_of_id: Permutation,
    /// Order in which nodes get their first edge.
    cover: Permutation,
}

impl Blocks {
    fn new(settings: &Planted) -> Self {
        let Planted { nodes, edges, classes, homophily, degree_exponent, seed, .. } = *settings;
        let root = Key::new(seed, Purpose::GenerateEdges);
        // A class has about 2 · edges / classes ends of edges.
        let max_share = classes as f64 / (2.0 * edges as f64).sqrt();
        let law = |n: u64| PowerLaw::new(n.max(1), degree_exponent, max_share);
        Self {
            nodes,
            edges,
            classes,
            homophily,
            laws: [law(nodes / classes + 1), law(nodes / classes)],
            key: root.fold(0),
            rank_of_id: Permutation::new(root.fold(1), nodes),
            cover: Permutation::new(root.fold(2), nodes),
        }
    }

    fn class_of(&self, id: u64) -> u64 {
        self.rank_of_id.at(id) % self.classes
    }

    /// Returns the inverse of `rank_of_id`, 4 bytes per node.
    fn ids_by_rank(&self) -> Vec<u32> {
        let mut ids = vec![0u32; self.nodes as usize];
        (0..self.nodes).for_each(|id| ids[self.rank_of_id.at(id) as usize] = id as u32);
        ids
    }

    fn draw(&self, class: u64, u: f64) -> u64 {
        let law = &self.laws[usize::from(class >= self.nodes % self.classes)];
        law.rank(u) * self.classes + class
    }

    /// Returns the ranks of the ends of edge `e`.
    fn edge(&self, e: u64) -> (u64, u64) {
        let key = self.key.fold(e);
        // One edge for each node has that node as an end; these are spread over all edges.
        let turn = |e: u64| (u128::from(e) * u128::from(self.nodes) / u128::from(self.edges)) as u64;
        let first = if e == 0 || turn(e) != turn(e - 1) {
            self.cover.at(turn(e))
        } else {
            self.draw(key.below(0, self.classes), key.unit(1))
        };
        let class = first % self.classes;
        let same_class = self.classes == 1 || key.unit(2) < self.homophily;
        let other = if same_class { class } else { (class + 1 + key.below(3, self.classes - 1)) % self.classes };
        let second = (4..12).map(|i| self.draw(other, key.unit(i))).find(|&rank| rank != first);
        // In a class of few nodes all draws may equal `first`; then an adjacent rank is used.
        let second = second.unwrap_or_else(|| {
            let next = first + self.classes;
            if next < self.nodes {
                next
            } else if first >= self.classes {
                first - self.classes
            } else {
                (first + 1) % self.nodes
            }
        });
        if key.draw(12) & 1 == 0 { (first, second) } else { (second, first) }
    }
}
