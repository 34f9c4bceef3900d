//! Compares sampling with naive implementations, and sample frequencies with probabilities.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};

use super::*;
use crate::block::Block;
use crate::compact::Compactor;
use gnnflow_data::testing::chi_square_limit;

mod frequencies;
mod importance;
mod layer;
mod per_edge;
mod without;

/// A graph as lists of in-neighbors.
struct Graph {
    indptr: Vec<i64>,
    indices: Vec<u32>,
}

impl Graph {
    fn new(rows: &[Vec<u32>]) -> Self {
        let mut indptr = vec![0];
        let mut indices = vec![];
        for row in rows {
            indices.extend_from_slice(row);
            indptr.push(indices.len() as i64);
        }
        Self { indptr, indices }
    }

    /// A random graph with self loops and parallel edges, a hub with two in-edges from every node, and nodes of degree 0.
    fn random(key: Key, nodes: u32) -> Self {
        let mut rows: Vec<Vec<u32>> = (0..nodes)
            .map(|v| {
                let key = key.fold(u64::from(v));
                let degree = key.below(0, 1 << key.below(1, 8));
                (0..degree).map(|i| key.fold(2).below(i, u64::from(nodes)) as u32).collect()
            })
            .collect();
        if nodes > 2 {
            rows[1] = (0..nodes).chain(0..nodes).collect();
            rows[2] = vec![];
        }
        Self::new(&rows)
    }

    fn csc(&self) -> Csc<'_> {
        Csc::new(&self.indptr, &self.indices)
    }

    fn nodes(&self) -> u64 {
        self.indptr.len() as u64 - 1
    }

    /// Cuts the graph at `offsets`; returns `indptr` and `indices` per partition.
    fn cut(&self, offsets: &[u64]) -> Vec<(Vec<i64>, Vec<u32>)> {
        let part = |range: &[u64]| {
            let bounds = &self.indptr[range[0] as usize..=range[1] as usize];
            let edges = bounds[0] as usize..bounds[bounds.len() - 1] as usize;
            (bounds.iter().map(|&end| end - bounds[0]).collect(), self.indices[edges].to_vec())
        };
        offsets.windows(2).map(part).collect()
    }
}

/// Random cuts of `0..nodes`, some of them into empty partitions.
fn cuts(key: Key, nodes: u64, parts: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> = (1..parts).map(|i| key.below(i, nodes + 1)).chain([0, nodes]).collect();
    offsets.sort_unstable();
    offsets
}

const FANOUTS: [Fanout; 14] = [
    Fanout::All,
    Fanout::Uniform { k: 0 },
    Fanout::Uniform { k: 1 },
    Fanout::Uniform { k: 4 },
    Fanout::Uniform { k: 5 },
    Fanout::Uniform { k: 8 },
    Fanout::Uniform { k: 10 },
    Fanout::Uniform { k: 15 },
    Fanout::Uniform { k: 25 },
    Fanout::Uniform { k: 26 },
    Fanout::Uniform { k: 200 },
    Fanout::UniformWithReplacement { k: 0 },
    Fanout::UniformWithReplacement { k: 7 },
    Fanout::UniformWithReplacement { k: 40 },
];

/// The sample of one node, exactly as the documentation of `sample` defines it.
fn naive_sample(row: &[u32], fanout: Fanout, key: Key) -> Vec<u32> {
    let degree = row.len() as u64;
    match fanout {
        Fanout::UniformWithReplacement { k } if degree > 0 => {
            (0..u64::from(k)).map(|j| row[key.below(j, degree) as usize]).collect()
        }
        Fanout::Uniform { k } if u64::from(k) < degree => {
            let mut picked = vec![];
            for j in 0..u64::from(k) {
                let last = degree - u64::from(k) + j;
                let drawn = key.below(j, last + 1);
                picked.push(if picked.contains(&drawn) { last } else { drawn });
            }
            picked.into_iter().map(|edge| row[edge as usize]).collect()
        }
        _ => row.to_vec(),
    }
}

