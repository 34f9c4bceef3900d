//! Tests of SPRING against Algorithm 1 of its paper.

use super::*;
use crate::{Degrees, Spring};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Algorithm 1, line by line, with ties broken as documented.
fn paper(graph: &TestGraph, goal: &Goal, volume: f64, degrees: Degrees) -> Vec<u32> {
    let (n, p) = (graph.nodes, goal.parts);
    let tau = volume * 2.0 * graph.edges.len() as f64 / f64::from(p);
    let mut d: HashMap<u32, u64> = (0..n).map(|v| (v, 0)).collect();
    if degrees == Degrees::Exact {
        for &(u, v) in &graph.edges {
            *d.get_mut(&u).unwrap() += 1;
            *d.get_mut(&v).unwrap() += 1;
        }
    }
    // Node clustering.
    let mut c: HashMap<u32, u32> = HashMap::new();
    let mut vol: HashMap<u32, u64> = HashMap::new();
    let mut rich: HashMap<u32, u32> = HashMap::new();
    for &(u, v) in &graph.edges {
        for x in [u, v] {
            c.entry(x).or_insert_with(|| {
                vol.insert(x, d[&x]);
                x
            });
        }
        if degrees == Degrees::Online {
            for x in [u, v] {
                *d.get_mut(&x).unwrap() += 1;
                *vol.get_mut(&c[&x]).unwrap() += 1;
            }
        }
        if u == v {
            continue;
        }
        let (cu, cv) = (c[&u], c[&v]);
        if cu != cv && vol[&cu] as f64 <= tau && vol[&cv] as f64 <= tau {
            let (node, from, to) = if vol[&cu] <= vol[&cv] { (u, cu, cv) } else { (v, cv, cu) };
            *vol.get_mut(&from).unwrap() -= d[&node];
            *vol.get_mut(&to).unwrap() += d[&node];
            c.insert(node, to);
        }
        for (x, y) in [(u, v), (v, u)] {
            let richer = |&old: &u32| d[&y] > d[&old] || d[&y] == d[&old] && y < old;
            if rich.get(&x).is_none_or(richer) {
                rich.insert(x, y);
            }
        }
    }
    for v in 0..n {
        c.entry(v).or_insert(v);
    }
    // Cluster merging.
    let mut members: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (&v, &cluster) in &c {
        members.entry(cluster).or_default().insert(v);
    }
    let representative = |nodes: &BTreeSet<u32>| -> Option<u32> {
        let neighbors = nodes.iter().filter_map(|v| rich.get(v).copied());
        neighbors.min_by_key(|t| (std::cmp::Reverse(d[t]), *t))
    };
    let most = goal.balance.nodes * f64::from(n) / f64::from(p);
    let mut scan: BTreeSet<(usize, u32)> = members.iter().map(|(&i, nodes)| (nodes.len(), i)).collect();
    while let Some((_, i)) = scan.pop_first() {
        let Some(neighbor) = representative(&members[&i]) else { continue };
        let t = c[&neighbor];
        if t != i && (members[&i].len() + members[&t].len()) as f64 <= most {
            scan.remove(&(members[&t].len(), t));
            let moved = members.remove(&i).unwrap();
            c.extend(moved.iter().map(|&v| (v, t)));
            members.get_mut(&t).unwrap().extend(moved);
            scan.insert((members[&t].len(), t));
        }
    }
    // Assigning clusters to partitions.
    let mut order: Vec<(&u32, &BTreeSet<u32>)> = members.iter().collect();
    order.sort_by_key(|(i, nodes)| (std::cmp::Reverse(nodes.len()), **i));
    let mut loads = vec![0; p as usize];
    let mut part = vec![0; n as usize];
    for (_, nodes) in order {
        let t = (0..p as usize).min_by_key(|&t| (loads[t], t)).unwrap();
        loads[t] += nodes.len();
        nodes.iter().for_each(|&v| part[v as usize] = t as u32);
    }
    part
}

#[test]
fn spring_equals_algorithm_1_where_that_is_balanced() {
    let mut same = 0;
    for graph in all_graphs() {
        for goal in goals() {
            for (volume, degrees) in
                [(0.02, Degrees::Exact), (0.3, Degrees::Exact), (1.0, Degrees::Exact), (0.3, Degrees::Online)]
            {
                let found = parts(&Spring { degrees, volume }, &graph.stream(), &goal);
                let most = bound(graph.nodes, &goal);
                assert!(sizes(&found, &goal).iter().all(|&size| size <= most), "{} {goal:?}", graph.name);
                let expected = paper(&graph, &goal, volume, degrees);
                if sizes(&expected, &goal).iter().all(|&size| size <= most) {
                    assert_eq!(found, expected, "{} {goal:?} {volume} {degrees:?}", graph.name);
                    same += usize::from(goal.parts > 1 && graph.nodes > 100);
                }
            }
        }
    }
    assert!(same > 50, "{same} graphs could be compared");
}

#[test]
fn spring_on_communities_cuts_few_edges() {
    let graph = communities(4, 100, 5);
    let goal = Goal::new(4);
    let part = parts(&Spring::default(), &graph.stream(), &goal);
    let cut = graph.edges.iter().filter(|&&(u, v)| part[u as usize] != part[v as usize]).count();
    // At most an eighth of the edges joins two groups. A random assignment would cut three quarters of all edges.
    assert!(cut * 10 < graph.edges.len() * 4, "{cut} of {}", graph.edges.len());
}

#[test]
fn spring_resumes_after_clustering() {
    let graph = communities(12, 60, 1);
    let stream = graph.stream();
    let first = parts(&Spring::default(), &stream, &Goal::new(4));
    assert_eq!(*stream.passes.borrow(), ["counting degrees", "clustering nodes"]);
    assert_eq!(parts(&Spring::default(), &stream, &Goal::new(4)), first);
    assert_eq!(stream.passes.borrow().len(), 2);
    // A truncated journal entry is ignored.
    stream.saved.borrow_mut().values_mut().for_each(|bytes| bytes.truncate(100));
    assert_eq!(parts(&Spring::default(), &stream, &Goal::new(4)), first);
    assert_eq!(stream.passes.borrow().len(), 4);
}
