//! Compares draws by weight, type and time with naive implementations.

use super::*;

/// A graph whose edges have all columns.
pub(super) struct RichGraph {
    pub(super) graph: Graph,
    pub(super) weights: Vec<f32>,
    pub(super) types: Vec<u16>,
    pub(super) times: Vec<i64>,
}

impl RichGraph {
    /// Small integer weights (a third of them 0), whose sums are exact in any order; types 0 to 3; ten times.
    pub(super) fn new(graph: Graph, key: Key) -> Self {
        let edges = graph.indices.len() as u64;
        let column = |c: u64, n: u64| (0..edges).map(move |i| key.fold(c).below(i, n));
        Self {
            weights: column(1, 9).map(|x| x.saturating_sub(2) as f32).collect(),
            types: column(2, 4).map(|x| x as u16).collect(),
            times: column(3, 10).map(|x| x as i64 - 5).collect(),
            graph,
        }
    }

    fn columns(&self) -> EdgeColumns<'_> {
        EdgeColumns { weights: Some(&self.weights), types: Some(&self.types), times: Some(&self.times), ids: None }
    }

    pub(super) fn csc(&self) -> Csc<'_> {
        self.graph.csc().with_columns(self.columns())
    }

    /// Positions of `node`'s in-edges in the columns.
    pub(super) fn row(&self, node: u32) -> std::ops::Range<usize> {
        self.graph.indptr[node as usize] as usize..self.graph.indptr[node as usize + 1] as usize
    }
}

pub(super) const ALL: Columns = Columns { types: true, weights: true, ids: true };

pub(super) fn strategies() -> Vec<Strategy> {
    let draws = [
        Draw::Uniform,
        Draw::UniformWithReplacement,
        Draw::Weighted,
        Draw::WeightedWithReplacement,
        Draw::Labor,
        Draw::Last,
    ];
    let fanouts = [
        EdgeFanout::Each(-1),
        EdgeFanout::Each(0),
        EdgeFanout::Each(3),
        EdgeFanout::Each(20),
        EdgeFanout::ByType(vec![2, 0, -1, 30]),
        EdgeFanout::ByType(vec![0, 4]),
    ];
    let all =
        |draw| fanouts.clone().map(|fanouts| Strategy::PerEdge(PerEdgeStrategy { draw, fanouts, temporal: false }));
    let uniform = FANOUTS.into_iter().map(Strategy::Fanout);
    draws.into_iter().flat_map(all).chain(uniform).collect()
}

fn name(strategy: &Strategy) -> String {
    match strategy {
        Strategy::Fanout(fanout) => format!("{fanout:?}"),
        Strategy::PerEdge(strategy) => format!("{strategy:?}"),
        Strategy::Layer(nodes) => format!("layer of {nodes}"),
        Strategy::Importance(draws, _) => format!("{draws} draws"),
        Strategy::Registered(sampler, _) => sampler.name().into(),
    }
}

/// The sample of one node as edge positions, exactly as the documentation of `sample` defines it.
fn naive_choice(rich: &RichGraph, node: u32, strategy: &Strategy, hop: Key, tree: Option<(u32, i64)>) -> Vec<usize> {
    let key = hop.fold(u64::from(node));
    let strategy = match strategy {
        Strategy::Fanout(fanout) => {
            let row: Vec<u32> = rich.row(node).map(|edge| edge as u32).collect();
            return naive_sample(&row, *fanout, key).into_iter().map(|edge| edge as usize).collect();
        }
        Strategy::PerEdge(strategy) => strategy,
        Strategy::Layer(_) | Strategy::Importance(..) | Strategy::Registered(..) => {
            unreachable!("not sampled node by node")
        }
    };
    let key = tree.map_or(key, |(tree, _)| key.fold(u64::from(tree)));
    let eligible: Vec<usize> =
        rich.row(node).filter(|&edge| !strategy.temporal || rich.times[edge] < tree.unwrap().1).collect();
    match &strategy.fanouts {
        EdgeFanout::Each(fanout) => naive_draw(rich, &eligible, strategy.draw, *fanout, hop, key),
        EdgeFanout::ByType(fanouts) => (0..fanouts.len())
            .flat_map(|t| {
                let eligible: Vec<usize> =
                    eligible.iter().copied().filter(|&edge| usize::from(rich.types[edge]) == t).collect();
                if fanouts[t] == 0 {
                    vec![]
                } else {
                    naive_draw(rich, &eligible, strategy.draw, fanouts[t], hop, key.fold(t as u64))
                }
            })
            .collect(),
    }
}

