//! Compares the frequencies of draws by weight, type and time with their probabilities.

use super::per_edge::RichGraph;
use super::*;

/// Samples of a node with these in-edges under many keys: 64 nodes per hop.
fn rich_trials(weights: &[f32], types: &[u16], strategy: Strategy, trials: u64) -> impl Iterator<Item = Vec<u32>> {
    let (nodes, degree) = (64u32, weights.len());
    let graph = Graph::new(&vec![(0..degree as u32).collect(); nodes as usize]);
    let repeat = |column: &[f32]| column.repeat(nodes as usize);
    let times = (0..nodes).flat_map(|_| 0..degree as i64).collect();
    let rich = RichGraph { weights: repeat(weights), types: types.repeat(nodes as usize), times, graph };
    let every: Vec<u32> = (0..nodes).collect();
    (0..trials / u64::from(nodes)).flat_map(move |hop| {
        let mut samples = Samples::default();
        let at = vec![6; every.len()];
        let trees = strategy.is_temporal().then_some(Trees { trees: &every, times: &at });
        choose_neighbors(&rich.csc(), &every, trees, &strategy, Key::new(23, Purpose::Sample).fold(hop), &mut samples);
        let mut rest = &samples.neighbors[..];
        let split = |&count: &u32| rest.split_off(..count as usize).unwrap().to_vec();
        samples.counts.iter().map(split).collect::<Vec<_>>()
    })
}

/// Asserts that the chi-square of `counts` for the probabilities `shares` is below its 0.999 quantile.
pub(super) fn assert_frequencies(counts: &HashMap<Vec<u32>, u64>, shares: &HashMap<Vec<u32>, f64>, what: &str) {
    let total = counts.values().sum::<u64>() as f64;
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-9, "{what}: shares sum to 1");
    assert!(counts.keys().all(|outcome| shares.contains_key(outcome)), "{what}: an outcome of probability 0");
    let cell = |(outcome, share): (&Vec<u32>, &f64)| {
        (*counts.get(outcome).unwrap_or(&0) as f64 - share * total).powi(2) / (share * total)
    };
    let chi: f64 = shares.iter().map(cell).sum();
    let limit = chi_square_limit(shares.len() as f64 - 1.0);
    assert!(chi < limit, "{what}: {chi} exceeds {limit}");
}

fn per_edge(draw: Draw, fanouts: EdgeFanout) -> Strategy {
    Strategy::PerEdge(PerEdgeStrategy { draw, fanouts, temporal: false })
}

pub(super) fn count(samples: impl Iterator<Item = Vec<u32>>) -> HashMap<Vec<u32>, u64> {
    let mut counts = HashMap::new();
    samples.for_each(|sample| *counts.entry(sample).or_default() += 1);
    counts
}

#[test]
fn weighted_draws_have_the_probabilities_of_successive_sampling() {
    let weights = [1.0, 0.0, 2.5, 0.5, 4.0, 2.0];
    let total: f64 = weights.iter().sum();
    let counts =
        count(rich_trials(&weights.map(|w| w as f32), &[0; 6], per_edge(Draw::Weighted, EdgeFanout::Each(2)), 96_000));
    let mut shares = HashMap::new();
    for (i, first) in weights.iter().enumerate() {
        for (j, second) in weights.iter().enumerate().filter(|&(j, second)| j != i && *second > 0.0 && *first > 0.0) {
            shares.insert(vec![i as u32, j as u32], first / total * second / (total - first));
        }
    }
    assert_frequencies(&counts, &shares, "two of six");
}

#[test]
fn weighted_draws_with_replacement_are_independent_and_proportional() {
    let weights: Vec<f64> = (0..20).map(|i| f64::from(i % 5)).collect();
    let total: f64 = weights.iter().sum();
    let single: Vec<f32> = weights.iter().map(|&w| w as f32).collect();
    let strategy = per_edge(Draw::WeightedWithReplacement, EdgeFanout::Each(2));
    let counts = count(rich_trials(&single, &[0; 20], strategy, 192_000));
    let heavy = || weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
    let shares = heavy()
        .flat_map(|(i, a)| heavy().map(move |(j, b)| (vec![i as u32, j as u32], a / total * b / total)))
        .collect();
    assert_frequencies(&counts, &shares, "pairs");
}

