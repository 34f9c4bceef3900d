//! Compares importance sampling (FastGCN) with a naive implementation, and its frequencies with probabilities.

use super::frequencies::{assert_frequencies, count};
use super::per_edge::{ALL, RichGraph};
use super::*;

fn importance(graph: &Graph, pieces: u32) -> Arc<Importance> {
    let nodes = graph.nodes() as u32;
    // Simulates several workers: each adds its rows, and all sum the words.
    let mut sums = vec![0; 2 * nodes as usize];
    for piece in 0..pieces {
        let mut norms = SquaredNorms::new(graph.nodes());
        norms.add(&graph.csc(), nodes * piece / pieces..nodes * (piece + 1) / pieces);
        sums.iter_mut().zip(norms.words(0..nodes as usize)).for_each(|(sum, word)| *sum += word);
    }
    let mut norms = SquaredNorms::new(graph.nodes());
    norms.absorb(0, &sums);
    Arc::new(Importance::new(&norms))
}

/// `P[v, u]`
fn share(graph: &Graph, v: u32, u: u32) -> f64 {
    let row = &graph.indices[graph.indptr[v as usize] as usize..graph.indptr[v as usize + 1] as usize];
    row.iter().filter(|&&source| source == u).count() as f64 / row.len().max(1) as f64
}

fn sorted(graph: &Graph) -> Graph {
    let mut rows: Vec<Vec<u32>> =
        graph.indptr.windows(2).map(|ends| graph.indices[ends[0] as usize..ends[1] as usize].to_vec()).collect();
    rows.iter_mut().for_each(|row| row.sort_unstable());
    Graph::new(&rows)
}

#[test]
fn probabilities_are_squared_column_norms_for_any_number_of_workers() {
    for_graphs(|graph, _, _| {
        if graph.nodes() > 400 {
            return;
        }
        let (graph, nodes) = (sorted(graph), graph.nodes() as u32);
        let norms: Vec<f64> = (0..nodes).map(|u| (0..nodes).map(|v| share(&graph, v, u).powi(2)).sum()).collect();
        let total: f64 = norms.iter().sum();
        let (one, three) = (importance(&graph, 1), importance(&graph, 3));
        for (u, norm) in norms.iter().enumerate() {
            assert_eq!(one.probability(u as u32), three.probability(u as u32));
            assert!((one.probability(u as u32) - norm / total.max(1e-300)).abs() < 1e-9, "{u}");
        }
    });
}

#[test]
fn hop_has_the_edges_from_drawn_sources_and_their_weights() {
    for_graphs(|graph, seeds, key| {
        if graph.nodes() > 400 {
            return;
        }
        let rich = RichGraph::new(sorted(graph), key);
        let importance = importance(&rich.graph, 2);
        for draws in [1, 7, 60] {
            let strategy = Strategy::Importance(draws, importance.clone());
            let mut list = seeds.to_vec();
            let mut compactor = Compactor::new(graph.nodes());
            compactor.start(&list);
            let block = choose_hop(&rich.csc(), &mut list, &strategy, ALL, key, &mut compactor);
            let mut times = vec![0u32; graph.nodes() as usize];
            if !rich.graph.indices.is_empty() {
                let draw = |j| {
                    let x = key.below(j, importance.total());
                    let mut end = 0;
                    (0..graph.nodes() as u32).find(|&u| {
                        end += range_of(&importance, u);
                        x < end
                    })
                };
                (0..u64::from(draws)).for_each(|j| times[draw(j).unwrap() as usize] += 1);
            }
            let (weights, ids) = (block.edge_weights().unwrap(), block.edge_ids().unwrap());
            for (dst, &v) in seeds.iter().enumerate() {
                let expected: Vec<usize> =
                    rich.row(v).filter(|&edge| times[rich.graph.indices[edge] as usize] > 0).collect();
                let edges = block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize;
                assert!(ids[edges.clone()].iter().map(|&id| id as usize).eq(expected.iter().copied()));
                for (e, &edge) in edges.zip(&expected) {
                    let u = rich.graph.indices[edge];
                    assert_eq!(list[block.indices()[e] as usize], u);
                    let degree = rich.row(v).len() as f64;
                    let weight = f64::from(times[u as usize]) / (f64::from(draws) * importance.probability(u) * degree);
                    assert!((f64::from(weights[e]) / weight - 1.0).abs() < 1e-6);
                }
            }
        }
    });
}

/// The length of the range of `u`.
fn range_of(importance: &Importance, u: u32) -> u64 {
    (importance.probability(u) * importance.total() as f64).round() as u64
}

#[test]
fn sources_are_drawn_independently_in_proportion_to_column_norms() {
    // Node 0 has in-edges from 2, 3; node 1 from 3, 4, 5, 5: P² sums to 1/4, 1/4 + 1/16, 1/16, 1/4 over the graph.
    let graph = Graph::new(&[vec![2, 3], vec![3, 4, 5, 5], vec![], vec![], vec![], vec![]]);
    let importance = importance(&graph, 1);
    let norms = [(2u32, 0.25), (3, 0.3125), (4, 0.0625), (5, 0.25)];
    let total: f64 = norms.iter().map(|(_, norm)| norm).sum();
    let mut means = [0.0; 2];
    let trials = 30_000;
    let counts = count((0..trials).map(|trial| {
        let key = Key::new(33, Purpose::Sample).fold(trial);
        let strategy = Strategy::Importance(2, importance.clone());
        let (mut list, mut compactor) = (vec![0, 1], Compactor::new(6));
        compactor.start(&list);
        let columns = Columns { weights: true, ..Columns::default() };
        let block = choose_hop(&graph.csc(), &mut list, &strategy, columns, key, &mut compactor);
        // The weighted sum of any function of sources is unbiased; here the function is the source's id.
        for (dst, mean) in means.iter_mut().enumerate() {
            let edges = block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize;
            *mean += edges
                .map(|e| f64::from(block.edge_weights().unwrap()[e]) * f64::from(list[block.indices()[e] as usize]))
                .sum::<f64>()
                / trials as f64;
        }
        let mut sources = list.split_off(2);
        sources.sort_unstable();
        sources
    }));
    let mut shares = HashMap::new();
    for (a, p) in norms {
        for (b, q) in norms {
            let mut outcome = vec![a.min(b), a.max(b)];
            outcome.dedup();
            *shares.entry(outcome).or_default() += p / total * q / total;
        }
    }
    assert_frequencies(&counts, &shares, "two draws");
    assert!((means[0] - 2.5).abs() < 0.05 && (means[1] - 4.25).abs() < 0.1, "{means:?}");
}
