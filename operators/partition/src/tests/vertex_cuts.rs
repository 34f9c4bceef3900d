//! Tests of DBH, greedy, HDRF and 2PS-L against their papers, and of the derived core nodes.

use super::*;
use crate::{Dbh, Degrees, Greedy, Hdrf, TwoPsL, VertexCut};
use gnnflow_data::GraphSize;
use gnnflow_data::rng::{Key, Purpose};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The degrees of both ends that a method uses at each edge.
fn degrees_at_each_edge(graph: &TestGraph, degrees: Degrees) -> Vec<[u64; 2]> {
    let count = |edges: &[(u32, u32)]| {
        let mut all: HashMap<u32, u64> = HashMap::new();
        edges.iter().flat_map(|&(u, v)| [u, v]).for_each(|end| *all.entry(end).or_default() += 1);
        all
    };
    let of = |all: &HashMap<u32, u64>, (u, v): (u32, u32)| [all[&u], all[&v]];
    match degrees {
        Degrees::Exact => {
            let all = count(&graph.edges);
            graph.edges.iter().map(|&edge| of(&all, edge)).collect()
        }
        Degrees::Online => (0..graph.edges.len()).map(|i| of(&count(&graph.edges[..=i]), graph.edges[i])).collect(),
    }
}

fn hash(goal: &Goal, node: u32) -> u32 {
    Key::new(goal.seed, Purpose::Partition).below(u64::from(node), u64::from(goal.parts)) as u32
}

fn most_edges(graph: &TestGraph, goal: &Goal) -> usize {
    let mean = graph.edges.len() as f64 / f64::from(goal.parts);
    (mean.ceil() as usize).max((1.05 * mean).floor() as usize)
}

#[derive(Default)]
struct Placed {
    /// A(v): the parts with an edge of v.
    of_node: HashMap<u32, BTreeSet<u32>>,
    load: HashMap<u32, usize>,
}

impl Placed {
    fn put(&mut self, (u, v): (u32, u32), part: u32) -> u32 {
        self.of_node.entry(u).or_default().insert(part);
        self.of_node.entry(v).or_default().insert(part);
        *self.load.entry(part).or_default() += 1;
        part
    }

    fn load(&self, part: u32) -> usize {
        self.load.get(&part).copied().unwrap_or(0)
    }

    fn parts(&self, node: u32) -> BTreeSet<u32> {
        self.of_node.get(&node).cloned().unwrap_or_default()
    }

    /// The part with the fewest edges, the lowest on a tie.
    fn least(&self, parts: impl IntoIterator<Item = u32>) -> Option<u32> {
        parts.into_iter().min_by_key(|&part| (self.load(part), part))
    }
}

fn dbh(graph: &TestGraph, goal: &Goal, degrees: Degrees) -> Vec<u32> {
    let at = degrees_at_each_edge(graph, degrees);
    let part = |(&(u, v), &[du, dv]): (&(u32, u32), &[u64; 2])| hash(goal, if du < dv { u } else { v });
    graph.edges.iter().zip(&at).map(part).collect()
}

fn greedy(graph: &TestGraph, goal: &Goal, degrees: Degrees) -> Vec<u32> {
    let most = most_edges(graph, goal);
    let total = degrees_at_each_edge(graph, Degrees::Exact);
    let mut placed = Placed::default();
    let mut degrees_so_far: HashMap<u32, u64> = HashMap::new();
    let mut parts = Vec::new();
    for (i, &(u, v)) in graph.edges.iter().enumerate() {
        let so_far = [u, v].map(|end| degrees_so_far.get(&end).copied().unwrap_or(0));
        let rank = match degrees {
            Degrees::Exact => [total[i][0] - so_far[0], total[i][1] - so_far[1]],
            Degrees::Online => so_far,
        };
        let (a, b) = (placed.parts(u), placed.parts(v));
        let both: BTreeSet<u32> = a.intersection(&b).copied().collect();
        let [first, second] = if rank[0] >= rank[1] { [a, b] } else { [b, a] };
        let open = |set: BTreeSet<u32>| set.into_iter().filter(|&part| placed.load(part) < most).collect::<Vec<_>>();
        let cases = [open(both), open(first), open(second), (0..goal.parts).collect()];
        let part = placed.least(cases.into_iter().find(|case| !case.is_empty()).unwrap()).unwrap();
        parts.push(placed.put((u, v), part));
        [u, v].into_iter().for_each(|end| *degrees_so_far.entry(end).or_default() += 1);
    }
    parts
}

