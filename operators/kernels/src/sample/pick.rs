//! Which in-edges of one node are taken.

use gnnflow_data::rng::Key;

/// How many in-edges a hop takes from each node, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// Every in-edge.
    All,
    /// A uniform subset of `k`, or every in-edge of a node that has at most `k`.
    Uniform {
        /// In-edges taken from a node.
        k: u32,
    },
    /// `k` uniform in-edges, each drawn from all of them; none from a node that has none.
    UniformWithReplacement {
        /// In-edges taken from a node.
        k: u32,
    },
}

impl Fanout {
    /// Reads the fanout of a pipeline file: −1 (any negative number) is all.
    pub fn new(fanout: i64, replace: bool) -> Self {
        match u32::try_from(fanout) {
            Ok(k) if replace => Self::UniformWithReplacement { k },
            Ok(k) => Self::Uniform { k },
            Err(_) if fanout < 0 => Self::All,
            Err(_) => Self::Uniform { k: u32::MAX },
        }
    }
}

/// A way to choose among a node's in-edges, by name: the door for a user's own.
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
    /// The name that a pipeline file calls it by.
    fn name(&self) -> &str;

    /// Appends the sources of the in-edges that it takes of `node` to `out`, and touches nothing already there.
    ///
    /// `neighbors` are the sources of all in-edges, the first of which is row `edge_offset` of the edge columns of
    /// the partition that owns `node`. `fanout` is the hop's, as the pipeline file has it. What is appended must be a
    /// pure function of the arguments: draw only under `key`, which is this node's own.
    fn sample(&self, node: u32, neighbors: &[u32], edge_offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>);
}

/// The built-in `uniform`: [`Fanout::Uniform`], or [`Fanout::All`] when the fanout is negative.
#[derive(Clone, Copy, Debug)]
pub struct Uniform;

/// The built-in `uniform-with-replacement`: [`Fanout::UniformWithReplacement`], or [`Fanout::All`] when the fanout is
/// negative.
#[derive(Clone, Copy, Debug)]
pub struct UniformWithReplacement;

impl Sampler for Uniform {
    fn name(&self) -> &str {
        "uniform"
    }

    fn sample(&self, _node: u32, neighbors: &[u32], _offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>) {
        take(Fanout::new(fanout, false), neighbors, key, out);
    }
}

impl Sampler for UniformWithReplacement {
    fn name(&self) -> &str {
        "uniform-with-replacement"
    }

    fn sample(&self, _node: u32, neighbors: &[u32], _offset: u64, fanout: i64, key: Key, out: &mut Vec<u32>) {
        take(Fanout::new(fanout, true), neighbors, key, out);
    }
}

/// Appends what `fanout` takes of one node, whose key is `key`.
fn take(fanout: Fanout, neighbors: &[u32], key: Key, out: &mut Vec<u32>) {
    match fanout {
        Fanout::UniformWithReplacement { k } if !neighbors.is_empty() => {
            out.extend((0..u64::from(k)).map(|j| neighbors[key.below(j, neighbors.len() as u64) as usize]));
        }
        Fanout::Uniform { k } if (k as usize) < neighbors.len() => {
            let mut taken = Taken::default();
            let degree = neighbors.len();
            taken.subset(key, degree, k as usize, |edge| out.push(neighbors[edge]));
        }
        _ => out.extend_from_slice(neighbors),
    }
}

/// Floyd's algorithm for any number of picks, by a bit per in-edge; reused from node to node.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<u64>);

impl Taken {
    /// Calls `pick` with each of `k` of `0..degree`, in the order that the module's documentation states.
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

/// Floyd's algorithm for at most `LANES` picks: the first `k` lanes of the answer, same picks as [`Taken::subset`].
///
/// All draws are made before any is compared, so that their arithmetic overlaps; the lanes are few and fixed, so
/// that the compiler unrolls the comparisons and keeps them in registers.
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
            let taken = picks[..j].iter().fold(false, |taken, &pick| taken | (pick == drawn[j]));
            picks[j] = if taken { first + j as u32 } else { drawn[j] };
        }
    }
    picks
}

/// `Key::below` for a draw made already and a bound below 2³², without 128-bit products.
#[inline(always)]
fn below(draw: u64, n: u32) -> u32 {
    let (high, low, n) = (draw >> 32, draw & 0xffff_ffff, u64::from(n));
    ((high * n + ((low * n) >> 32)) >> 32) as u32
}
