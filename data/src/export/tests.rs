//! Prepares an exported dataset again with the same partitions and compares the graphs.

use std::fs::File;

use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;
use crate::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use crate::prepare::{PrepareSettings, prepare};
use crate::progress::Silent;
use crate::source::{Duplicates, FeatureDtype, GraphSource, SelfLoops};
use crate::testing::{IdStyle, Modulo, graphs};

/// Assigns every node to the part in column `partition` of the node table.
struct Column(Vec<u16>);

impl Partitioner for Column {
    fn name(&self) -> &str {
        "column"
    }

    fn assign(&self, _: &dyn GraphStream, _: &Goal) -> Result<Assignment> {
        Ok(Assignment::Stored(self.0.clone()))
    }
}

fn partitions(path: &Path) -> Vec<u16> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    let parts = |batch: arrow::array::RecordBatch| batch["partition"].as_primitive::<Int32Type>().values().to_vec();
    reader.flat_map(|batch| parts(batch.unwrap())).map(|part| part as u16).collect()
}

fn prepared(source: &GraphSource, partitioner: &dyn Partitioner, out: &Path) -> Dataset {
    let settings = PrepareSettings { memory: 1 << 20, ..PrepareSettings::new(out, 3) };
    prepare(source, partitioner, &settings, &Silent).unwrap();
    Dataset::open(out).unwrap()
}

/// Exports, prepares again, and compares everything but fingerprints and file names.
fn round_trip(dataset: &Dataset, dir: &Path, file_rows: Option<u64>) {
    let out = dir.join("export");
    let exported = export(dataset, &out, file_rows, &Silent).unwrap();
    let manifest = dataset.manifest();
    assert_eq!((exported.nodes, exported.edges, exported.parts), (manifest.nodes, manifest.edges, 3));
    let source = GraphSource {
        nodes: vec![exported.nodes_path.clone()],
        edges: vec![exported.edges_path.clone()],
        feature_dtype: vec![manifest.features.dtype],
        ..recipe(dataset).source()
    };
    let mut files = vec![exported.nodes_path.clone()];
    if file_rows.is_some() {
        files = source.node_files().unwrap().iter().map(|file| file.path().to_path_buf()).collect();
    }
    let parts = files.iter().flat_map(|file| partitions(file)).collect();
    let again = prepared(&source, &Column(parts), &dir.join("again"));

    let other = again.manifest();
    assert_eq!((&manifest.offsets, manifest.edges, manifest.ids), (&other.offsets, other.edges, other.ids));
    assert_eq!((manifest.features.dim, manifest.splits), (other.features.dim, other.splits));
    assert_eq!((&manifest.labels, &manifest.node_types), (&other.labels, &other.node_types));
    let (columns, others) = (&manifest.edge_columns, &other.edge_columns);
    assert_eq!((columns.features, columns.split), (others.features, others.split));
    // A class without any remaining edge is lost.
    let complete = columns.label.as_ref().is_none_or(|labels| labels.counts.iter().all(|&count| count > 0));
    assert!(!complete || columns.label == others.label, "{:?} and {:?}", columns.label, others.label);
    for part in 0..3 {
        let (a, b) = (dataset.partition(part).unwrap(), again.partition(part).unwrap());
        assert_eq!((a.topology.indptr(), a.topology.indices()), (b.topology.indptr(), b.topology.indices()));
        assert_eq!((a.topology.weights(), a.topology.times()), (b.topology.weights(), b.topology.times()));
        assert_eq!(a.topology.edge_features(), b.topology.edge_features());
        assert_eq!((a.topology.splits(), a.topology.labels()), (b.topology.splits(), b.topology.labels()));
        assert_eq!(a.topology.edge_types(), b.topology.edge_types());
        assert_eq!(a.features.bytes(), b.features.bytes());
        assert_eq!(format!("{:?}", a.nodes), format!("{:?}", b.nodes));
    }
}

#[test]
fn export_prepared_again_gives_the_same_graph() {
    for graph in graphs() {
        for (ids, undirected, self_loops, dtype) in [
            (IdStyle::Dense, true, SelfLoops::Keep, FeatureDtype::F32),
            (IdStyle::Sparse, false, SelfLoops::Add, FeatureDtype::F16),
            (IdStyle::Text, true, SelfLoops::Drop, FeatureDtype::Bf16),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut source = graph.dump(dir.path(), ids).unwrap();
            source.columns.weight = Some("weight".into());
            source.columns.time = Some("ts".into());
            source.columns.edge_features = vec!["up".into(), "down".into()];
            source.columns.node_type = Some("kind".into());
            source.columns.edge_split = Some("esplit".into());
            source.columns.edge_label = Some("eclass".into());
            source.columns.edge_type = (self_loops != SelfLoops::Add).then(|| "etype".into());
            (source.undirected, source.self_loops, source.feature_dtype) = (undirected, self_loops, vec![dtype]);
            source.duplicates = Duplicates::Keep;
            let dataset = prepared(&source, &Modulo, &dir.path().join("dataset"));
            round_trip(&dataset, dir.path(), (ids == IdStyle::Text).then_some(1));
        }
    }
}

#[test]
fn types_not_in_the_order_of_their_names_are_exported_as_numbers() {
    let graph = graphs().into_iter().find(|graph| graph.name == "multi-edge").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut source = graph.dump(dir.path(), IdStyle::Dense).unwrap();
    source.columns.edge_type = Some("etype".into());
    // The type of added self-loops is the last number, but its name sorts first.
    source.self_loops = SelfLoops::Add;
    let dataset = prepared(&source, &Modulo, &dir.path().join("dataset"));
    assert!(!Names::of(&dataset).edge_types);
    round_trip(&dataset, dir.path(), None);
    source.self_loops = SelfLoops::Keep;
    let dataset = prepared(&source, &Modulo, &dir.path().join("dataset"));
    assert!(Names::of(&dataset).edge_types);
}

#[test]
fn damaged_dataset_is_not_exported() {
    let graph = graphs().into_iter().find(|graph| graph.name == "path").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dataset = prepared(&graph.dump(dir.path(), IdStyle::Dense).unwrap(), &Modulo, &dir.path().join("dataset"));
    std::fs::remove_file(dir.path().join("dataset/part-00001/nodes.arrow")).unwrap();
    let error = export(&dataset, &dir.path().join("out"), None, &Silent).unwrap_err();
    assert_eq!(error.fault(), crate::Fault::Input);
    assert!(!dir.path().join("out").exists());
}
