//! Choices by weight, type and time against obvious programs, and their frequencies against what they should be.

use super::*;

/// A graph whose edges have all columns.
struct Rich {
    graph: Graph,
    weights: Vec<f32>,
    types: Vec<u16>,
    times: Vec<i64>,
}

impl Rich {
    /// Small whole weights (a third of them 0), so that sums have the same bits in any order; types 0 to 3; ten times.
    fn new(graph: Graph, key: Key) -> Self {
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
        EdgeColumns { weights: Some(&self.weights), types: Some(&self.types), times: Some(&self.times) }
    }

    fn csc(&self) -> Csc<'_> {
        self.graph.csc().with_columns(self.columns())
    }

    /// Positions of `node`'s in-edges in the columns.
    fn row(&self, node: u32) -> std::ops::Range<usize> {
        self.graph.indptr[node as usize] as usize..self.graph.indptr[node as usize + 1] as usize
    }
}

const ALL: Columns = Columns { types: true, weights: true, ids: true };

fn choices() -> Vec<Choice> {
    let ways =
        [Way::Uniform, Way::UniformWithReplacement, Way::Weighted, Way::WeightedWithReplacement, Way::Labor, Way::Last];
    let fanouts = [
        Fanouts::Each(-1),
        Fanouts::Each(0),
        Fanouts::Each(3),
        Fanouts::Each(20),
        Fanouts::ByType(vec![2, 0, -1, 30]),
        Fanouts::ByType(vec![0, 4]),
    ];
    let all = |way| fanouts.clone().map(|fanouts| Choice::Drawn(Drawn { way, fanouts, temporal: false }));
    let uniform = FANOUTS.into_iter().map(Choice::Fanout);
    ways.into_iter().flat_map(all).chain(uniform).collect()
}

fn name(choice: &Choice) -> String {
    match choice {
        Choice::Fanout(fanout) => format!("{fanout:?}"),
        Choice::Drawn(drawn) => format!("{drawn:?}"),
        Choice::Layer(nodes) => format!("layer of {nodes}"),
        Choice::By(sampler, _) => sampler.name().into(),
    }
}

/// The edges of one node that are taken, word for word as the module's documentation has it.
fn naive_choice(rich: &Rich, node: u32, choice: &Choice, hop: Key, tree: Option<(u32, i64)>) -> Vec<usize> {
    let key = hop.fold(u64::from(node));
    let drawn = match choice {
        Choice::Fanout(fanout) => {
            let row: Vec<u32> = rich.row(node).map(|edge| edge as u32).collect();
            return naive_sample(&row, *fanout, key).into_iter().map(|edge| edge as usize).collect();
        }
        Choice::Drawn(drawn) => drawn,
        Choice::Layer(_) | Choice::By(..) => unreachable!("not chosen node by node"),
    };
    let key = tree.map_or(key, |(tree, _)| key.fold(u64::from(tree)));
    let may: Vec<usize> =
        rich.row(node).filter(|&edge| !drawn.temporal || rich.times[edge] < tree.unwrap().1).collect();
    match &drawn.fanouts {
        Fanouts::Each(fanout) => naive_way(rich, &may, drawn.way, *fanout, hop, key),
        Fanouts::ByType(fanouts) => (0..fanouts.len())
            .flat_map(|t| {
                let may: Vec<usize> = may.iter().copied().filter(|&edge| usize::from(rich.types[edge]) == t).collect();
                if fanouts[t] == 0 {
                    vec![]
                } else {
                    naive_way(rich, &may, drawn.way, fanouts[t], hop, key.fold(t as u64))
                }
            })
            .collect(),
    }
}

