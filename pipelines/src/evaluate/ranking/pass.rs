//! Counts of higher and equal scores, on the compute thread.
//!
//! Edges that share an end and the relation share a query. The score of a candidate is computed once per query, and compared with the score of
//! each edge. Queries that share their candidates are scored together, tile by tile, as a product of two matrices.

use std::collections::HashMap;
use std::sync::Arc;

use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pair_scores::{dot, higher_and_equal, query};
use gnnflow_kernels::pairs::{Edge, Pairs};
use gnnflow_kernels::score_matrix::{Interleaved, QUERIES, ROWS, scores};
use rayon::prelude::*;

use super::Ranked;
use crate::evaluate::fetch_results::distinct;
use crate::task::link_prediction::candidates::{Candidates, of};
use crate::task::link_prediction::known::{Known, KnownEnds};

/// Groups of rows per tile, which stays in the cache.
const TILE: usize = 4;
/// Queries per task.
const TASK: usize = 64;

/// The ranking of some edges.
#[derive(Default)]
pub(crate) struct Pass {
    width: usize,
    nodes: Arc<NodeGroups>,
    /// The drawn candidates, distinct and ascending.
    lists: Vec<Vec<u32>>,
    /// The candidates whose rows are next, unless these are all nodes.
    next: Option<Among>,
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

/// The candidates of a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Among {
    /// All nodes of a group.
    Group(usize),
    /// A list of drawn nodes.
    List(usize),
    /// The nodes in [`Query::given`].
    Given,
}

/// A query, and the position of an edge among its edges.
#[derive(Clone, Copy)]
struct QuerySlot {
    query: u32,
    slot: u32,
}

