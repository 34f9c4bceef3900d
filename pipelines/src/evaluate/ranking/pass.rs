//! Counts of higher and equal scores, on the compute thread.
//!
//! Edges that share an end and the relation share a query. The score of a candidate is computed once per query, and compared with the score of
//! each edge.

use std::collections::HashMap;
use std::sync::Arc;

use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pair_scores::{dot, higher_and_equal, query, score_rows};
use gnnflow_kernels::pairs::{Edge, Pairs};
use rayon::prelude::*;

use super::Ranked;
use crate::evaluate::fetch_results::distinct;
use crate::task::link_prediction::candidates::Candidates;
use crate::task::link_prediction::known::{Known, KnownEnds};

/// Rows per tile, which stays in the cache, and queries per task.
const TILE: usize = 64;

/// The ranking of some edges.
#[derive(Default)]
pub(crate) struct Pass {
    width: usize,
    nodes: Arc<NodeGroups>,
    queries: Vec<Query>,
    /// Query vectors, `[queries, width]`.
    vectors: Vec<f32>,
    /// By edge.
    edges: Vec<EdgeQueries>,
}

/// The queries of an edge.
#[derive(Clone, Copy)]
struct EdgeQueries {
    tail: QuerySlot,
    /// `None` if only tails are ranked.
    head: Option<QuerySlot>,
    /// Whether the tail is known from this split only.
    fresh: bool,
}

/// A query, and the position of an edge among its edges.
#[derive(Clone, Copy)]
struct QuerySlot {
    query: u32,
    slot: u32,
}

/// The search for the missing end of edges, given the other end and the relation.
struct Query {
    /// The group of the candidates.
    group: usize,
    /// The candidates, ascending, if these are not the whole group.
    candidates: Option<Vec<u32>>,
    /// Known ends: those of another split (of earlier splits, for test edges), then those of this split only.
    known: [Vec<u32>; 2],
    /// The score of each edge.
    own: Vec<f32>,
    counts: Vec<Counts>,
}

/// The numbers `[higher, equal]` of ends with scores higher than, and equal to, that of an edge.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Of all candidates.
    all: [u64; 2],
    /// Of known candidates, by [`Query::known`].
    known: [[u64; 2]; 2],
}

/// The inputs of a pass over some edges of one split.
pub(crate) struct PassInputs<'a> {
    pub(crate) edges: &'a [Edge],
    /// Validation (0) or test (1).
    pub(crate) split: usize,
    pub(crate) known: &'a Known,
    pub(crate) nodes: &'a Arc<NodeGroups>,
    pub(crate) candidates: &'a Candidates,
    pub(crate) width: usize,
}

impl Pass {
    /// Collects the queries of the edges.
    pub(crate) fn begin(inputs: &PassInputs<'_>) -> Self {
        let PassInputs { edges, split, known, nodes, candidates, width } = inputs;
        let mut queries: Vec<Query> = Vec::new();
        let mut query_of: HashMap<(bool, u32, u16), u32> = HashMap::new();
        let mut add = |edge: &Edge, tail: bool| {
            let (from, to) = if tail { (edge.head, edge.tail) } else { (edge.tail, edge.head) };
            let (key, group) = ((tail, from, edge.relation), nodes.group_of(to));
            let known: &KnownEnds = if tail { known.tails(edge) } else { known.heads(edge) };
            let chosen = candidates.of(edge, tail, nodes);
            // An edge with chosen candidates has its own query. Ends of several groups have a query each.
            let shared = query_of.get(&key).copied();
            let shared = shared.filter(|&q| chosen.is_none() && queries[q as usize].group == group);
            let query = shared.unwrap_or_else(|| {
                let (own, counts, mut chosen) = (Vec::new(), Vec::new(), chosen);
                if let Some(chosen) = &mut chosen {
                    chosen.retain(|&node| if candidates.are_given() { node != to } else { !known.has(node) });
                    chosen.sort_unstable();
                }
                let known = if chosen.is_some() { Default::default() } else { known.divided(*split) };
                query_of.insert(key, queries.len() as u32);
                queries.push(Query { group, candidates: chosen, known, own, counts });
                queries.len() as u32 - 1
            });
            let Query { own, counts, known, .. } = &mut queries[query as usize];
            own.push(0.0);
            counts.push(Counts::default());
            (QuerySlot { query, slot: own.len() as u32 - 1 }, known[1].binary_search(&to).is_ok())
        };
        let both = candidates.replace_heads();
        let edges = edges.iter().map(|edge| {
            let (tail, fresh) = add(edge, true);
            EdgeQueries { tail, head: both.then(|| add(edge, false).0), fresh }
        });
        let edges = edges.collect();
        Self { width: *width, nodes: Arc::clone(nodes), queries, vectors: Vec::new(), edges }
    }