fn hdrf(graph: &TestGraph, goal: &Goal, degrees: Degrees) -> Vec<u32> {
    let most = most_edges(graph, goal);
    let mut placed = Placed::default();
    let mut parts = Vec::new();
    for (&(u, v), [du, dv]) in graph.edges.iter().zip(degrees_at_each_edge(graph, degrees)) {
        let theta_u = du as f64 / (du + dv) as f64;
        let theta_v = 1.0 - theta_u;
        let loads: Vec<usize> = (0..goal.parts).map(|part| placed.load(part)).collect();
        let (largest, least) = (*loads.iter().max().unwrap() as f64, *loads.iter().min().unwrap() as f64);
        let mut best = None;
        for part in (0..goal.parts).filter(|&part| loads[part as usize] < most) {
            let g = |node: u32, theta: f64| if placed.parts(node).contains(&part) { 1.0 + (1.0 - theta) } else { 0.0 };
            let balance = 1.1 / (1.0 + largest - least) * (largest - loads[part as usize] as f64);
            let score = g(u, theta_u) + g(v, theta_v) + balance;
            if best.is_none_or(|(other, _)| score > other) {
                best = Some((score, part));
            }
        }
        parts.push(placed.put((u, v), best.unwrap().1));
    }
    parts
}

fn two_ps_l(graph: &TestGraph, goal: &Goal, degrees: Degrees, volume: f64) -> Vec<u32> {
    let tau = volume * 2.0 * graph.edges.len() as f64 / f64::from(goal.parts);
    // Phase 1.
    let mut d: HashMap<u32, u64> = HashMap::new();
    for (&(u, v), [du, dv]) in graph.edges.iter().zip(degrees_at_each_edge(graph, Degrees::Exact)) {
        d.extend([(u, du), (v, dv)]);
    }
    let exact = d.clone();
    if degrees == Degrees::Online {
        d.values_mut().for_each(|degree| *degree = 0);
    }
    let mut c: HashMap<u32, u32> = d.keys().map(|&v| (v, v)).collect();
    let mut vol: BTreeMap<u32, u64> = d.iter().map(|(&v, &degree)| (v, degree)).collect();
    for &(u, v) in &graph.edges {
        if degrees == Degrees::Online {
            for x in [u, v] {
                *d.get_mut(&x).unwrap() += 1;
                *vol.get_mut(&c[&x]).unwrap() += 1;
            }
        }
        let (cu, cv) = (c[&u], c[&v]);
        if cu == cv || vol[&cu] as f64 > tau || vol[&cv] as f64 > tau {
            continue;
        }
        let (small, from, to) = if vol[&cu] - d[&u] <= vol[&cv] - d[&v] { (u, cu, cv) } else { (v, cv, cu) };
        if (vol[&to] + d[&small]) as f64 <= tau {
            *vol.get_mut(&to).unwrap() += d[&small];
            *vol.get_mut(&from).unwrap() -= d[&small];
            c.insert(small, to);
        }
    }
    assert_eq!(d, exact);
    // Phase 2.
    let mut order: Vec<(u32, u64)> = vol.iter().map(|(&cluster, &volume)| (cluster, volume)).collect();
    order.sort_by_key(|&(cluster, volume)| (std::cmp::Reverse(volume), cluster));
    let mut volumes = vec![0; goal.parts as usize];
    let mut home: HashMap<u32, u32> = HashMap::new();
    for (cluster, volume) in order {
        let part = (0..goal.parts).min_by_key(|&part| (volumes[part as usize], part)).unwrap();
        volumes[part as usize] += volume;
        home.insert(cluster, part);
    }
    let most = most_edges(graph, goal);
    let mut placed = Placed::default();
    let mut parts = vec![0; graph.edges.len()];
    for inside in [true, false] {
        for (i, &(u, v)) in graph.edges.iter().enumerate() {
            let (pu, pv) = (home[&c[&u]], home[&c[&v]]);
            if (pu == pv) != inside {
                continue;
            }
            let total = (d[&u] + d[&v]) as f64;
            let volume = |x: u32| vol[&c[&x]] as f64;
            let score = |p: u32| {
                let g = |x: u32| if placed.parts(x).contains(&p) { 1.0 + (1.0 - d[&x] as f64 / total) } else { 0.0 };
                let s = |x: u32| if home[&c[&x]] == p { volume(x) / (volume(u) + volume(v)) } else { 0.0 };
                g(u) + g(v) + s(u) + s(v)
            };
            let mut best: Option<(f64, u32)> = None;
            for p in [pu, pv].into_iter().filter(|&p| placed.load(p) < most) {
                if best.is_none_or(|(other, _)| score(p) > other) {
                    best = Some((score(p), p));
                }
            }
            let part = best.map_or_else(
                || {
                    let hashed = hash(goal, if d[&u] > d[&v] { u } else { v });
                    if placed.load(hashed) < most { hashed } else { placed.least(0..goal.parts).unwrap() }
                },
                |(_, part)| part,
            );
            parts[i] = placed.put((u, v), part);
        }
    }
    parts
}