fn naive_way(rich: &Rich, may: &[usize], way: Way, fanout: i64, hop: Key, key: Key) -> Vec<usize> {
    let k = if fanout < 0 { usize::MAX } else { fanout as usize };
    let walk = |left: &[usize], unit: f64| {
        let mut x = unit * left.iter().map(|&edge| f64::from(rich.weights[edge])).sum::<f64>();
        left.iter().position(|&edge| {
            x -= f64::from(rich.weights[edge]);
            x < 0.0
        })
    };
    let mut heavy: Vec<usize> = may.iter().copied().filter(|&edge| rich.weights[edge] > 0.0).collect();
    match way {
        Way::Uniform if fanout >= 0 => {
            naive_sample(&may.iter().map(|&edge| edge as u32).collect::<Vec<_>>(), Fanout::Uniform { k: k as u32 }, key)
                .into_iter()
                .map(|edge| edge as usize)
                .collect()
        }
        Way::UniformWithReplacement if fanout >= 0 && !may.is_empty() => {
            (0..k as u64).map(|j| may[key.below(j, may.len() as u64) as usize]).collect()
        }
        Way::Weighted if k < heavy.len() => {
            (0..k as u64).map(|j| heavy.remove(walk(&heavy, key.unit(j)).unwrap())).collect()
        }
        Way::WeightedWithReplacement if fanout >= 0 => match heavy.is_empty() {
            true => vec![],
            false => (0..k as u64).map(|j| heavy[walk(&heavy, key.unit(j)).unwrap()]).collect(),
        },
        Way::Weighted | Way::WeightedWithReplacement => heavy,
        Way::Labor if k < may.len() => {
            let limit = (((k as u128) << 64) / may.len() as u128) as u64;
            let takes = |edge: &&usize| hop.fold(u64::from(rich.graph.indices[**edge])).draw(0) < limit;
            may.iter().filter(takes).copied().collect()
        }
        Way::Last if k < may.len() => {
            let mut latest = may.to_vec();
            latest.sort_by_key(|&edge| (rich.times[edge], edge));
            let mut latest = latest.split_off(may.len() - k);
            latest.sort_unstable();
            latest
        }
        _ => may.to_vec(),
    }
}

/// The block of one hop with all columns, by lists and a hash map.
fn naive_rich_hop(rich: &Rich, list: &mut Vec<u32>, choice: &Choice, key: Key) -> Block {
    let num_dst = list.len();
    let mut positions: HashMap<u32, u32> = list.iter().copied().zip(0..).collect();
    let (mut indptr, mut indices, mut edges) = (vec![0], vec![], vec![]);
    for i in 0..num_dst {
        for edge in naive_choice(rich, list[i], choice, key, None) {
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
fn every_choice_is_the_obvious_one_with_and_without_columns() {
    for_graphs(|graph, seeds, key| {
        let rich = Rich::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(40)];
        let mut compactor = Compactor::new(graph.nodes());
        for (c, choice) in choices().iter().enumerate() {
            let (mut list, mut expected_list) = (seeds.to_vec(), seeds.to_vec());
            compactor.start(&list);
            for hop in 0..2 {
                let key = key.fold(c as u64).fold(hop);
                let (mut again, before) = (list.clone(), list.clone());
                let expected = naive_rich_hop(&rich, &mut expected_list, choice, key);
                let block = choose_hop(&rich.csc(), &mut list, choice, ALL, key, &mut compactor);
                assert!(block == expected && list == expected_list, "{}, {} nodes", name(choice), graph.nodes());
                let mut compactor = Compactor::new(graph.nodes());
                compactor.start(&before);
                let bare = choose_hop(&rich.csc(), &mut again, choice, Columns::default(), key, &mut compactor);
                assert!(bare == without_columns(&expected), "{} without columns", name(choice));
            }
        }
    });
}

#[test]
fn owners_and_asker_together_build_the_same_block_with_columns() {
    for_graphs(|graph, seeds, key| {
        let rich = Rich::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(60)];
        let mut compactor = Compactor::new(graph.nodes());
        for (c, choice) in choices().iter().enumerate() {
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
                }
            };
            let all = Partitions::new(&offsets, cut.iter().map(|(indptr, indices)| Some((&indptr[..], &indices[..]))))
                .with_columns((0..cut.len()).map(columns));
            let mut expected_list = seeds.to_vec();
            compactor.start(&expected_list);
            let expected = choose_hop(&all, &mut expected_list, choice, ALL, key, &mut compactor);
            // Ids count from the partition's first edge; all else is the whole graph's.
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let whole = choose_hop(&rich.csc(), &mut list, choice, ALL, key, &mut compactor);
            assert_eq!(without_columns(&whole), without_columns(&expected));
            assert_eq!(whole.edge_weights(), expected.edge_weights());
            assert_eq!(whole.edge_types(), expected.edge_types());

            let answers: Vec<Samples> = (0..cut.len())
                .map(|owner| {
                    let asked: Vec<u32> = seeds.iter().copied().filter(|&v| all.owner(v) == owner).collect();
                    let (indptr, indices) = &cut[owner];
                    let own = Csc::starting_at(offsets[owner] as u32, indptr, indices).with_columns(columns(owner));
                    let mut received = Samples::new(ALL);
                    for nodes in asked.chunks(7) {
                        let mut samples = Samples::new(ALL);
                        choose_neighbors(&own, nodes, None, choice, key, &mut samples);
                        received.read(owner, nodes.len(), ALL, &samples.into_words()).unwrap();
                    }
                    received
                })
                .collect();
            let mut replies = Replies::new(cut.len(), graph.nodes());
            for (owner, samples) in answers.iter().enumerate() {
                let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                replies.push_edges(owner, &samples.counts, edges).unwrap();
            }
            let mut list = seeds.to_vec();
            compactor.start(&list);
            let block = assemble_edges(&mut list, |node| replies.next_edges(all.owner(node)), ALL, &mut compactor);
            assert!(block == expected && list == expected_list, "{}", name(choice));
        }
    });
}