#[test]
fn weighted_draws_from_a_hub_are_proportional() {
    // 99,999 in-edges; the thirds have weights 0, 1, 3. Removing 30 picks hardly changes the probabilities.
    let degree = 99_999u32;
    let graph = Graph::new(&[(0..degree).collect()]);
    let weights = (0..degree).map(|i| [0.0, 1.0, 3.0][(i / (degree / 3)) as usize]).collect();
    let rich = RichGraph { weights, types: vec![0; degree as usize], times: vec![0; degree as usize], graph };
    let mut cells = HashMap::new();
    for trial in 0..600 {
        let mut samples = Samples::default();
        let key = Key::new(trial, Purpose::Sample);
        choose_neighbors(&rich.csc(), &[0], None, &per_edge(Draw::Weighted, EdgeFanout::Each(30)), key, &mut samples);
        for pick in samples.neighbors {
            *cells.entry(vec![pick / 3333]).or_default() += 1;
        }
    }
    let share = |cell: u32| (vec![cell], if cell < 20 { 0.1 / 4.0 } else { 0.3 / 4.0 });
    // 99,999 = 30 · 3,333 + 9: the last nine form cell 30.
    if let Some(rest) = cells.remove(&vec![30]) {
        *cells.entry(vec![29]).or_default() += rest;
    }
    assert_frequencies(&cells, &(10..30).map(share).collect(), "hub");
}

#[test]
fn weighted_draws_never_take_edges_of_weight_0() {
    for draw in [Draw::Weighted, Draw::WeightedWithReplacement] {
        for fanout in [-1, 0, 1, 2, 3, 50] {
            let samples = |weights: &[f32]| {
                rich_trials(weights, &vec![0; weights.len()], per_edge(draw, EdgeFanout::Each(fanout)), 640)
                    .collect::<Vec<_>>()
            };
            assert!(samples(&[0.0; 5]).iter().all(Vec::is_empty));
            let light = samples(&[0.0, 1.0, 0.0, 7.0, 0.0]);
            assert!(light.iter().flatten().all(|&pick| pick == 1 || pick == 3));
            let expected = match (draw, fanout) {
                (_, -1) | (Draw::Weighted, 2..) => 2,
                (_, fanout) => fanout as usize,
            };
            assert!(light.iter().all(|sample| sample.len() == expected), "{draw:?} {fanout}");
        }
    }
}

#[test]
fn labor_takes_k_edges_in_expectation_with_one_number_per_source() {
    let (degree, k) = (12u32, 4);
    let samples: Vec<Vec<u32>> = rich_trials(
        &vec![1.0; degree as usize],
        &vec![0; degree as usize],
        per_edge(Draw::Labor, EdgeFanout::Each(k)),
        64_000,
    )
    .collect();
    // All 64 nodes of a hop have the same sources, so they take the same ones: a hop is one trial.
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
    // The size is binomial; rare sizes share a cell.
    let p = k as f64 / f64::from(degree);
    let choose = |n: u32, r: u32| (0..r).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
    let binomial = |r: u32| choose(degree, r) * p.powi(r as i32) * (1.0 - p).powi((degree - r) as i32);
    let cell = |r: u32| vec![r.clamp(1, 8)];
    let (mut shares, mut counts) = (HashMap::new(), HashMap::new());
    (0..=degree).for_each(|r| *shares.entry(cell(r)).or_default() += binomial(r));
    sizes.iter().for_each(|(r, n): (&Vec<u32>, &u64)| *counts.entry(cell(r[0])).or_default() += n);
    assert_frequencies(&counts, &shares, "sample sizes");
    assert_frequencies(&each, &(0..degree).map(|source| (vec![source], 1.0 / f64::from(degree))).collect(), "sources");
}

#[test]
fn fanouts_by_type_draw_uniformly_per_type() {
    // Types 0, 1, 2 alternate over nine edges: two of three of type 0, all of type 1, none of type 2.
    let types: Vec<u16> = (0..9).map(|i| i % 3).collect();
    let strategy = per_edge(Draw::Uniform, EdgeFanout::ByType(vec![2, -1, 0]));
    let counts = count(rich_trials(&[1.0; 9], &types, strategy, 32_000).map(|mut sample| {
        sample.sort_unstable();
        sample
    }));
    let shares = [[0, 3], [0, 6], [3, 6]].map(|pair| {
        let mut outcome = pair.to_vec();
        outcome.extend([1, 4, 7]);
        outcome.sort_unstable();
        (outcome, 1.0 / 3.0)
    });
    assert_frequencies(&counts, &shares.into(), "by type");
}

#[test]
fn temporal_draws_are_uniform_over_older_edges() {
    // Edge i has time i, the seeds have time 6: two of six older edges.
    let strategy =
        Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Uniform, fanouts: EdgeFanout::Each(2), temporal: true });
    let counts = count(rich_trials(&[1.0; 10], &[0; 10], strategy, 32_000).map(|mut sample| {
        sample.sort_unstable();
        sample
    }));
    let pairs = (0..6u32).flat_map(|a| (a + 1..6).map(move |b| (vec![a, b], 1.0 / 15.0)));
    assert_frequencies(&counts, &pairs.collect(), "older");
    let last = Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Last, fanouts: EdgeFanout::Each(2), temporal: true });
    assert!(rich_trials(&[1.0; 10], &[0; 10], last, 640).all(|sample| sample == [4, 5]));
}