fn naive_draw(rich: &RichGraph, eligible: &[usize], draw: Draw, fanout: i64, hop: Key, key: Key) -> Vec<usize> {
    let k = if fanout < 0 { usize::MAX } else { fanout as usize };
    let find = |left: &[usize], unit: f64| {
        let mut x = unit * left.iter().map(|&edge| f64::from(rich.weights[edge])).sum::<f64>();
        left.iter().position(|&edge| {
            x -= f64::from(rich.weights[edge]);
            x < 0.0
        })
    };
    let mut heavy: Vec<usize> = eligible.iter().copied().filter(|&edge| rich.weights[edge] > 0.0).collect();
    match draw {
        Draw::Uniform if fanout >= 0 => naive_sample(
            &eligible.iter().map(|&edge| edge as u32).collect::<Vec<_>>(),
            Fanout::Uniform { k: k as u32 },
            key,
        )
        .into_iter()
        .map(|edge| edge as usize)
        .collect(),
        Draw::UniformWithReplacement if fanout >= 0 && !eligible.is_empty() => {
            (0..k as u64).map(|j| eligible[key.below(j, eligible.len() as u64) as usize]).collect()
        }
        Draw::Weighted if k < heavy.len() => {
            (0..k as u64).map(|j| heavy.remove(find(&heavy, key.unit(j)).unwrap())).collect()
        }
        Draw::WeightedWithReplacement if fanout >= 0 => match heavy.is_empty() {
            true => vec![],
            false => (0..k as u64).map(|j| heavy[find(&heavy, key.unit(j)).unwrap()]).collect(),
        },
        Draw::Weighted | Draw::WeightedWithReplacement => heavy,
        Draw::Labor if k < eligible.len() => {
            let limit = (((k as u128) << 64) / eligible.len() as u128) as u64;
            let takes = |edge: &&usize| hop.fold(u64::from(rich.graph.indices[**edge])).draw(0) < limit;
            eligible.iter().filter(takes).copied().collect()
        }
        Draw::Last if k < eligible.len() => {
            let mut latest = eligible.to_vec();
            latest.sort_by_key(|&edge| (rich.times[edge], edge));
            let mut latest = latest.split_off(eligible.len() - k);
            latest.sort_unstable();
            latest
        }
        _ => eligible.to_vec(),
    }
}

/// The block of one hop with all columns, by lists and a hash map.
fn naive_rich_hop(rich: &RichGraph, list: &mut Vec<u32>, strategy: &Strategy, key: Key) -> Block {
    let num_dst = list.len();
    let mut positions: HashMap<u32, u32> = list.iter().copied().zip(0..).collect();
    let (mut indptr, mut indices, mut edges) = (vec![0], vec![], vec![]);
    for i in 0..num_dst {
        for edge in naive_choice(rich, list[i], strategy, key, None) {
            let source = rich.graph.indices[edge];
            indices.push(*positions.entry(source).or_insert_with(|| {
                list.push(source);
                list.len() as u32 - 1
            }));
            edges.push(edge);
        }
        indptr.push(indices.len() as u32);
    }
    Block::new(num_dst as u32, list.len() as u32, indptr, indices)
        .with_edge_types(edges.iter().map(|&edge| rich.types[edge]).collect())
        .with_edge_weights(edges.iter().map(|&edge| rich.weights[edge]).collect())
        .with_edge_ids(edges.iter().map(|&edge| edge as u64).collect())
}

fn without_columns(block: &Block) -> Block {
    Block::new(block.num_dst() as u32, block.num_src() as u32, block.indptr().to_vec(), block.indices().to_vec())
}

#[test]
fn strategies_with_and_without_columns_equal_the_naive_implementation() {
    for_graphs(|graph, seeds, key| {
        let rich = RichGraph::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(40)];
        let mut compactor = Compactor::new(graph.nodes());
        for (c, strategy) in strategies().iter().enumerate() {
            let (mut list, mut expected_list) = (seeds.to_vec(), seeds.to_vec());
            compactor.start(&list);
            for hop in 0..2 {
                let key = key.fold(c as u64).fold(hop);
                let (mut bare_list, before) = (list.clone(), list.clone());
                let expected = naive_rich_hop(&rich, &mut expected_list, strategy, key);
                let block = choose_hop(&rich.csc(), &mut list, strategy, ALL, key, &mut compactor);
                assert!(block == expected && list == expected_list, "{}, {} nodes", name(strategy), graph.nodes());
                let mut compactor = Compactor::new(graph.nodes());
                compactor.start(&before);
                let bare = choose_hop(&rich.csc(), &mut bare_list, strategy, Columns::default(), key, &mut compactor);
                assert!(bare == without_columns(&expected), "{} without columns", name(strategy));
            }
        }
    });
}