#[test]
fn trees_of_seeds_hold_only_what_is_older_and_never_meet() {
    for_graphs(|graph, seeds, key| {
        let rich = Rich::new(Graph { indptr: graph.indptr.clone(), indices: graph.indices.clone() }, key);
        let seeds = &seeds[..seeds.len().min(12)];
        let times: Vec<i64> = (0..seeds.len() as u64).map(|i| key.below(i, 14) as i64 - 7).collect();
        for way in [Way::Uniform, Way::UniformWithReplacement, Way::Weighted, Way::Labor, Way::Last] {
            for fanouts in [Fanouts::Each(2), Fanouts::Each(-1), Fanouts::ByType(vec![1, 2])] {
                if fanouts == Fanouts::Each(-1) && graph.nodes() > 400 {
                    continue;
                }
                let choice = Choice::Drawn(Drawn { way, fanouts, temporal: true });
                let (mut list, mut trees) = (seeds.to_vec(), (0..seeds.len() as u32).collect::<Vec<_>>());
                let mut listed = crate::kernel::compact::TreeCompactor::new(&list);
                // Each seed on its own, by the obvious program.
                let mut alone: Vec<Vec<u32>> = seeds.iter().map(|&seed| vec![seed]).collect();
                for hop in 0..2u64 {
                    let key = key.fold(hop);
                    let at: Vec<i64> = trees.iter().map(|&tree| times[tree as usize]).collect();
                    let mut samples = Samples::new(ALL);
                    let in_trees = Trees { trees: &trees, times: &at };
                    choose_neighbors(&rich.csc(), &list, Some(in_trees), &choice, key, &mut samples);
                    let mut replies = Replies::new(1, graph.nodes());
                    let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                    replies.push_edges(0, &samples.counts, edges).unwrap();
                    let (before, before_trees) = (list.clone(), trees.clone());
                    let samples_of = |_| replies.next_edges(0);
                    let block = assemble_trees(&mut list, &mut trees, samples_of, ALL, &mut listed);
                    for (tree, alone) in alone.iter_mut().enumerate() {
                        let known: Vec<u32> = alone.clone();
                        for &node in &known {
                            let expected = naive_choice(&rich, node, &choice, key, Some((tree as u32, times[tree])));
                            let dst = (0..before.len())
                                .find(|&i| before[i] == node && before_trees[i] as usize == tree)
                                .expect("every node of the tree is listed in it");
                            let range = block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize;
                            let ids: Vec<usize> =
                                block.edge_ids().unwrap()[range].iter().map(|&id| id as usize).collect();
                            assert_eq!(ids, expected, "{}", name(&choice));
                            for (&edge, &src) in ids.iter().zip(block.neighbors(dst)) {
                                assert!(rich.times[edge] < times[tree]);
                                let source = rich.graph.indices[edge];
                                assert_eq!((list[src as usize], trees[src as usize]), (source, tree as u32));
                                if !alone.contains(&source) {
                                    alone.push(source);
                                }
                            }
                        }
                    }
                    assert_eq!(list.len(), alone.iter().map(Vec::len).sum::<usize>(), "each node once a tree");
                }
            }
        }
    });
}

