use std::collections::HashMap;

use gnnflow_data::dataset::split;
use gnnflow_data::dump::Candidates as Given;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Pairs;

use super::metrics::{RankSums, finish};
use super::*;
use crate::evaluate::node_blocks::blocks;
use crate::task::link_prediction::candidates::{self, DrawnLists};
use crate::task::link_prediction::known::Known;

/// Returns rows of 30 nodes with many ties. Nodes 0 to 9 and 20 to 29 are of one type, the others of another.
fn rows() -> (Vec<f32>, Arc<NodeGroups>) {
    let key = Key::new(3, Purpose::Init);
    let rows = (0..30 * 4).map(|i| key.below(i, 3) as f32 - 1.0).collect();
    (rows, Arc::new(NodeGroups::new(&[(0, 0), (10, 1), (20, 0)], 30)))
}

/// Returns edges and their splits; the first 25 are in split `which`.
fn edges(loops: bool, which: u8) -> Vec<(Edge, u8)> {
    let key = Key::new(8, Purpose::Init);
    let edge = |i: u64| Edge {
        head: key.below(4 * i, 30) as u32,
        tail: key.below(4 * i + 1, 30) as u32,
        relation: key.below(4 * i + 2, 2) as u16,
    };
    let split = |i: u64| if i < 25 { which } else { key.below(4 * i + 3, 4) as u8 };
    let all = (0..120).map(|i| (edge(i), split(i)));
    all.filter(|(edge, _)| loops || edge.head != edge.tail).collect()
}

fn pairs(edges: &[Edge]) -> Pairs {
    Pairs {
        heads: edges.iter().map(|edge| edge.head).collect(),
        tails: edges.iter().map(|edge| edge.tail).collect(),
        relations: edges.iter().map(|edge| edge.relation).collect(),
        positives: edges.len(),
        ..Pairs::default()
    }
}

