//! The choice of in-edges of one node.

use gnnflow_data::rng::Key;

/// The number of in-edges that a hop takes per node, and the kind of draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// Every in-edge.
    All,
    /// A uniform subset of `k` in-edges, or every in-edge of a node that has at most `k`.
    Uniform {
        /// In-edges per node.
        k: u32,
    },
    /// `k` uniform in-edges with replacement; none from a node without in-edges.
    UniformWithReplacement {
        /// In-edges per node.
        k: u32,
    },
}

impl Fanout {
    /// Converts the fanout of a pipeline file: any negative number means all.
    pub fn new(fanout: i64, replace: bool) -> Self {
        match u32::try_from(fanout) {
            Ok(k) if replace => Self::UniformWithReplacement { k },
            Ok(k) => Self::Uniform { k },
            Err(_) if fanout < 0 => Self::All,
            Err(_) => Self::Uniform { k: u32::MAX },
        }
    }
}

/// A user-defined sampler that chooses among a node's in-edges.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::sample::Sampler;
///
/// /// The first `fanout` in-edges, always.
/// struct First;
///
/// impl Sampler for First {
///     fn name(&self) -> &str {
///         "first"
///     }
///     fn sample(&self, _node: u32, neighbors: &[u32], _offset: u64, fanout: i64, _key: Key, out: &mut Vec<u32>) {
///         let count = usize::try_from(fanout).unwrap_or(usize::MAX).min(neighbors.len());
///         out.extend_from_slice(&neighbors[..count]);
///     }
/// }
///
/// let mut out = vec![];
/// First.sample(0, &[5, 6, 7], 0, 2, Key::new(1, Purpose::Sample), &mut out);
/// assert_eq!(out, [5, 6]);
/// ```
pub trait Sampler: Send + Sync {
    /// Returns the name that pipeline files use.
    fn name(&self) -> &str;

    /// Appends the sources of the chosen in-edges of `node` to `out`, and leaves the existing entries unchanged.
    ///
    /// `neighbors` are the sources of all in-edges. The first of these is row `edge_offset` of the edge columns of the
    /// partition that owns `node`. `fanout` is the hop's value in the pipeline file. The result must be a pure function
    /// of the arguments: random draws must use `key` only, which is specific to the node. A result that is not in
    /// `neighbors`, or fewer entries in `out` than before, end the run with a [`SamplerFault`].
    fn sample(&self, node: u32, neighbors: &[u32], edge_offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>);
}

/// A registered [`Sampler`] broke its contract. The payload of the panic that ends sampling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerFault {
    /// It returned a node that is not in `neighbors`.
    #[error(
        "sampler `{sampler}` returned node {returned} for node {node}, but there is no edge from {returned} to {node} \
         (ids of the prepared dataset); return entries of `neighbors` only"
    )]
    NoEdge {
        /// Name of the sampler.
        sampler: String,
        /// The destination.
        node: u32,
        /// The returned node.
        returned: u32,
    },
    /// It removed existing entries of `out`.
    #[error("sampler `{0}` removed existing entries of `out`; it must only append to it")]
    Removed(String),
}

/// The built-in `uniform`: [`Fanout::Uniform`], or [`Fanout::All`] for a negative fanout.
#[derive(Clone, Copy, Debug)]
pub struct Uniform;

/// The built-in `uniform-with-replacement`: [`Fanout::UniformWithReplacement`], or [`Fanout::All`] for a negative
/// fanout.
#[derive(Clone, Copy, Debug)]
pub struct UniformWithReplacement;

impl Sampler for Uniform {
    fn name(&self) -> &str {
        "uniform"
    }

    fn sample(&self, _node: u32, neighbors: &[u32], _offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>) {
        append_picks(Fanout::new(fanout, false), neighbors, key, out);
    }
}

impl Sampler for UniformWithReplacement {
    fn name(&self) -> &str {
        "uniform-with-replacement"
    }

    fn sample(&self, _node: u32, neighbors: &[u32], _offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>) {
        append_picks(Fanout::new(fanout, true), neighbors, key, out);
    }
}

/// Appends the picks of `fanout` for one node under the node's `key`.
fn append_picks(fanout: Fanout, neighbors: &[u32], key: Key, out: &mut Vec<u32>) {
    match fanout {
        Fanout::UniformWithReplacement { k } if !neighbors.is_empty() => {
            out.extend((0..u64::from(k)).map(|j| neighbors[key.below(j, neighbors.len() as u64) as usize]));
        }
        Fanout::Uniform { k } if (k as usize) < neighbors.len() => {
            let mut picked = PickedEdges::default();
            let degree = neighbors.len();
            picked.subset(key, degree, k as usize, |edge| out.push(neighbors[edge]));
        }
        _ => out.extend_from_slice(neighbors),
    }
}

/// Floyd's algorithm for any number of picks, with one bit per in-edge. Memory is reused between nodes.
#[derive(Debug, Default)]
pub(super) struct PickedEdges(Vec<u64>);

impl PickedEdges {
    /// Calls `pick` for each of `k` of `0..degree`, in the order that the documentation of `sample` defines.
    pub(super) fn subset(&mut self, key: Key, degree: usize, k: usize, mut pick: impl FnMut(usize)) {
        self.0.clear();
        self.0.resize(degree.div_ceil(64), 0);
        for j in 0..k {
            let last = degree - k + j;
            let drawn = key.below(j as u64, last as u64 + 1) as usize;
            let edge = if self.0[drawn / 64] >> (drawn % 64) & 1 == 1 { last } else { drawn };
            self.0[edge / 64] |= 1 << (edge % 64);
            pick(edge);
        }
    }
}

/// Floyd's algorithm for at most `LANES` picks: returns the picks of [`PickedEdges::subset`] in the first `k` lanes.
///
/// All draws precede all comparisons, so that their arithmetic overlaps. `LANES` is small and constant, so that the
/// compiler unrolls the comparisons and keeps them in registers.
#[inline(always)]
pub(super) fn subset<const LANES: usize>(key: Key, degree: u32, k: usize) -> [u32; LANES] {
    let first = degree - k as u32;
    let mut drawn = [0; LANES];
    for (j, pick) in drawn.iter_mut().enumerate().take(k) {
        *pick = below(key.draw(j as u64), first + j as u32 + 1);
    }
    let mut picks = [0; LANES];
    for j in 0..LANES {
        if j < k {
            let picked = picks[..j].iter().fold(false, |picked, &pick| picked | (pick == drawn[j]));
            picks[j] = if picked { first + j as u32 } else { drawn[j] };
        }
    }
    picks
}

/// `Key::below` of an existing draw for a bound below 2³², without 128-bit products.
#[inline(always)]
fn below(draw: u64, n: u32) -> u32 {
    let (high, low, n) = (draw >> 32, draw & 0xffff_ffff, u64::from(n));
    ((high * n + ((low * n) >> 32)) >> 32) as u32
}