/// Samples of a node with these in-edges under many keys: 64 nodes at each hop.
fn rich_trials(weights: &[f32], types: &[u16], choice: Choice, trials: u64) -> impl Iterator<Item = Vec<u32>> {
    let (nodes, degree) = (64u32, weights.len());
    let graph = Graph::new(&vec![(0..degree as u32).collect(); nodes as usize]);
    let repeat = |column: &[f32]| column.repeat(nodes as usize);
    let times = (0..nodes).flat_map(|_| 0..degree as i64).collect();
    let rich = Rich { weights: repeat(weights), types: types.repeat(nodes as usize), times, graph };
    let every: Vec<u32> = (0..nodes).collect();
    (0..trials / u64::from(nodes)).flat_map(move |hop| {
        let mut samples = Samples::default();
        let at = vec![6; every.len()];
        let trees = choice.is_temporal().then_some(Trees { trees: &every, times: &at });
        choose_neighbors(&rich.csc(), &every, trees, &choice, Key::new(23, Purpose::Sample).fold(hop), &mut samples);
        let mut rest = &samples.neighbors[..];
        let split = |&count: &u32| rest.split_off(..count as usize).unwrap().to_vec();
        samples.counts.iter().map(split).collect::<Vec<_>>()
    })
}

/// Chi-square of `counts` against `shares`, which sum to 1, is below its 0.999 quantile.
fn fits(counts: &HashMap<Vec<u32>, u64>, shares: &HashMap<Vec<u32>, f64>, what: &str) {
    let total = counts.values().sum::<u64>() as f64;
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-9, "{what}: shares sum to 1");
    assert!(counts.keys().all(|outcome| shares.contains_key(outcome)), "{what}: an outcome that cannot be");
    let cell = |(outcome, share): (&Vec<u32>, &f64)| {
        (*counts.get(outcome).unwrap_or(&0) as f64 - share * total).powi(2) / (share * total)
    };
    let chi: f64 = shares.iter().map(cell).sum();
    let limit = chi_square_limit(shares.len() as f64 - 1.0);
    assert!(chi < limit, "{what}: {chi} against {limit}");
}

fn drawn(way: Way, fanouts: Fanouts) -> Choice {
    Choice::Drawn(Drawn { way, fanouts, temporal: false })
}

fn count(samples: impl Iterator<Item = Vec<u32>>) -> HashMap<Vec<u32>, u64> {
    let mut counts = HashMap::new();
    samples.for_each(|sample| *counts.entry(sample).or_default() += 1);
    counts
}

#[test]
fn weighted_draws_are_successive_sampling() {
    let weights = [1.0, 0.0, 2.5, 0.5, 4.0, 2.0];
    let total: f64 = weights.iter().sum();
    let counts =
        count(rich_trials(&weights.map(|w| w as f32), &[0; 6], drawn(Way::Weighted, Fanouts::Each(2)), 96_000));
    let mut shares = HashMap::new();
    for (i, first) in weights.iter().enumerate() {
        for (j, second) in weights.iter().enumerate().filter(|&(j, second)| j != i && *second > 0.0 && *first > 0.0) {
            shares.insert(vec![i as u32, j as u32], first / total * second / (total - first));
        }
    }
    fits(&counts, &shares, "two of six");
}

#[test]
fn weighted_draws_with_replacement_are_independent_and_in_proportion() {
    let weights: Vec<f64> = (0..20).map(|i| f64::from(i % 5)).collect();
    let total: f64 = weights.iter().sum();
    let single: Vec<f32> = weights.iter().map(|&w| w as f32).collect();
    let choice = drawn(Way::WeightedWithReplacement, Fanouts::Each(2));
    let counts = count(rich_trials(&single, &[0; 20], choice, 192_000));
    let heavy = || weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
    let shares = heavy()
        .flat_map(|(i, a)| heavy().map(move |(j, b)| (vec![i as u32, j as u32], a / total * b / total)))
        .collect();
    fits(&counts, &shares, "pairs");
}