/// The block of one hop by lists and a hash map.
fn naive_hop(graph: &Graph, list: &mut Vec<u32>, fanout: Fanout, key: Key) -> Block {
    let num_dst = list.len();
    let mut positions: HashMap<u32, u32> = list.iter().copied().zip(0..).collect();
    let (mut indptr, mut indices) = (vec![0], vec![]);
    for i in 0..num_dst {
        let node = list[i];
        let row = &graph.indices[graph.indptr[node as usize] as usize..graph.indptr[node as usize + 1] as usize];
        for neighbor in naive_sample(row, fanout, key.fold(u64::from(node))) {
            indices.push(*positions.entry(neighbor).or_insert_with(|| {
                list.push(neighbor);
                list.len() as u32 - 1
            }));
        }
        indptr.push(indices.len() as u32);
    }
    Block::new(num_dst as u32, list.len() as u32, indptr, indices)
}

/// Calls `check` with graphs of several sizes, distinct seeds and a key.
fn for_graphs(mut check: impl FnMut(&Graph, &[u32], Key)) {
    for (case, nodes) in [1u32, 2, 3, 10, 70, 300, 2000].into_iter().enumerate() {
        let key = Key::new(case as u64, Purpose::Sample);
        let graph = Graph::random(key, nodes);
        let order = gnnflow_data::rng::Permutation::new(key, u64::from(nodes));
        let seeds: Vec<u32> = (0..u64::from(nodes).min(150)).map(|i| order.at(i) as u32).collect();
        check(&graph, &seeds, key.fold(9));
        check(&graph, &[], key);
    }
}

#[test]
fn fused_hop_equals_the_naive_implementation() {
    for_graphs(|graph, seeds, key| {
        let mut compactors = [Compactor::new(graph.nodes()), Compactor::with_budget(graph.nodes(), 0)];
        for (f, fanout) in FANOUTS.into_iter().enumerate() {
            let mut expected_list = seeds.to_vec();
            let expected: Vec<Block> =
                (0..2).map(|hop| naive_hop(graph, &mut expected_list, fanout, key.fold(f as u64).fold(hop))).collect();
            for compactor in &mut compactors {
                let mut list = seeds.to_vec();
                compactor.start(&list);
                for (hop, expected) in expected.iter().enumerate() {
                    let key = key.fold(f as u64).fold(hop as u64);
                    let block = sample_hop(&graph.csc(), &mut list, fanout, key, compactor);
                    assert!(block == *expected, "{fanout:?}, {} nodes, hop {hop}", graph.nodes());
                }
                assert_eq!(list, expected_list);
            }
        }
    });
}

#[test]
fn assembled_block_of_several_owners_equals_the_fused_block() {
    for_graphs(|graph, seeds, key| {
        let mut compactor = Compactor::new(graph.nodes());
        for (case, fanout) in FANOUTS.into_iter().enumerate() {
            let key = key.fold(case as u64);
            let mut expected_list = seeds.to_vec();
            compactor.start(&expected_list);
            let expected = sample_hop(&graph.csc(), &mut expected_list, fanout, key, &mut compactor);

            let owners = 1 + key.below(0, 6);
            let offsets = cuts(key, graph.nodes(), owners);
            let cut = graph.cut(&offsets);
            let all = Partitions::new(&offsets, cut.iter().map(|(indptr, indices)| Some((&indptr[..], &indices[..]))));

            // The fused kernel over local partitions.
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let block = sample_hop(&all, &mut list, fanout, key, &mut compactor);
            assert!(block == expected && list == expected_list, "{fanout:?} over {offsets:?}");

            // One owner per partition; each replies for its nodes, in pieces of up to 7 nodes.
            let owner_replies: Vec<Vec<(Vec<u32>, Vec<u32>)>> = (0..owners as usize)
                .map(|owner| {
                    let (indptr, indices) = &cut[owner];
                    let own = Csc::starting_at(offsets[owner] as u32, indptr, indices);
                    let requested: Vec<u32> = seeds.iter().copied().filter(|&v| all.owner(v) == owner).collect();
                    let reply = |nodes: &[u32]| {
                        let (mut counts, mut out) = (vec![], vec![]);
                        sample_neighbors(&own, nodes, fanout, key, &mut counts, &mut out);
                        (counts, out)
                    };
                    requested.chunks(7).map(reply).collect()
                })
                .collect();
            let mut replies = Replies::new(owners as usize, graph.nodes());
            for (owner, pieces) in owner_replies.iter().enumerate() {
                pieces.iter().for_each(|(counts, out)| replies.push(owner, counts, out).unwrap());
            }
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let block = assemble(&mut list, |node| replies.next(all.owner(node)), &mut compactor);
            assert!(block == expected && list == expected_list, "{fanout:?} from {offsets:?}");
            assert!((0..owners as usize).all(|owner| replies.remaining(owner) == 0));
        }
    });
}