#[test]
fn assembled_block_with_columns_equals_the_fused_block() {
    for_graphs(|graph, seeds, key| {
        let rich = RichGraph::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(60)];
        let mut compactor = Compactor::new(graph.nodes());
        for (c, strategy) in strategies().iter().enumerate() {
            let key = key.fold(c as u64);
            let offsets = cuts(key, graph.nodes(), 1 + key.below(0, 5));
            let cut = graph.cut(&offsets);
            let columns = |part: usize| {
                let edges =
                    graph.indptr[offsets[part] as usize] as usize..graph.indptr[offsets[part + 1] as usize] as usize;
                EdgeColumns {
                    weights: Some(&rich.weights[edges.clone()]),
                    types: Some(&rich.types[edges.clone()]),
                    times: Some(&rich.times[edges]),
                    ids: None,
                }
            };
            let all = Partitions::new(&offsets, cut.iter().map(|(indptr, indices)| Some((&indptr[..], &indices[..]))))
                .with_columns((0..cut.len()).map(columns));
            let mut expected_list = seeds.to_vec();
            compactor.start(&expected_list);
            let expected = choose_hop(&all, &mut expected_list, strategy, ALL, key, &mut compactor);
            // Ids count from the partition's first edge; all other columns equal those of the complete graph.
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let whole = choose_hop(&rich.csc(), &mut list, strategy, ALL, key, &mut compactor);
            assert_eq!(without_columns(&whole), without_columns(&expected));
            assert_eq!(whole.edge_weights(), expected.edge_weights());
            assert_eq!(whole.edge_types(), expected.edge_types());

            let owner_samples: Vec<Samples> = (0..cut.len())
                .map(|owner| {
                    let requested: Vec<u32> = seeds.iter().copied().filter(|&v| all.owner(v) == owner).collect();
                    let (indptr, indices) = &cut[owner];
                    let own = Csc::starting_at(offsets[owner] as u32, indptr, indices).with_columns(columns(owner));
                    let mut received = Samples::new(ALL);
                    for nodes in requested.chunks(7) {
                        let mut samples = Samples::new(ALL);
                        choose_neighbors(&own, nodes, None, strategy, key, &mut samples);
                        received.read(owner, nodes.len(), ALL, &samples.into_words()).unwrap();
                    }
                    received
                })
                .collect();
            let mut replies = Replies::new(cut.len(), graph.nodes());
            for (owner, samples) in owner_samples.iter().enumerate() {
                let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                replies.push_edges(owner, &samples.counts, edges).unwrap();
            }
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let block = assemble_edges(&mut list, |node| replies.next_edges(all.owner(node)), ALL, &mut compactor);
            assert!(block == expected && list == expected_list, "{}", name(strategy));
        }
    });
}

#[test]
fn temporal_trees_contain_only_older_edges_and_are_separate() {
    for_graphs(|graph, seeds, key| {
        let rich = RichGraph::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(12)];
        let times: Vec<i64> = (0..seeds.len() as u64).map(|i| key.below(i, 14) as i64 - 7).collect();
        for draw in [Draw::Uniform, Draw::UniformWithReplacement, Draw::Weighted, Draw::Labor, Draw::Last] {
            for fanouts in [EdgeFanout::Each(2), EdgeFanout::Each(-1), EdgeFanout::ByType(vec![1, 2])] {
                if fanouts == EdgeFanout::Each(-1) && graph.nodes() > 400 {
                    continue;
                }
                let strategy = Strategy::PerEdge(PerEdgeStrategy { draw, fanouts, temporal: true });
                let (mut list, mut trees) = (seeds.to_vec(), (0..seeds.len() as u32).collect::<Vec<_>>());
                let mut listed = crate::compact::TreeCompactor::new(&list);
                // Each seed alone, by the naive implementation.
                let mut naive_tree: Vec<Vec<u32>> = seeds.iter().map(|&seed| vec![seed]).collect();
                for hop in 0..2u64 {
                    let key = key.fold(hop);
                    let at: Vec<i64> = trees.iter().map(|&tree| times[tree as usize]).collect();
                    let mut samples = Samples::new(ALL);
                    let in_trees = Trees { trees: &trees, times: &at };
                    choose_neighbors(&rich.csc(), &list, Some(in_trees), &strategy, key, &mut samples);
                    let mut replies = Replies::new(1, graph.nodes());
                    let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                    replies.push_edges(0, &samples.counts, edges).unwrap();
                    let (before, before_trees) = (list.clone(), trees.clone());
                    let samples_of = |_| replies.next_edges(0);
                    let block = assemble_trees(&mut list, &mut trees, samples_of, ALL, &mut listed);
                    for (tree, naive_tree) in naive_tree.iter_mut().enumerate() {
                        let nodes: Vec<u32> = naive_tree.clone();
                        for &node in &nodes {
                            let expected = naive_choice(&rich, node, &strategy, key, Some((tree as u32, times[tree])));
                            let dst = (0..before.len())
                                .find(|&i| before[i] == node && before_trees[i] as usize == tree)
                                .expect("every node of the tree is listed in it");
                            let range = block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize;
                            let ids: Vec<usize> =
                                block.edge_ids().unwrap()[range].iter().map(|&id| id as usize).collect();
                            assert_eq!(ids, expected, "{}", name(&strategy));
                            for (&edge, &src) in ids.iter().zip(block.neighbors(dst)) {
                                assert!(rich.times[edge] < times[tree]);
                                let source = rich.graph.indices[edge];
                                assert_eq!((list[src as usize], trees[src as usize]), (source, tree as u32));
                                if !naive_tree.contains(&source) {
                                    naive_tree.push(source);
                                }
                            }
                        }
                    }
                    assert_eq!(list.len(), naive_tree.iter().map(Vec::len).sum::<usize>(), "once per node and tree");
                }
            }
        }
    });
}