/// The search for the missing end of edges, given the other end and the relation.
struct Query {
    among: Among,
    /// The candidates that the user gives, ascending.
    given: Vec<u32>,
    /// Known ends that are candidates: those of another split (of earlier splits, for test edges), then those of this split only.
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
        let (mut queries, mut lists): (Vec<Query>, Vec<Vec<u32>>) = Default::default();
        let (mut query_of, mut place_of) = (HashMap::new(), HashMap::new());
        let mut add = |edge: &Edge, tail: bool| {
            let (from, to) = if tail { (edge.head, edge.tail) } else { (edge.tail, edge.head) };
            let group = nodes.group_of(to);
            let among = match candidates {
                Candidates::All => Among::Group(group),
                Candidates::Drawn(drawn) => {
                    let list = drawn.list_of(from, edge.relation, tail);
                    Among::List(*place_of.entry((group, list)).or_insert_with(|| {
                        lists.push(drawn.nodes(group, list, nodes));
                        lists.len() - 1
                    }))
                }
                Candidates::Given(_) => Among::Given,
            };
            // Ends of several groups have a query each, and so has an edge with given candidates.
            let own = (among == Among::Given).then_some(to);
            let query = *query_of.entry((tail, from, edge.relation, group, own)).or_insert_with(|| {
                let known: &KnownEnds = if tail { known.tails(edge) } else { known.heads(edge) };
                queries.push(Query::new(edge, among, (candidates, known, *split), &lists));
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
        Self { width: *width, nodes: Arc::clone(nodes), lists, next: None, queries, vectors: Vec::new(), edges }
    }

    /// Returns the number of lists of drawn candidates.
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// Announces that the next rows are those of drawn or of given candidates, and returns the candidates, distinct and ascending.
    pub(crate) fn announce(&mut self, among: Among) -> Vec<u32> {
        self.next = Some(among);
        match among {
            Among::Group(_) => Vec::new(),
            Among::List(list) => self.lists[list].clone(),
            Among::Given => distinct(self.queries.iter().flat_map(|query| query.given.iter().copied())),
        }
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

    /// Counts the scores of `nodes`, ascending, with rows `rows`, that are higher than or equal to those of the edges. The nodes are
    /// of the announced candidates, or consecutive nodes of one group.
    pub(crate) fn count(&mut self, nodes: &[u32], rows: &[f32]) {
        let Some(&start) = nodes.first() else { return };
        let among = self.next.unwrap_or_else(|| Among::Group(self.nodes.group_of(start)));
        let width = self.width;
        let block = Block { nodes, rows, width };
        let columns = Interleaved::<ROWS>::new(if among == Among::Given { &[] } else { rows }, width);
        let tasks = self.queries.par_chunks_mut(TASK).zip(self.vectors.par_chunks(TASK * width));
        tasks.for_each(|(queries, vectors)| {
            let mut queries: Vec<(&mut Query, &[f32])> = queries.iter_mut().zip(vectors.chunks_exact(width)).collect();
            queries.retain(|(query, _)| query.among == among);
            let mut some = Vec::new();
            if among == Among::Given {
                for (Query { given, own, counts, .. }, vector) in queries {
                    block.score_some(vector, given, &mut some);
                    tally(&some, own, counts, |counts| &mut counts.all);
                }
                return;
            }
            let vectors: Vec<f32> = queries.iter().flat_map(|(_, vector)| *vector).copied().collect();
            let vectors = Interleaved::<QUERIES>::new(&vectors, width);
            let mut of_tile = [0.0; QUERIES * TILE * ROWS];
            for (nodes, tile) in nodes.chunks(TILE * ROWS).zip(columns.groups(TILE)) {
                let count = tile.len() / width * ROWS;
                let of_tile = &mut of_tile[..QUERIES * count];
                for (queries, vectors) in queries.chunks_mut(QUERIES).zip(vectors.groups(1)) {
                    scores(vectors, tile, of_tile);
                    for ((Query { own, counts, .. }, _), of_query) in
                        queries.iter_mut().zip(of_tile.chunks_exact(count))
                    {
                        tally(&of_query[..nodes.len()], own, counts, |counts| &mut counts.all);
                    }
                }
            }
            for (Query { known, own, counts, .. }, vector) in &mut queries {
                for (which, known) in known.iter().enumerate() {
                    block.score_some(vector, known, &mut some);
                    tally(&some, own, counts, |counts| &mut counts.known[which]);
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

impl Query {
    /// Begins the query of an end of `edge`, with the known ends of a split.
    fn new(edge: &Edge, among: Among, known: (&Candidates, &KnownEnds, usize), lists: &[Vec<u32>]) -> Self {
        let (candidates, known, split) = known;
        let (mut given, mut divided) = (Vec::new(), [Vec::new(), Vec::new()]);
        match candidates {
            // All count, but the edge's own tail.
            Candidates::Given(table) => {
                given.extend(of(table, edge).into_iter().flatten().filter(|&&node| node != edge.tail));
                given.sort_unstable();
            }
            Candidates::All | Candidates::Drawn(_) => divided = known.divided(split),
        }
        if let Among::List(list) = among {
            divided.iter_mut().for_each(|known| known.retain(|node| lists[list].binary_search(node).is_ok()));
        }
        // Most queries are of one edge.
        Self { among, given, known: divided, own: Vec::with_capacity(1), counts: Vec::with_capacity(1) }
    }
}

/// Rows of some candidates.
struct Block<'a> {
    /// Ascending.
    nodes: &'a [u32],
    rows: &'a [f32],
    width: usize,
}

impl Block<'_> {
    /// Computes the scores of those of `some`, ascending, that are in the block.
    fn score_some(&self, vector: &[f32], some: &[u32], scores: &mut Vec<f32>) {
        scores.clear();
        let (Some(first), Some(last)) = (self.nodes.first(), self.nodes.last()) else { return };
        let some = &some[some.partition_point(|node| node < first)..some.partition_point(|node| node <= last)];
        let places = some.iter().filter_map(|node| self.nodes.binary_search(node).ok());
        scores.extend(places.map(|at| dot(vector, &self.rows[at * self.width..(at + 1) * self.width])));
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
