//! Walks on one worker and on several, compared with a naive implementation, and the frequencies of steps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};

use gnnflow_data::rng::Purpose;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::ToStream;

use super::*;
use crate::testing::{Adjacency, book, chi_square_limit, edge, local, random_graph};
use gnnflow_kernels::sample::{Before, biased_step};

/// The edges that a worker holds, and that a walk sees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edges {
    Partitioned,
    Replicated,
    /// A walk sees in-edges of its own partition's nodes only.
    PartitionViews,
}

fn run(graph: &Adjacency, walk: Walk, length: u32, workers: usize, edges: Edges) -> Vec<Walks> {
    let graph = graph.clone();
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    timely::execute(timely::Config::process(workers), move |worker| {
        let (index, send) = (worker.index(), send.lock().unwrap().clone());
        let local = local(&graph, &book(graph.len() as u32, 4), workers, index, edges == Edges::Replicated);
        let local = Arc::new(if edges == Edges::PartitionViews { local.into_partition_views() } else { local });
        worker.dataflow::<u64, _, _>(|scope| {
            let walks = |part: usize| {
                let roots = local.range(part).cycle().take(if local.range(part).is_empty() { 0 } else { 40 });
                Walks::new(BatchKey { epoch: 2, step: 5, partition: part as u32 }, roots.collect())
            };
            let all: Vec<Walks> = local.placement().parts_of(index).map(walks).collect();
            let by = WalkBy { graph: local.clone(), seed: 3, length, walk, meter: Rc::default() };
            all.to_stream(scope).random_walk(by).inspect(move |walks| {
                let key = walks.key;
                send.send(Walks { key, visited: walks.visited.clone(), walks: walks.walks, ..Walks::default() })
                    .unwrap();
            });
        });
        while worker.step_or_park(None) {}
    })
    .unwrap();
    let mut all: Vec<Walks> = receive.into_iter().collect();
    all.sort_by_key(|walks| walks.key);
    all
}

/// A path, as the documentation of [`Walk`] defines it.
fn naive(graph: &Adjacency, walk: Walk, start: Key, root: u32, length: u32) -> Vec<u32> {
    let mut path = vec![root];
    for step in 0..u64::from(length) {
        let (key, at) = (start.fold(step), path[path.len() - 1]);
        let row = &graph[at as usize];
        let weights: Vec<f64> = (0..row.len()).map(|i| f64::from(edge(at, i).0)).collect();
        let total: f64 = weights.iter().sum();
        let restarts = |step: u64| start.fold(step).unit(0) < walk.restart;
        path.push(if restarts(step) {
            root
        } else if let Some(bias) = walk.bias {
            let weights: Vec<f32> = (0..row.len()).map(|i| edge(at, i).0).collect();
            let came = (step > 0 && !restarts(step - 1)).then(|| path[path.len() - 2]);
            let before = came.map(|node| Before { node, neighbors: &graph[node as usize] });
            biased_step(row, walk.weighted.then_some(&weights), before, bias, key).map_or(at, |edge| row[edge])
        } else if row.is_empty() || walk.weighted && total == 0.0 {
            at
        } else if walk.weighted {
            let mut x = key.unit(1) * total;
            row[weights
                .iter()
                .position(|weight| {
                    x -= weight;
                    x < 0.0
                })
                .unwrap()]
        } else {
            row[key.below(1, row.len() as u64) as usize]
        });
    }
    path
}

#[test]
fn walks_equal_a_naive_implementation_at_1_2_and_4_workers() {
    let graph = random_graph(150, 6);
    for walk in [
        Walk::default(),
        Walk { weighted: true, restart: 0.0, bias: None },
        Walk { weighted: false, restart: 0.3, bias: None },
        Walk { weighted: true, restart: 0.3, bias: None },
        Walk { weighted: false, restart: 0.0, bias: Some(Bias { p: 4.0, q: 0.5 }) },
        Walk { weighted: true, restart: 0.3, bias: Some(Bias { p: 0.01, q: 100.0 }) },
    ] {
        let one = run(&graph, walk, 5, 1, Edges::Partitioned);
        check(&one, walk, |_| graph.clone());
        for (workers, edges) in [(2, Edges::Partitioned), (4, Edges::Partitioned), (2, Edges::Replicated)] {
            assert!(run(&graph, walk, 5, workers, edges) == one, "{walk:?} on {workers}");
        }
        let alone = run(&graph, walk, 5, 1, Edges::PartitionViews);
        check(&alone, walk, |part| {
            let own = book(150, 4).range(part);
            let row = |(node, row): (u64, &Vec<u32>)| if own.contains(&node) { row.clone() } else { Vec::new() };
            (0..).zip(&graph).map(row).collect()
        });
        assert!(alone != one && alone.iter().all(|walks| walks.rounds == 0), "{walk:?}");
        for workers in [2, 4] {
            assert!(run(&graph, walk, 5, workers, Edges::PartitionViews) == alone, "{walk:?} on {workers}");
        }
    }
}

/// Compares the walks of each partition with the naive ones on the edges that they see.
fn check(found: &[Walks], walk: Walk, seen: impl Fn(usize) -> Adjacency) {
    assert_eq!(found.len(), 4);
    for walks in found {
        let graph = seen(walks.key.partition as usize);
        let key = Key::new(3, Purpose::Sample).fold_str("walk").fold(u64::from(walks.key.partition)).fold(2).fold(5);
        for i in 0..walks.len() {
            let path: Vec<u32> = walks.path(i).collect();
            assert_eq!(path, naive(&graph, walk, key.fold(i as u64), path[0], 5), "{walk:?}");
        }
    }
}

#[test]
fn steps_have_the_documented_frequencies() {
    // In-edges of node 0 come from 1, 2, 2, 3; the root is 9. Weights by hand are those of `edge`.
    let mut graph: Adjacency = vec![vec![]; 10];
    graph[0] = vec![1, 2, 2, 3];
    let weights: Vec<f64> = (0..4).map(|i| f64::from(edge(0, i).0)).collect();
    let total: f64 = weights.iter().sum();
    assert!(total > 0.0);
    let view = local(&graph, &book(10, 1), 1, 0, false);
    for walk in
        [Walk { weighted: false, restart: 0.25, bias: None }, Walk { weighted: true, restart: 0.25, bias: None }]
    {
        let trials = 40_000;
        let mut counts: HashMap<u32, f64> = HashMap::new();
        for trial in 0..trials {
            let key = Key::new(trial, Purpose::Sample);
            let mut next = vec![];
            if walk.restarts(key) {
                next.push(9);
            } else {
                walk_step(&view.view(), &[0], walk, [key].into_iter(), &mut next);
            }
            *counts.entry(next[0]).or_default() += 1.0;
        }
        let mut shares: HashMap<u32, f64> = HashMap::from([(9, 0.25)]);
        for (i, &source) in graph[0].iter().enumerate() {
            let share = if walk.weighted { weights[i] / total } else { 0.25 };
            *shares.entry(source).or_default() += 0.75 * share;
        }
        shares.retain(|_, share| *share > 0.0);
        assert!(counts.keys().all(|node| shares.contains_key(node)));
        let cell = |(node, share): (&u32, &f64)| {
            let expected = share * trials as f64;
            (counts.get(node).unwrap_or(&0.0) - expected).powi(2) / expected
        };
        let chi: f64 = shares.iter().map(cell).sum();
        assert!(chi < chi_square_limit(shares.len() as f64 - 1.0), "{walk:?}: {chi}");
    }
}