/// The part of every node, derived from the parts of its edges.
fn complete(graph: &TestGraph, edges: &[u32], goal: &Goal, held: bool) -> Vec<u32> {
    let mut votes: BTreeMap<u32, BTreeMap<u32, u32>> = BTreeMap::new();
    for (&(u, v), &part) in graph.edges.iter().zip(edges) {
        for end in [u, v] {
            *votes.entry(end).or_default().entry(part).or_default() += 1;
        }
    }
    let best = |votes: &BTreeMap<u32, u32>| {
        votes.iter().map(|(&part, &count)| (std::cmp::Reverse(count), part)).min().unwrap()
    };
    let mut size = vec![0; goal.parts as usize];
    let mut parts = vec![u32::MAX; graph.nodes as usize];
    let most = if held { bound(graph.nodes, goal) } else { u64::MAX };
    let mut order: Vec<u32> = votes.keys().copied().collect();
    if held {
        order.sort_by_key(|node| (best(&votes[node]).0, *node));
    }
    for node in order {
        let open =
            votes[&node].iter().filter(|(part, _)| size[**part as usize] < most).map(|(&part, &count)| (part, count));
        let open: BTreeMap<u32, u32> = open.collect();
        if !open.is_empty() {
            let part = best(&open).1;
            parts[node as usize] = part;
            size[part as usize] += 1;
        }
    }
    // With `held`, nodes without a free part first, in their order; then nodes without edges by index.
    let mut rest: Vec<u32> = (0..graph.nodes).filter(|&node| parts[node as usize] == u32::MAX).collect();
    rest.sort_by_key(|node| (votes.get(node).map_or(std::cmp::Reverse(0), |votes| best(votes).0), *node));
    for node in rest {
        let part = (0..goal.parts).min_by_key(|&part| (size[part as usize], part)).unwrap();
        parts[node as usize] = part;
        size[part as usize] += 1;
    }
    parts
}

/// Compares a method with the core nodes derived from the paper's edge parts.
fn compare(method: impl Fn(VertexCut) -> Box<dyn Partitioner>, paper: impl Fn(&TestGraph, &Goal, Degrees) -> Vec<u32>) {
    for graph in all_graphs().into_iter().filter(|graph| graph.edges.len() < 5000) {
        for goal in goals() {
            for degrees in [Degrees::Exact, Degrees::Online] {
                let edges = paper(&graph, &goal, degrees);
                for hold_balance in [false, true] {
                    let method = method(VertexCut { degrees, hold_balance });
                    let found = parts(&*method, &graph.stream(), &goal);
                    let expected = complete(&graph, &edges, &goal, hold_balance);
                    assert_eq!(found, expected, "{} {} {goal:?} {degrees:?} {hold_balance}", method.name(), graph.name);
                    if hold_balance {
                        let most = bound(graph.nodes, &goal);
                        assert!(sizes(&found, &goal).iter().all(|&size| size <= most), "{} {goal:?}", graph.name);
                    }
                }
            }
        }
    }
}

#[test]
fn dbh_equals_the_paper() {
    compare(|cut| Box::new(Dbh(cut)), dbh);
}

#[test]
fn greedy_equals_the_paper() {
    compare(|cut| Box::new(Greedy(cut)), greedy);
}

#[test]
fn hdrf_equals_the_paper() {
    compare(|cut| Box::new(Hdrf(cut)), hdrf);
}

#[test]
fn two_ps_l_equals_the_paper() {
    for volume in [0.2, 1.0] {
        compare(|cut| Box::new(TwoPsL { cut, volume }), |graph, goal, degrees| two_ps_l(graph, goal, degrees, volume));
    }
}

#[test]
fn small_memory_uses_sketches() {
    let graph = communities(12, 60, 1);
    // 720 nodes and 16 parts take 1,440 bytes of sets and 46,080 of counters; a sketch of 4 slots takes 17,280.
    let sketched = Goal { memory: 35_000, ..Goal::new(16) };
    let size = GraphSize { nodes: 720, edges: 0, processes: 1 };
    for method in
        [Box::new(Greedy::default()) as Box<dyn Partitioner>, Box::new(Hdrf::default()), Box::new(TwoPsL::default())]
    {
        let needed = |goal: &Goal| method.needed_bytes(size, goal);
        assert!((18_000..45_000).contains(&needed(&sketched)) && needed(&Goal::new(16)) > 46_080);
        assert!(method.memory_decides());
        let exact = parts(&*method, &graph.stream(), &Goal::new(16));
        let found = parts(&*method, &graph.stream(), &sketched);
        let same = exact.iter().zip(&found).filter(|(a, b)| a == b).count();
        assert!(same * 10 > exact.len() * 9, "{}: {same} of {}", method.name(), exact.len());
    }
}