#[test]
fn ranks_equal_those_of_comparing_all_unknown_candidates() {
    let (rows, nodes) = rows();
    let relations = [0.5f32, 1.0, -1.0, 2.0, 1.0, 1.0, 0.25, 1.0];
    let row = |node: u32| &rows[node as usize * 4..][..4];
    let score = |e: Edge| -> f32 {
        (0..4).map(|c| row(e.head)[c] * relations[usize::from(e.relation) * 4 + c] * row(e.tail)[c]).sum()
    };
    let given =
        |edge: &Edge| ((edge.head, edge.tail), (0..30).filter(|n| (n * 7 + edge.head).is_multiple_of(3)).collect());
    for (loops, which) in [(true, split::VAL), (false, split::VAL), (false, split::TEST)] {
        let all = edges(loops, which);
        let ranked: Vec<Edge> = all.iter().map(|edge| edge.0).take(20).collect();
        let mut known = Known::of(ranked.iter(), loops);
        all.iter().for_each(|&(edge, split)| known.add(edge, split));
        let known = known.sorted();
        let key = Key::new(1, Purpose::Negative);
        let by_edge = Given::OfEdges(ranked.iter().map(given).collect());
        let drawn = Candidates::Drawn(DrawnLists::new(12, key));
        for candidates in [Candidates::All, drawn, Candidates::Given(Arc::new(by_edge))] {
            let split = usize::from(which == split::TEST);
            let inputs =
                PassInputs { edges: &ranked, split, known: &known, nodes: &nodes, candidates: &candidates, width: 4 };
            let mut pass = Pass::begin(&inputs);
            pass.set_queries(&pairs(&ranked), &rows, Some(&relations));
            let rows_of = |nodes: &[u32]| nodes.iter().flat_map(|&node| row(node)).copied().collect::<Vec<f32>>();
            let chosen: Vec<Among> = match &candidates {
                Candidates::All => {
                    for range in blocks(&nodes, 0..17).into_iter().chain(blocks(&nodes, 17..30)) {
                        let block: Vec<u32> = range.collect();
                        pass.count(&block, &rows_of(&block));
                    }
                    Vec::new()
                }
                Candidates::Drawn(_) => (0..pass.lists()).map(Among::List).collect(),
                Candidates::Given(_) => vec![Among::Given],
            };
            for among in chosen {
                pass.announce(among).chunks(5).for_each(|block| pass.count(block, &rows_of(block)));
            }
            for (&edge, found) in ranked.iter().zip(pass.finish()) {
                assert_eq!(found.score, score(edge));
                let rank = |with: &dyn Fn(u32) -> Edge, tail: bool, fresh: bool| {
                    let (own, of) = if tail { (edge.tail, edge.head) } else { (edge.head, edge.tail) };
                    let others = match &candidates {
                        Candidates::All => {
                            (0..30).filter(|&node| nodes.group_of(node) == nodes.group_of(own)).collect()
                        }
                        Candidates::Drawn(lists) => {
                            lists.nodes(nodes.group_of(own), lists.list_of(of, edge.relation, tail), &nodes)
                        }
                        Candidates::Given(given) => candidates::of(given, &edge).unwrap().clone(),
                    };
                    let is_known = |node: u32| {
                        let in_split = |&(other, split): &(Edge, u8)| {
                            let held = split == split::TEST || (split == split::VAL && which == split::VAL);
                            other == with(node) && !(fresh && held)
                        };
                        (!loops && node == of) || all.iter().any(in_split)
                    };
                    let counts = |&node: &u32| match candidates {
                        Candidates::Given(_) => node != own,
                        _ => !is_known(node) && node != own,
                    };
                    let scores: Vec<f32> = others.into_iter().filter(counts).map(|node| score(with(node))).collect();
                    let higher = scores.iter().filter(|&&s| s > score(edge)).count() as u64;
                    let equal = scores.iter().filter(|&&s| s == score(edge)).count() as u64;
                    [higher, equal]
                };
                let tail = |tail| Edge { tail, ..edge };
                assert_eq!(found.tails, rank(&tail, true, false), "{edge:?} {candidates:?}");
                let heads = rank(&|head| Edge { head, ..edge }, false, false);
                match candidates {
                    Candidates::Given(_) => assert_eq!(found.heads, None),
                    _ => assert_eq!(found.heads, Some(heads), "{edge:?} {candidates:?}"),
                }
                if candidates.replace_heads() {
                    assert_eq!(found.fresh, rank(&tail, true, true), "{edge:?}");
                }
            }
        }
    }
}

#[test]
fn metrics_equal_their_formulas() {
    let ranked =
        |score, higher: u64, equal| Ranked { score, tails: [higher, equal], heads: Some([0, 0]), fresh: [0; 2] };
    let parts = [vec![ranked(0.0, 0, 0), ranked(0.0, 2, 1)], vec![], vec![ranked(0.0, 19, 0)]];
    let scores = finish(&parts.clone().map(|part| RankSums::new(&part))).unwrap();
    // Ranks 1, 3.5 and 20 of tails, 1 of all heads.
    let expected: HashMap<&str, f64> = HashMap::from([
        ("mrr", (4.0 + 2.0 / 7.0 + 0.05) / 6.0),
        ("hits_at_1", 4.0 / 6.0),
        ("hits_at_3", 4.0 / 6.0),
        ("hits_at_10", 5.0 / 6.0),
        ("mean_rank", 27.5 / 6.0),
    ]);
    assert_eq!(scores.nodes, 3);
    assert!((scores.loss - 2f64.ln()).abs() < 1e-12);
    assert_eq!(scores.metrics.len(), expected.len());
    for (name, value) in scores.metrics {
        assert!((value - expected[name.as_str()]).abs() < 1e-12, "{name} {value}");
    }
    assert!(finish(&[RankSums::new(&[]), RankSums::new(&[])]).is_none());
    // Tails only.
    let tails = parts.map(|part| part.into_iter().map(|ranked| Ranked { heads: None, ..ranked }).collect::<Vec<_>>());
    let scores = finish(&tails.map(|part| RankSums::new(&part))).unwrap();
    assert_eq!(scores.nodes, 3);
    assert!((scores.metrics["mrr"] - (1.0 + 2.0 / 7.0 + 0.05) / 3.0).abs() < 1e-12);
}