#[test]
fn built_in_samplers_equal_the_specialized_loops() {
    for_graphs(|graph, seeds, key| {
        let topology = graph.csc();
        let samplers: [(Arc<dyn Sampler>, bool); 2] =
            [(Arc::new(Uniform), false), (Arc::new(UniformWithReplacement), true)];
        for (sampler, replace) in samplers {
            for fanout in [-1, 0, 3, 50] {
                let strategy = Strategy::Registered(Arc::clone(&sampler), fanout);
                let mut samples = Samples { counts: vec![9], neighbors: vec![9], ..Samples::default() };
                choose_neighbors(&topology, seeds, None, &strategy, key, &mut samples);
                let (mut expected_counts, mut expected_out) = (vec![9], vec![9]);
                let built_in = Fanout::new(fanout, replace);
                sample_neighbors(&topology, seeds, built_in, key, &mut expected_counts, &mut expected_out);
                let same = samples.counts == expected_counts && samples.neighbors == expected_out;
                assert!(same, "{} {fanout}", sampler.name());

                let (mut list, mut expected_list) = (seeds.to_vec(), seeds.to_vec());
                let mut compactor = Compactor::new(graph.nodes());
                compactor.start(&list);
                let block = choose_hop(&topology, &mut list, &strategy, Columns::default(), key, &mut compactor);
                assert_eq!(block, naive_hop(graph, &mut expected_list, built_in, key));
                assert_eq!(list, expected_list);
            }
        }
    });
}

#[test]
fn user_sampler_receives_the_offset_of_its_edges() {
    /// Takes the edges with an odd weight in a separate column.
    struct Odd(Vec<u8>);
    impl Sampler for Odd {
        fn name(&self) -> &str {
            "odd"
        }
        fn sample(&self, _node: u32, neighbors: &[u32], offset: u64, _fanout: i64, _key: Key, out: &mut Vec<u32>) {
            let weights = &self.0[offset as usize..][..neighbors.len()];
            out.extend(neighbors.iter().zip(weights).filter(|(_, w)| *w % 2 == 1).map(|(&n, _)| n));
        }
    }
    let graph = Graph::new(&[vec![1, 2], vec![], vec![0, 0, 1]]);
    let (strategy, mut samples) = (Strategy::Registered(Arc::new(Odd(vec![0, 1, 1, 0, 3])), 5), Samples::default());
    choose_neighbors(&graph.csc(), &[2, 0, 1], None, &strategy, Key::new(1, Purpose::Sample), &mut samples);
    assert_eq!((samples.counts, samples.neighbors), (vec![2, 1, 0], vec![0, 1, 2]));
}

#[test]
fn fanout_of_a_negative_number_is_all() {
    assert_eq!(Fanout::new(-1, false), Fanout::All);
    assert_eq!(Fanout::new(-7, true), Fanout::All);
    assert_eq!(Fanout::new(5, false), Fanout::Uniform { k: 5 });
    assert_eq!(Fanout::new(5, true), Fanout::UniformWithReplacement { k: 5 });
    assert_eq!(Fanout::new(1 << 40, false), Fanout::Uniform { k: u32::MAX });
}

#[test]
fn inconsistent_replies_are_rejected() {
    let mut replies = Replies::new(2, 10);
    assert_eq!(replies.push(1, &[1, 1], &[3]), Err(BadReply::Count { owner: 1, counted: 2, sent: 1 }));
    assert_eq!(
        replies.push(1, &[u32::MAX; 2], &[]),
        Err(BadReply::Count { owner: 1, counted: 8_589_934_590, sent: 0 })
    );
    assert_eq!(replies.push(0, &[2], &[3, 10]), Err(BadReply::Node { owner: 0, node: 10, nodes: 10 }));
    assert_eq!(replies.remaining(0) + replies.remaining(1), 0);
}

/// Chi-square of `counts` for equal probabilities.
fn chi_square(counts: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
    let expected = counts.clone().sum::<u64>() as f64 / counts.len() as f64;
    counts.map(|count| (count as f64 - expected).powi(2) / expected).sum()
}

