//! What is compared with what, on the compute thread.
//!
//! Edges that share an end and the relation ask the same: which node, beside this one? A node's score is computed once for all of
//! them, and then compared with each one's own.

use std::collections::HashMap;
use std::sync::Arc;

use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pair_scores::{dot, higher_and_equal, query, score_rows};
use gnnflow_kernels::pairs::{Edge, Pairs};
use rayon::prelude::*;

use super::Ranked;
use crate::evaluate::rows_of::distinct;
use crate::task::link_prediction::candidates::Candidates;
use crate::task::link_prediction::known::{Known, KnownEnds};

/// Rows that are compared while they are near, and questions that are asked of them by one task.
const TILE: usize = 64;

/// What is being ranked.
#[derive(Default)]
pub(crate) struct Pass {
    width: usize,
    nodes: Arc<NodeGroups>,
    questions: Vec<Question>,
    /// What nodes are compared with, `width` numbers a question.
    asked: Vec<f32>,
    places: Vec<Places>,
}

/// Where an edge asks.
#[derive(Clone, Copy)]
struct Places {
    tail: Place,
    /// None where only tails are looked for.
    head: Option<Place>,
    /// Whether its own tail is among those that no other split has.
    fresh: bool,
}

/// A question, and which of those who ask it.
#[derive(Clone, Copy)]
struct Place {
    question: u32,
    slot: u32,
}

/// Which node, beside one end and with a relation?
struct Question {
    /// The group whose nodes may be the answer.
    group: usize,
    /// Those that may, where not all of the group; ascending.
    among: Option<Vec<u32>>,
    /// Answers that are known: those that another split has (the earlier ones, for test edges), then those of this split alone.
    known: [Vec<u32>; 2],
    /// The score of each edge that asks.
    own: Vec<f32>,
    counts: Vec<Counts>,
}

/// How many score higher than an edge's own end, and how many the same.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Of all that may be the answer.
    all: [u64; 2],
    /// Of those of them that are known: by [`Question::known`].
    known: [[u64; 2]; 2],
}

/// A pass over some edges of one split: what it needs to know of them.
pub(crate) struct Asking<'a> {
    pub(crate) edges: &'a [Edge],
    /// Of validation (0) or test (1).
    pub(crate) split: usize,
    pub(crate) known: &'a Known,
    pub(crate) nodes: &'a Arc<NodeGroups>,
    pub(crate) candidates: &'a Candidates,
    pub(crate) width: usize,
}

impl Pass {
    pub(crate) fn begin(asking: &Asking<'_>) -> Self {
        let Asking { edges, split, known, nodes, candidates, width } = asking;
        let mut questions: Vec<Question> = Vec::new();
        let mut asked_before: HashMap<(bool, u32, u16), u32> = HashMap::new();
        let mut place = |edge: &Edge, tail: bool| {
            let (from, to) = if tail { (edge.head, edge.tail) } else { (edge.tail, edge.head) };
            let (key, group) = ((tail, from, edge.relation), nodes.group_of(to));
            let known: &KnownEnds = if tail { known.tails(edge) } else { known.heads(edge) };
            let among = candidates.of(edge, tail, nodes);
            // An edge that has candidates asks alone; and ends of several types are looked for among the nodes of each.
            let shared = asked_before.get(&key).copied();
            let shared = shared.filter(|&q| among.is_none() && questions[q as usize].group == group);
            let question = shared.unwrap_or_else(|| {
                let (own, counts, mut among) = (Vec::new(), Vec::new(), among);
                if let Some(among) = &mut among {
                    among.retain(|&node| if candidates.are_given() { node != to } else { !known.has(node) });
                    among.sort_unstable();
                }
                let known = if among.is_some() { Default::default() } else { known.divided(*split) };
                asked_before.insert(key, questions.len() as u32);
                questions.push(Question { group, among, known, own, counts });
                questions.len() as u32 - 1
            });
            let Question { own, counts, known, .. } = &mut questions[question as usize];
            own.push(0.0);
            counts.push(Counts::default());
            (Place { question, slot: own.len() as u32 - 1 }, known[1].binary_search(&to).is_ok())
        };
        let both = candidates.replace_heads();
        let places = edges.iter().map(|edge| {
            let (tail, fresh) = place(edge, true);
            Places { tail, head: both.then(|| place(edge, false).0), fresh }
        });
        let places = places.collect();
        Self { width: *width, nodes: Arc::clone(nodes), questions, asked: Vec::new(), places }
    }

