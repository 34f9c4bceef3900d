//! Compares layer-wise sampling (LADIES) with a naive implementation, and its frequencies with probabilities.

use super::frequencies::{assert_frequencies, count};
use super::per_edge::{ALL, RichGraph};
use super::*;

/// The block of a hop, exactly as the documentation of `assemble_layer` defines it; rows are sorted.
fn naive_layer(rich: &RichGraph, list: &mut Vec<u32>, nodes: usize, key: Key) -> Block {
    let dst = list.clone();
    let share = |v: u32, u: u32| {
        let row = &rich.graph.indices[rich.row(v)];
        row.iter().filter(|&&source| source == u).count() as f64 / row.len() as f64
    };
    let mut sources: Vec<u32> = vec![];
    for &v in &dst {
        for &u in &rich.graph.indices[rich.row(v)] {
            if !sources.contains(&u) {
                sources.push(u);
            }
        }
    }
    let p = |u: u32| {
        let shares = dst.iter().map(|&v| share(v, u)).filter(|&share| share > 0.0);
        shares.map(|share| share * share).fold(0.0, |sum, square| sum + square)
    };
    let norms: Vec<f64> = sources.iter().map(|&u| p(u)).collect();
    let all = sources.len() <= nodes;
    let mut chosen: Vec<(u32, f64)> = vec![];
    let mut tree = crate::sample::sum_tree::SumTree::default();
    tree.fill(norms.iter().copied());
    for j in 0..if all { 0 } else { nodes as u64 } {
        let found = tree.find(key.unit(j));
        tree.remove(found);
        chosen.push((sources[found], norms[found]));
    }
    let (mut indptr, mut indices, mut weights) = (vec![0], vec![], vec![]);
    for &v in &dst {
        let scale = |u: u32| match chosen.iter().find(|(source, _)| *source == u) {
            _ if all => 1.0,
            Some((_, norm)) => 1.0 / norm,
            None => 0.0,
        };
        let chosen_sources = || rich.graph.indices[rich.row(v)].iter().copied().filter(|&u| scale(u) > 0.0);
        let sum: f64 = chosen_sources().map(scale).sum();
        for u in chosen_sources() {
            weights.push((scale(u) / sum) as f32);
            let place = list.iter().position(|&node| node == u).unwrap_or_else(|| {
                list.push(u);
                list.len() - 1
            });
            indices.push(place as u32);
        }
        indptr.push(indices.len() as u32);
    }
    Block::new(dst.len() as u32, list.len() as u32, indptr, indices).with_edge_weights(weights)
}

fn layer(rich: &RichGraph, list: &mut Vec<u32>, nodes: u32, columns: Columns, key: Key) -> Block {
    let mut samples = Samples::new(columns);
    choose_neighbors(&rich.csc(), list, None, &Strategy::Layer(nodes), key, &mut samples);
    let mut replies = Replies::new(1, rich.graph.nodes());
    replies.push_edges(0, &samples.counts, Edges { sources: &samples.neighbors, columns: samples.columns() }).unwrap();
    let mut compactor = Compactor::new(rich.graph.nodes());
    compactor.start(list);
    assemble_layer(list, |_| replies.next_edges(0), columns, nodes, key, &mut compactor)
}

#[test]
fn layer_equals_the_naive_implementation() {
    for_graphs(|graph, seeds, key| {
        if graph.nodes() > 400 {
            return;
        }
        let mut rows: Vec<Vec<u32>> =
            graph.indptr.windows(2).map(|ends| graph.indices[ends[0] as usize..ends[1] as usize].to_vec()).collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        let rich = RichGraph::new(Graph::new(&rows), key);
        for nodes in [0, 1, 5, 20, 1000] {
            let (mut list, mut expected_list) =
                (seeds[..seeds.len().min(20)].to_vec(), seeds[..seeds.len().min(20)].to_vec());
            let expected = naive_layer(&rich, &mut expected_list, nodes, key);
            let mut list_with_columns = list.clone();
            let block = layer(&rich, &mut list, nodes as u32, Columns::default(), key);
            assert!(block == expected && list == expected_list, "{nodes} of {}", graph.nodes());
            let with = layer(&rich, &mut list_with_columns, nodes as u32, ALL, key);
            assert_eq!((with.indices(), with.edge_weights()), (block.indices(), block.edge_weights()));
            let sources = with.edge_ids().unwrap().iter().map(|&id| rich.graph.indices[id as usize]);
            assert!(sources.eq(with.indices().iter().map(|&place| list[place as usize])));
        }
    });
}

#[test]
fn layer_sources_are_drawn_in_proportion_to_column_norms() {
    // Node 0 has in-edges from 2, 3; node 1 from 3, 4, 5, 5: P² sums to 1/4, 1/4 + 1/16, 1/16, 1/4.
    let graph = Graph::new(&[vec![2, 3], vec![3, 4, 5, 5], vec![], vec![], vec![], vec![]]);
    let rich = RichGraph::new(graph, Key::new(1, Purpose::Sample));
    let norms = [(2, 0.25), (3, 0.3125), (4, 0.0625), (5, 0.25)];
    let total: f64 = norms.iter().map(|(_, norm)| norm).sum();
    let counts = count((0..30_000).map(|trial| {
        let mut list = vec![0, 1];
        let block = layer(&rich, &mut list, 2, Columns::default(), Key::new(31, Purpose::Sample).fold(trial));
        for dst in 0..2 {
            let edges = block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize;
            let sum: f32 = block.edge_weights().unwrap()[edges.clone()].iter().sum();
            assert!(edges.is_empty() || (sum - 1.0).abs() < 1e-6);
        }
        let mut sources = list.split_off(2);
        sources.sort_unstable();
        sources
    }));
    let mut shares = HashMap::new();
    for (a, p) in norms {
        for (b, q) in norms.into_iter().filter(|(b, _)| *b != a) {
            *shares.entry(vec![a.min(b), a.max(b)]).or_default() += p / total * q / (total - p);
        }
    }
    assert_frequencies(&counts, &shares, "two of four");
}