/// Samples of a node with in-neighbors `0..degree`, under `trials` keys: 64 nodes per hop.
fn trials(degree: u32, fanout: Fanout, trials: u64) -> impl Iterator<Item = Vec<u32>> {
    let nodes = 64;
    let graph = Graph::new(&vec![(0..degree).collect(); nodes as usize]);
    let every: Vec<u32> = (0..nodes).collect();
    (0..trials / u64::from(nodes)).flat_map(move |hop| {
        let (mut counts, mut out) = (vec![], vec![]);
        let key = Key::new(17, Purpose::Sample).fold(hop);
        sample_neighbors(&graph.csc(), &every, fanout, key, &mut counts, &mut out);
        let mut rest = &out[..];
        let split = |&count: &u32| rest.split_off(..count as usize).unwrap().to_vec();
        counts.iter().map(split).collect::<Vec<_>>()
    })
}

#[test]
fn uniform_subsets_are_equally_likely() {
    for (degree, k) in [(5, 2), (6, 3), (7, 6), (9, 1), (12, 3)] {
        let mut counts = HashMap::<u64, u64>::new();
        for sample in trials(degree, Fanout::Uniform { k }, 64_000) {
            let set = sample.iter().fold(0, |set, &pick| set | 1 << pick);
            assert_eq!(u64::count_ones(set), k, "{sample:?} has duplicates");
            *counts.entry(set).or_default() += 1;
        }
        let subsets = (0..k).fold(1, |c, i| c * (degree - i) / (i + 1));
        assert_eq!(counts.len(), subsets as usize, "{k} of {degree}");
        let (chi, limit) = (chi_square(counts.values().copied()), chi_square_limit(f64::from(subsets - 1)));
        assert!(chi < limit, "{k} of {degree}: {chi} exceeds {limit}");
    }
}

#[test]
fn uniform_pairs_are_equally_likely_for_each_loop_width() {
    // The picks of a sample are distinct, not independent, so they vary less than independent ones would:
    // the limit is generous.
    for (degree, k) in [(20, 4), (20, 10), (30, 15), (50, 25), (60, 40)] {
        let (mut pairs, mut singles) = (HashMap::<(u32, u32), u64>::new(), vec![0u64; degree as usize]);
        for sample in trials(degree, Fanout::Uniform { k }, 19_200) {
            assert_eq!(sample.iter().collect::<HashSet<_>>().len(), k as usize, "{sample:?} has duplicates");
            for (i, &a) in sample.iter().enumerate() {
                singles[a as usize] += 1;
                sample[..i].iter().for_each(|&b| *pairs.entry((a.min(b), a.max(b))).or_default() += 1);
            }
        }
        let all = f64::from(degree * (degree - 1) / 2);
        assert_eq!(pairs.len() as f64, all);
        let chi = chi_square(pairs.values().copied());
        assert!(chi < chi_square_limit(all - 1.0), "pairs of {k} of {degree}: {chi}");
        let chi = chi_square(singles.iter().copied());
        assert!(chi < chi_square_limit(f64::from(degree - 1)), "{k} of {degree}: {chi}");
    }
}

#[test]
fn draws_with_replacement_are_uniform_and_independent() {
    let (degree, k) = (6, 3);
    let (mut triples, mut count) = (HashMap::<Vec<u32>, u64>::new(), 0);
    for sample in trials(degree, Fanout::UniformWithReplacement { k }, 64_000) {
        *triples.entry(sample).or_default() += 1;
        count += 1;
    }
    assert_eq!((count, triples.len()), (64_000, 216));
    let chi = chi_square(triples.values().copied());
    assert!(chi < chi_square_limit(215.0), "{chi}");
}

#[test]
fn hub_of_a_million_edges_is_sampled_uniformly() {
    let degree = 1_000_003;
    let graph = Graph::new(&[(0..degree).collect()]);
    for k in [16, 32, 100] {
        let mut shares = [0u64; 32];
        for trial in 0..800 {
            let (mut counts, mut out) = (vec![], vec![]);
            let key = Key::new(trial, Purpose::Sample);
            sample_neighbors(&graph.csc(), &[0], Fanout::Uniform { k }, key, &mut counts, &mut out);
            out.iter().for_each(|&pick| shares[(u64::from(pick) * 32 / u64::from(degree)) as usize] += 1);
        }
        let chi = chi_square(shares.iter().copied());
        assert!(chi < chi_square_limit(31.0), "{k}: {chi}");
    }
}