#[test]
fn a_hub_is_drawn_from_in_proportion_from_end_to_end() {
    // 100,000 in-edges, the weight of each third of them 0, 1, 3: 30 picks without replacement hardly thin it out.
    let degree = 99_999u32;
    let graph = Graph::new(&[(0..degree).collect()]);
    let weights = (0..degree).map(|i| [0.0, 1.0, 3.0][(i / (degree / 3)) as usize]).collect();
    let rich = Rich { weights, types: vec![0; degree as usize], times: vec![0; degree as usize], graph };
    let mut cells = HashMap::new();
    for trial in 0..600 {
        let mut samples = Samples::default();
        let key = Key::new(trial, Purpose::Sample);
        choose_neighbors(&rich.csc(), &[0], None, &drawn(Way::Weighted, Fanouts::Each(30)), key, &mut samples);
        for pick in samples.neighbors {
            *cells.entry(vec![pick / 3333]).or_default() += 1;
        }
    }
    let share = |cell: u32| (vec![cell], if cell < 20 { 0.1 / 4.0 } else { 0.3 / 4.0 });
    // 99,999 = 30 · 3,333 + 9: the last nine belong to cell 30.
    if let Some(rest) = cells.remove(&vec![30]) {
        *cells.entry(vec![29]).or_default() += rest;
    }
    fits(&cells, &(10..30).map(share).collect(), "hub");
}

#[test]
fn weights_of_0_are_never_drawn_and_a_node_of_only_such_has_no_neighbours() {
    for way in [Way::Weighted, Way::WeightedWithReplacement] {
        for fanout in [-1, 0, 1, 2, 3, 50] {
            let samples = |weights: &[f32]| {
                rich_trials(weights, &vec![0; weights.len()], drawn(way, Fanouts::Each(fanout)), 640)
                    .collect::<Vec<_>>()
            };
            assert!(samples(&[0.0; 5]).iter().all(Vec::is_empty));
            let light = samples(&[0.0, 1.0, 0.0, 7.0, 0.0]);
            assert!(light.iter().flatten().all(|&pick| pick == 1 || pick == 3));
            let expected = match (way, fanout) {
                (_, -1) | (Way::Weighted, 2..) => 2,
                (_, fanout) => fanout as usize,
            };
            assert!(light.iter().all(|sample| sample.len() == expected), "{way:?} {fanout}");
        }
    }
}

#[test]
fn labor_takes_k_in_expectation_by_one_number_a_source() {
    let (degree, k) = (12u32, 4);
    let samples: Vec<Vec<u32>> = rich_trials(
        &vec![1.0; degree as usize],
        &vec![0; degree as usize],
        drawn(Way::Labor, Fanouts::Each(k)),
        64_000,
    )
    .collect();
    // All 64 nodes of a hop hear from the same sources, so they take the same ones: a hop is one trial.
    let hops: Vec<Vec<u32>> = samples
        .chunks(64)
        .map(|hop| {
            assert!(hop.iter().all(|sample| *sample == hop[0]), "sources are shared");
            hop[0].clone()
        })
        .collect();
    let mut sizes = HashMap::new();
    let mut each = HashMap::new();
    for sample in &hops {
        *sizes.entry(vec![sample.len() as u32]).or_default() += 1;
        sample.iter().for_each(|&source| *each.entry(vec![source]).or_default() += 1);
    }
    // The size is binomial; cells of few are put together.
    let p = k as f64 / f64::from(degree);
    let choose = |n: u32, r: u32| (0..r).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
    let binomial = |r: u32| choose(degree, r) * p.powi(r as i32) * (1.0 - p).powi((degree - r) as i32);
    let cell = |r: u32| vec![r.clamp(1, 8)];
    let (mut shares, mut counts) = (HashMap::new(), HashMap::new());
    (0..=degree).for_each(|r| *shares.entry(cell(r)).or_default() += binomial(r));
    sizes.iter().for_each(|(r, n): (&Vec<u32>, &u64)| *counts.entry(cell(r[0])).or_default() += n);
    fits(&counts, &shares, "how many");
    fits(&each, &(0..degree).map(|source| (vec![source], 1.0 / f64::from(degree))).collect(), "which");
}

