//! Compares sampling without excluded edges with sampling from a graph that lacks them.

use super::per_edge::{ALL, RichGraph};
use super::*;

/// Returns the graph without the `excluded` edge positions, and the original positions of its edges.
fn rebuilt(rich: &RichGraph, excluded_edges: &HashSet<usize>) -> (RichGraph, Vec<u64>) {
    let (mut rows, mut left) = (Vec::new(), Vec::new());
    for node in 0..rich.graph.nodes() as u32 {
        let row: Vec<usize> = rich.row(node).filter(|edge| !excluded_edges.contains(edge)).collect();
        rows.push(row.iter().map(|&edge| rich.graph.indices[edge]).collect::<Vec<u32>>());
        left.extend(row);
    }
    let rebuilt = RichGraph {
        graph: Graph::new(&rows),
        weights: left.iter().map(|&edge| rich.weights[edge]).collect(),
        types: left.iter().map(|&edge| rich.types[edge]).collect(),
        times: left.iter().map(|&edge| rich.times[edge]).collect(),
    };
    (rebuilt, left.into_iter().map(|edge| edge as u64).collect())
}

#[test]
fn samples_without_excluded_edges_equal_those_of_a_graph_that_lacks_them() {
    for seed in 0..12 {
        let key = Key::new(seed, Purpose::Sample);
        let mut graph = Graph::random(key, 60);
        for node in 0..60 {
            let row = graph.indptr[node] as usize..graph.indptr[node + 1] as usize;
            graph.indices[row].sort_unstable();
        }
        let rich = RichGraph::new(graph, key);
        let edges = rich.graph.indices.len() as u64;
        let owner = |edge: usize| rich.graph.indptr.partition_point(|&start| start <= edge as i64) as u32 - 1;
        let name =
            |edge: usize| EdgeName { to: owner(edge), from: rich.graph.indices[edge], edge_type: rich.types[edge] };
        // Some edges of the graph (parallel edges of a type share a name), and some that it lacks.
        let mut names: Vec<EdgeName> = (0..edges / 5).map(|i| name(key.fold(8).below(i, edges) as usize)).collect();
        names.extend((0..20).map(|i| EdgeName { to: i, from: 59 - i, edge_type: 9 }));
        let excluded_edges: HashSet<usize> = (0..edges as usize).filter(|&edge| names.contains(&name(edge))).collect();
        let (rebuilt, left) = rebuilt(&rich, &excluded_edges);
        let (csc, excluded) = (rich.csc(), Excluded::new(names));
        let without = Without::new(&csc, &excluded, |_| true);
        for strategy in super::per_edge::strategies() {
            let (mut list, mut expected_list) = (vec![1, 17, 42, 5], vec![1, 17, 42, 5]);
            let mut compactor = Compactor::new(60);
            compactor.start(&list);
            let block = choose_hop(&without, &mut list, &strategy, ALL, key, &mut compactor);
            compactor.start(&expected_list);
            let expected = choose_hop(&rebuilt.csc(), &mut expected_list, &strategy, ALL, key, &mut compactor);
            assert_eq!(list, expected_list);
            assert_eq!((block.indptr(), block.indices()), (expected.indptr(), expected.indices()));
            assert_eq!((block.edge_types(), block.edge_weights()), (expected.edge_types(), expected.edge_weights()));
            // Ids refer to the complete graph.
            let ids: Vec<u64> = expected.edge_ids().unwrap().iter().map(|&id| left[id as usize]).collect();
            assert_eq!(block.edge_ids().unwrap(), ids);
            assert!(ids.iter().all(|&id| !excluded_edges.contains(&(id as usize))));
        }
    }
}