    /// Returns the chosen candidates of all queries, distinct and ascending.
    pub(crate) fn candidates(&self) -> Vec<u32> {
        distinct(self.queries.iter().flat_map(|query| query.candidates.iter().flatten().copied()))
    }

    /// Computes the query vectors and the scores of the edges, from the rows of their ends.
    pub(crate) fn set_queries(&mut self, pairs: &Pairs, rows: &[f32], relations: Option<&[f32]>) {
        let width = self.width;
        let at = |row: usize| row * width..(row + 1) * width;
        self.vectors = vec![0.0; self.queries.len() * width];
        for (i, &EdgeQueries { tail, head, .. }) in self.edges.iter().enumerate() {
            let relation = relations.map(|relations| &relations[at(usize::from(pairs.relations[i]))]);
            let [first, last] = [pairs.heads[i], pairs.tails[i]].map(|place| &rows[at(place as usize)]);
            for (place, from, to) in std::iter::once((tail, first, last)).chain(head.map(|head| (head, last, first))) {
                let vector = &mut self.vectors[at(place.query as usize)];
                if place.slot == 0 {
                    query(from, relation, vector);
                }
                self.queries[place.query as usize].own[place.slot as usize] = dot(vector, to);
            }
        }
    }

    /// Counts the scores of `nodes`, ascending, with rows `rows`, that are higher than or equal to those of the edges. The nodes are chosen
    /// candidates, or consecutive nodes of one group.
    pub(crate) fn count(&mut self, nodes: &[u32], rows: &[f32]) {
        let Some(&start) = nodes.first() else { return };
        let (width, group) = (self.width, self.nodes.group_of(start));
        let row = |at: usize| &rows[at * width..(at + 1) * width];
        let tasks = self.queries.par_chunks_mut(TILE).zip(self.vectors.par_chunks(TILE * width));
        tasks.for_each(|(queries, vectors)| {
            let mut scores = Vec::new();
            for (query, vector) in queries.iter_mut().zip(vectors.chunks_exact(width)) {
                let Query { candidates: Some(candidates), own, counts, .. } = query else { continue };
                let score = |node: &u32| dot(vector, row(nodes.partition_point(|other| other < node)));
                scores.clear();
                scores.extend(candidates.iter().map(score));
                tally(&scores, own, counts, |counts| &mut counts.all);
            }
            let mut of_group: Vec<(&mut Query, &[f32])> = queries.iter_mut().zip(vectors.chunks_exact(width)).collect();
            of_group.retain(|(query, _)| query.candidates.is_none() && query.group == group);
            for tile in rows.chunks(TILE * width) {
                scores.resize(tile.len() / width, 0.0);
                for (Query { own, counts, .. }, vector) in &mut of_group {
                    score_rows(vector, tile, &mut scores);
                    tally(&scores, own, counts, |counts| &mut counts.all);
                }
            }
            let end = nodes[nodes.len() - 1];
            for (Query { known, own, counts, .. }, vector) in &mut of_group {
                for (which, known) in known.iter().enumerate() {
                    let first = known.partition_point(|&node| node < start);
                    let here = known[first..].iter().take_while(|&&node| node <= end);
                    scores.clear();
                    scores.extend(here.map(|&node| dot(vector, row((node - start) as usize))));
                    tally(&scores, own, counts, |counts| &mut counts.known[which]);
                }
            }
        });
    }

    /// Returns the results of the edges, in order.
    pub(crate) fn finish(self) -> Vec<Ranked> {
        let at = |place: QuerySlot| {
            let query = &self.queries[place.query as usize];
            (query.own[place.slot as usize], query.counts[place.slot as usize])
        };
        let filtered = |Counts { all, known: [other, this] }: Counts| minus(minus(all, other), this);
        let each = |edge: &EdgeQueries| {
            let (score, tails) = at(edge.tail);
            // A tail that is not known from another split was counted itself.
            let itself = if edge.fresh { higher_and_equal(&[score], score) } else { [0; 2] };
            let fresh = minus(minus(tails.all, tails.known[0]), itself);
            Ranked { score, tails: filtered(tails), heads: edge.head.map(|head| filtered(at(head).1)), fresh }
        };
        self.edges.iter().map(each).collect()
    }
}

/// Adds the numbers of `scores` that are higher than, and equal to, each of `own` to its counts.
fn tally(scores: &[f32], own: &[f32], counts: &mut [Counts], of: impl Fn(&mut Counts) -> &mut [u64; 2]) {
    for (own, counts) in own.iter().zip(counts) {
        let (found, sum) = (higher_and_equal(scores, *own), of(counts));
        (0..2).for_each(|i| sum[i] += found[i]);
    }
}

fn minus(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}