#[test]
fn each_type_is_drawn_from_evenly_on_its_own() {
    // Types 0, 1, 2 by turns over nine edges: two of three of type 0, all of type 1, none of type 2.
    let types: Vec<u16> = (0..9).map(|i| i % 3).collect();
    let choice = drawn(Way::Uniform, Fanouts::ByType(vec![2, -1, 0]));
    let counts = count(rich_trials(&[1.0; 9], &types, choice, 32_000).map(|mut sample| {
        sample.sort_unstable();
        sample
    }));
    let shares = [[0, 3], [0, 6], [3, 6]].map(|pair| {
        let mut outcome = pair.to_vec();
        outcome.extend([1, 4, 7]);
        outcome.sort_unstable();
        (outcome, 1.0 / 3.0)
    });
    fits(&counts, &shares.into(), "by type");
}

#[test]
fn older_edges_are_drawn_evenly() {
    // Edge i is of time i, the seeds of time 6: two of the six that are older.
    let choice = Choice::Drawn(Drawn { way: Way::Uniform, fanouts: Fanouts::Each(2), temporal: true });
    let counts = count(rich_trials(&[1.0; 10], &[0; 10], choice, 32_000).map(|mut sample| {
        sample.sort_unstable();
        sample
    }));
    let pairs = (0..6u32).flat_map(|a| (a + 1..6).map(move |b| (vec![a, b], 1.0 / 15.0)));
    fits(&counts, &pairs.collect(), "older");
    let last = Choice::Drawn(Drawn { way: Way::Last, fanouts: Fanouts::Each(2), temporal: true });
    assert!(rich_trials(&[1.0; 10], &[0; 10], last, 640).all(|sample| sample == [4, 5]));
}

/// A layer's block, word for word as its documentation has it; rows are sorted.
fn naive_layer(rich: &Rich, list: &mut Vec<u32>, nodes: usize, key: Key) -> Block {
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
    let mut tree = crate::kernel::sample::sum_tree::SumTree::default();
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
        let kept = || rich.graph.indices[rich.row(v)].iter().copied().filter(|&u| scale(u) > 0.0);
        let sum: f64 = kept().map(scale).sum();
        for u in kept() {
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

fn layer(rich: &Rich, list: &mut Vec<u32>, nodes: u32, columns: Columns, key: Key) -> Block {
    let mut samples = Samples::new(columns);
    choose_neighbors(&rich.csc(), list, None, &Choice::Layer(nodes), key, &mut samples);
    let mut replies = Replies::new(1, rich.graph.nodes());
    replies.push_edges(0, &samples.counts, Edges { sources: &samples.neighbors, columns: samples.columns() }).unwrap();
    let mut compactor = Compactor::new(rich.graph.nodes());
    compactor.start(list);
    assemble_layer(list, |_| replies.next_edges(0), columns, nodes, key, &mut compactor)
}

#[test]
fn a_layer_is_the_obvious_one() {
    for_graphs(|graph, seeds, key| {
        if graph.nodes() > 400 {
            return;
        }
        let mut rows: Vec<Vec<u32>> =
            graph.indptr.windows(2).map(|ends| graph.indices[ends[0] as usize..ends[1] as usize].to_vec()).collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        let rich = Rich::new(Graph::new(&rows), key);
        for nodes in [0, 1, 5, 20, 1000] {
            let (mut list, mut expected_list) =
                (seeds[..seeds.len().min(20)].to_vec(), seeds[..seeds.len().min(20)].to_vec());
            let expected = naive_layer(&rich, &mut expected_list, nodes, key);
            let mut again = list.clone();
            let block = layer(&rich, &mut list, nodes as u32, Columns::default(), key);
            assert!(block == expected && list == expected_list, "{nodes} of {}", graph.nodes());
            let with = layer(&rich, &mut again, nodes as u32, ALL, key);
            assert_eq!((with.indices(), with.edge_weights()), (block.indices(), block.edge_weights()));
            let sources = with.edge_ids().unwrap().iter().map(|&id| rich.graph.indices[id as usize]);
            assert!(sources.eq(with.indices().iter().map(|&place| list[place as usize])));
        }
    });
}

#[test]
fn sources_of_a_layer_are_drawn_by_their_columns_norms() {
    // Node 0 hears from 2, 3; node 1 from 3, 4, 5, 5: P² sums to 1/4, 1/4 + 1/16, 1/16, 1/4.
    let graph = Graph::new(&[vec![2, 3], vec![3, 4, 5, 5], vec![], vec![], vec![], vec![]]);
    let rich = Rich::new(graph, Key::new(1, Purpose::Sample));
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
    fits(&counts, &shares, "two of four");
}