    /// The nodes that are to be compared, where not all are; distinct, ascending.
    pub(crate) fn among(&self) -> Vec<u32> {
        distinct(self.questions.iter().flat_map(|q| q.among.iter().flatten().copied()))
    }

    /// Finds what the ends are compared with, and what they score.
    pub(crate) fn ask(&mut self, pairs: &Pairs, rows: &[f32], relations: Option<&[f32]>) {
        let width = self.width;
        let at = |row: usize| row * width..(row + 1) * width;
        self.asked = vec![0.0; self.questions.len() * width];
        for (i, &Places { tail, head, .. }) in self.places.iter().enumerate() {
            let relation = relations.map(|relations| &relations[at(usize::from(pairs.relations[i]))]);
            let [first, last] = [pairs.heads[i], pairs.tails[i]].map(|place| &rows[at(place as usize)]);
            for (place, from, to) in std::iter::once((tail, first, last)).chain(head.map(|head| (head, last, first))) {
                let asked = &mut self.asked[at(place.question as usize)];
                if place.slot == 0 {
                    query(from, relation, asked);
                }
                self.questions[place.question as usize].own[place.slot as usize] = dot(asked, to);
            }
        }
    }

    /// Counts which of `nodes`, ascending, whose `rows` these are, score no less than the edges' own ends. All of them are of one
    /// group and follow each other, but where nodes were chosen.
    pub(crate) fn count(&mut self, nodes: &[u32], rows: &[f32]) {
        let Some(&start) = nodes.first() else { return };
        let (width, group) = (self.width, self.nodes.group_of(start));
        let row = |at: usize| &rows[at * width..(at + 1) * width];
        let tasks = self.questions.par_chunks_mut(TILE).zip(self.asked.par_chunks(TILE * width));
        tasks.for_each(|(questions, asked)| {
            let mut scores = Vec::new();
            for (question, asked) in questions.iter_mut().zip(asked.chunks_exact(width)) {
                let Question { among: Some(among), own, counts, .. } = question else { continue };
                let score = |node: &u32| dot(asked, row(nodes.partition_point(|other| other < node)));
                scores.clear();
                scores.extend(among.iter().map(score));
                tally(&scores, own, counts, |counts| &mut counts.all);
            }
            let mut of_group: Vec<(&mut Question, &[f32])> =
                questions.iter_mut().zip(asked.chunks_exact(width)).collect();
            of_group.retain(|(question, _)| question.among.is_none() && question.group == group);
            for tile in rows.chunks(TILE * width) {
                scores.resize(tile.len() / width, 0.0);
                for (Question { own, counts, .. }, asked) in &mut of_group {
                    score_rows(asked, tile, &mut scores);
                    tally(&scores, own, counts, |counts| &mut counts.all);
                }
            }
            let end = nodes[nodes.len() - 1];
            for (Question { known, own, counts, .. }, asked) in &mut of_group {
                for (which, known) in known.iter().enumerate() {
                    let first = known.partition_point(|&node| node < start);
                    let here = known[first..].iter().take_while(|&&node| node <= end);
                    scores.clear();
                    scores.extend(here.map(|&node| dot(asked, row((node - start) as usize))));
                    tally(&scores, own, counts, |counts| &mut counts.known[which]);
                }
            }
        });
    }

    /// The ranks of the edges, in order.
    pub(crate) fn finish(self) -> Vec<Ranked> {
        let at = |place: Place| {
            let question = &self.questions[place.question as usize];
            (question.own[place.slot as usize], question.counts[place.slot as usize])
        };
        let filtered = |Counts { all, known: [seen, held] }: Counts| minus(minus(all, seen), held);
        let each = |places: &Places| {
            let (score, tails) = at(places.tail);
            // The edge's own tail is not known from another split: it was counted, and is no better than itself.
            let itself = if places.fresh { higher_and_equal(&[score], score) } else { [0; 2] };
            let fresh = minus(minus(tails.all, tails.known[0]), itself);
            Ranked { score, tails: filtered(tails), heads: places.head.map(|head| filtered(at(head).1)), fresh }
        };
        self.places.iter().map(each).collect()
    }
}

/// Adds to the counts of each of `own` how many of `scores` are higher, and how many the same.
fn tally(scores: &[f32], own: &[f32], counts: &mut [Counts], of: impl Fn(&mut Counts) -> &mut [u64; 2]) {
    for (own, counts) in own.iter().zip(counts) {
        let (found, sum) = (higher_and_equal(scores, *own), of(counts));
        (0..2).for_each(|i| sum[i] += found[i]);
    }
}

fn minus(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}
