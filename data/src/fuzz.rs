//! Fuzz targets: the decoders of this crate, with checks of what they accept. `fuzz/` has the programs for `cargo fuzz`; the tests
//! of this module run the same functions without it.
//!
//! Each function returns whether the bytes were accepted.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Once};

use crate::dataset::{Encoding, FileInfo, FileKind, LabelEncoding, Manifest, part_folder};
use crate::decoding::is_of_a_file;
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Fault, Result};
use crate::import::{EmptyIds, Import, Kind, NodeArrays, OgbPart, TextOptions};
use crate::init::{ColumnNames, Init};
use crate::inspect::inspect;
use crate::prepare::{PrepareSettings, prepare};
use crate::progress::{Progress, Silent};
use crate::source::{Columns, GraphSource};
use crate::testing::corpus::parts;
use crate::testing::{IdStyle, Modulo, TestGraph};
use crate::{Dataset, PartitionBook};

/// Imports of more nodes or edges than this are not run to their end: a few bytes may describe a graph of any size.
const MOST_ROWS: u64 = 1 << 16;

/// Tells an import that it has too many rows.
struct TooManyRows;

impl Progress for TooManyRows {
    fn stage(&self, _name: &str, total: Option<u64>, _unit: &str) {
        if total.is_some_and(|total| total > MOST_ROWS) {
            resume_unwind(Box::new(TooManyRows));
        }
    }
    fn advance(&self, _by: u64) {}
    fn done(&self) {}
}

/// Returns a result that is not an error. An error must be one of the input or, if a table is large, of the settings, in one line.
fn accepted<T>(result: Result<T>) -> Option<T> {
    let refused = |error: &Error| {
        let text = error.to_string();
        assert!(matches!(error.fault(), Fault::Input | Fault::Usage), "not an error of the input: {text}");
        assert!(!text.contains('\n'), "not one line: {text}");
    };
    result.inspect_err(refused).ok()
}

/// Lets the decoder of Parquet panic, as the program does: such panics become errors of the file. The hook of a fuzzer would end the
/// process.
fn allow_panics_of_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !is_of_a_file(info) {
                before(info);
            }
        }));
    });
}

/// Writes the tables of a small graph into `nodes/` and `edges/`, and a dataset of them, with all kinds of columns, into `dataset/`.
fn prepare_small(place: &Path, ids: IdStyle) -> Manifest {
    let graph = TestGraph { name: "small", nodes: 9, edges: (0..24).map(|i| (i * 5 % 9, i * i % 7)).collect() };
    let source = graph.dump(place, ids).expect("a dump can be written");
    let source = GraphSource { columns: all_columns(), ..source };
    let settings = PrepareSettings { halo_features: true, ..PrepareSettings::new(place.join("dataset"), 2) };
    prepare(&source, &Modulo, &settings, &Silent).expect("the graph can be prepared");
    Manifest::read(&place.join("dataset")).expect("the manifest is written")
}

static INTEGERS: LazyLock<Manifest> = LazyLock::new(|| prepare_small(folder().path(), IdStyle::Sparse));
static STRINGS: LazyLock<Manifest> = LazyLock::new(|| prepare_small(folder().path(), IdStyle::Text));
/// The files of nodes and of edges.
static TABLES: LazyLock<[[Vec<u8>; 2]; 2]> = LazyLock::new(|| {
    let place = folder();
    prepare_small(place.path(), IdStyle::Sparse);
    let read = |path: PathBuf| std::fs::read(path).expect("a file can be read");
    ["nodes", "edges"].map(|table| [0, 1].map(|part| read(place.path().join(table).join(part_name(part)))))
});

fn part_name(part: usize) -> String {
    format!("part-{part}.parquet")
}

fn all_columns() -> Columns {
    let name = |name: &str| Some(name.to_owned());
    Columns {
        features: vec!["x".into()],
        label: name("label"),
        split: name("split"),
        node_type: name("kind"),
        weight: name("weight"),
        edge_type: name("etype"),
        time: name("ts"),
        edge_features: vec!["up".into(), "down".into()],
        edge_split: name("esplit"),
        edge_label: name("eclass"),
        ..Columns::default()
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder can be created")
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap_or(path)).expect("a folder can be created");
    std::fs::write(path, bytes).expect("a file can be written");
}

/// `manifest.json`, as it is and with a right checksum.
pub fn manifest(bytes: &[u8]) -> bool {
    let place = folder();
    let path = place.path().join(Manifest::FILE);
    let open = |bytes: &[u8]| {
        write(&path, bytes);
        accepted(Dataset::open(place.path()))
    };
    let key = b",\n  \"crc32\": ";
    let end = bytes.windows(key.len()).rposition(|window| window == key);
    let content = &bytes[..end.unwrap_or(bytes.trim_ascii_end().len().saturating_sub(1))];
    let sealed = [content, key, crc32fast::hash(content).to_string().as_bytes(), b"\n}"].concat();
    let as_it_is = open(bytes).is_some();
    let Some(dataset) = open(&sealed) else { return as_it_is };
    let manifest = dataset.manifest();
    write(&path, accepted(manifest.to_json()).expect("a manifest can be written").as_bytes());
    assert_eq!(accepted(Manifest::read(place.path())).as_ref(), Some(manifest), "it is read as it is written");
    let book = PartitionBook::new(manifest.offsets.clone()).expect("offsets are checked");
    assert_eq!((book.parts(), book.nodes()), (manifest.parts(), manifest.nodes));
    assert_eq!(manifest.partitions.iter().map(|part| part.nodes).sum::<u64>(), manifest.nodes);
    let encoding = Encoding::of(manifest);
    let _ = (encoding.table_edge_types(), encoding.features.describe("feature"), manifest.num_classes());
    let _ = (LabelEncoding::describe(encoding.labels.as_ref()), manifest.features.layout().row_bytes());
    // There are no files.
    assert!((0..manifest.parts().min(4)).all(|part| accepted(dataset.partition(part)).is_none()));
    true
}

/// A file of a partition with right checksums: a byte that says which, then its content.
pub fn partition(bytes: &[u8]) -> bool {
    allow_panics_of_files();
    let Some((&which, content)) = bytes.split_first() else { return false };
    let kind = FileKind::ALL[usize::from(which % 4)];
    let place = folder();
    let crc32 = crc32fast::hash(content);
    // All bytes count as headers.
    let info = FileInfo { bytes: content.len() as u64, body: (0, 0), headers_crc32: crc32, crc32 };
    let mut manifest = if which & 4 == 0 { INTEGERS.clone() } else { STRINGS.clone() };
    let part = &mut manifest.partitions[0];
    match kind {
        FileKind::Features => part.features = Some(info),
        FileKind::Halo => part.halo = Some(info),
        FileKind::Nodes => part.node_columns = info,
        FileKind::Topology => part.topology = info,
    }
    write(&place.path().join(part_folder(0)).join(kind.name()), content);
    write(&place.path().join(Manifest::FILE), manifest.to_json().expect("a manifest can be written").as_bytes());
    let dataset = accepted(Dataset::open(place.path())).expect("the manifest is right");
    let (nodes, part) = (manifest.nodes, &manifest.partitions[0]);
    let rows = part.nodes as usize;
    let found = match kind {
        FileKind::Features => accepted(dataset.features(0)).map(|features| {
            assert_eq!(features.num_rows(), rows);
            assert_eq!(features.bytes().len(), rows * features.row_bytes());
            features.will_need(0..rows);
            let mut copy = vec![0; features.bytes().len()];
            features.copy_bytes(0, &mut copy);
            assert_eq!(copy, features.bytes());
        }),
        FileKind::Halo => accepted(dataset.halo(0)).map(|halo| {
            let halo = halo.expect("the manifest has a halo");
            assert_eq!(halo.nodes().len() as u64, part.halo_nodes);
            assert!(halo.nodes().iter().all(|&node| u64::from(node) < nodes));
            let features = halo.features().expect("the manifest has halo features");
            assert_eq!(features.bytes().len(), halo.nodes().len() * features.row_bytes());
        }),
        FileKind::Nodes => accepted(dataset.nodes(0)).map(|nodes| {
            assert_eq!((nodes.len(), nodes.ids().len(), nodes.split().len()), (rows, rows, rows));
            (0..rows).for_each(|row| drop(nodes.ids().display(row).to_string()));
            let classes = manifest.num_classes() as i32;
            assert!(nodes.class_labels().is_none_or(|labels| labels.iter().all(|label| (-1..classes).contains(label))));
            assert!(nodes.node_types().is_none_or(|types| types.len() == rows));
        }),
        FileKind::Topology => accepted(dataset.topology(0)).map(|topology| {
            assert_eq!((topology.num_nodes(), topology.num_edges()), (rows, part.edges));
            let edges = part.edges as usize;
            let degrees = (0..rows).map(|node| topology.neighbors(node).len()).sum::<usize>();
            assert_eq!((degrees, topology.indices().len()), (edges, edges));
            assert!(topology.indices().iter().all(|&node| u64::from(node) < nodes));
            assert!(topology.weights().is_none_or(|weights| weights.len() == edges));
            assert!(topology.times().is_none_or(|times| times.len() == edges));
            assert!(topology.edge_types().is_none_or(|types| types.len() == edges));
            assert!(topology.edge_features().is_none_or(|(values, width)| values.len() == edges * width));
        }),
    };
    found.is_some()
}

/// The second file of a table of nodes (first byte even) or edges, read as by `gnnflow inspect`, `init` and `prepare`.
pub fn parquet(bytes: &[u8]) -> bool {
    allow_panics_of_files();
    let Some((&which, content)) = bytes.split_first() else { return false };
    let place = folder();
    let tables = ["nodes", "edges"].map(|table| place.path().join(table));
    for (number, (files, table)) in TABLES.iter().zip(&tables).enumerate() {
        let own = number == usize::from(which % 2);
        write(&table.join(part_name(0)), &files[0]);
        write(&table.join(part_name(1)), if own { content } else { &files[1] });
    }
    accepted(inspect(place.path(), &Silent));
    let init = Init {
        folder: Some(place.path().into()),
        nodes: Vec::new(),
        edges: Vec::new(),
        out: place.path().join("pipeline.toml"),
        columns: ColumnNames::default(),
        task: None,
    };
    accepted(init.run());
    let source = GraphSource { columns: all_columns(), ..GraphSource::new(&tables[0], &tables[1]) };
    let read = || -> Result<()> {
        NodeReader::open(&source)?.for_each(Ok, |_| Ok(()))?;
        EdgeReader::open(&source, None)?.for_each(Ok, |_| Ok(()))
    };
    if accepted(read()).is_none() {
        return false;
    }
    let out = place.path().join("dataset");
    let settings = PrepareSettings { memory: 64 << 20, ..PrepareSettings::new(&out, 2) };
    let prepared = accepted(prepare(&source, &Modulo, &settings, &Silent));
    if prepared.is_some() {
        let dataset = Dataset::open(&out).expect("a prepared dataset can be opened");
        (0..2).for_each(|part| drop(dataset.partition(part).expect("a prepared partition can be opened")));
    }
    prepared.is_some()
}

/// Runs an import. Too many rows count as accepted.
fn run(import: &Import) -> bool {
    match catch_unwind(AssertUnwindSafe(|| import.run(&TooManyRows))) {
        Ok(result) => accepted(result).is_some_and(|imported| {
            assert!(imported.nodes_path.exists() && imported.edges_path.exists());
            true
        }),
        Err(panic) if (*panic).is::<TooManyRows>() => true,
        Err(panic) => resume_unwind(panic as Box<dyn Any + Send>),
    }
}

fn import(kind: Kind, path: &Path) -> Import {
    let out = path.with_file_name("out");
    Import { kind: Some(kind), ..Import::new([path.to_owned()], out) }
}

/// Edges and, optionally, nodes as text. The first byte sets options.
pub fn import_text(bytes: &[u8]) -> bool {
    let Some((&options, content)) = bytes.split_first() else { return false };
    let place = folder();
    let paths = ["edges.txt", "nodes.csv"].map(|name| place.path().join(name));
    let parts = parts(content);
    parts.iter().zip(&paths).for_each(|(part, path)| write(path, part));
    let on = |bit: u8| options >> bit & 1 == 1;
    let column = |bit: u8, column: &str| on(bit).then(|| column.to_owned());
    let text = TextOptions {
        header: on(0).then(|| on(1)),
        empty_ids: if on(2) { EmptyIds::Skip } else { EmptyIds::Refuse },
        weight: column(3, "3"),
        time: column(4, "4"),
        edge_type: column(5, "5"),
        edge_features: column(6, "3..").into_iter().collect(),
        nodes: paths[1].exists().then(|| paths[1].clone()).into_iter().collect(),
        features: column(7, "2..").into_iter().collect(),
        ..TextOptions::default()
    };
    let import = Import { text, ..import(Kind::Text, &paths[0]) };
    accepted(import.preview().map(|preview| preview.to_string()));
    run(&import)
}

/// A METIS graph and, optionally, arrays of features, labels and splits.
pub fn import_metis(bytes: &[u8]) -> bool {
    let place = folder();
    let paths = ["a.graph", "features.npy", "labels.npy", "split.npy"].map(|name| place.path().join(name));
    parts(bytes).iter().zip(&paths).for_each(|(part, path)| write(path, part));
    let array = |path: &PathBuf| path.exists().then(|| path.display().to_string());
    let arrays = NodeArrays { features: array(&paths[1]), labels: array(&paths[2]), split: array(&paths[3]) };
    run(&Import { arrays, ..import(Kind::Metis, &paths[0]) })
}

/// An archive of arrays; or its arrays, each after a line with its name.
pub fn import_npz(bytes: &[u8]) -> bool {
    let place = folder();
    let path = place.path().join("a.npz");
    let archive = if bytes.starts_with(b"PK") { Some(bytes.to_vec()) } else { zip(&parts(bytes)) };
    let Some(archive) = archive else { return false };
    write(&path, &archive);
    run(&import(Kind::Npz, &path))
}

/// Returns an archive of files, each after a line with its name; `None` if a name is not usable.
fn zip(files: &[&[u8]]) -> Option<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for file in files {
        let (name, content) = line(file)?;
        zip.start_file(format!("{name}.npy"), options).ok()?;
        zip.write_all(content).ok()?;
    }
    Some(zip.finish().ok()?.into_inner())
}

/// Splits the first line from the rest. The line must be a usual path.
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let usual = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let inside = !name.is_empty() && !name.starts_with('/') && !name.ends_with('/') && !name.contains("..");
    (inside && name.len() < 100 && name.chars().all(usual)).then_some((name, &bytes[end + 1..]))
}

/// An OGB download: its files, each after a line with its path.
pub fn import_ogb(bytes: &[u8]) -> bool {
    let place = folder();
    let dir = place.path().join("arxiv");
    for part in parts(bytes) {
        let Some((name, content)) = line(part) else { return false };
        // Memory is reserved for the split of each node.
        if name.contains("num-node") && content.split(|byte| !byte.is_ascii_digit()).any(|number| number.len() > 6) {
            return false;
        }
        let path = dir.join(name);
        if path.exists() || std::fs::create_dir_all(path.parent().unwrap_or(&dir)).is_err() {
            return false;
        }
        write(&path, content);
    }
    let without = |name: &str, part| (!dir.join(name).exists()).then_some(part);
    let without = [without("split", OgbPart::Split), without("mapping", OgbPart::Mapping)];
    dir.exists() && run(&Import { without: without.into_iter().flatten().collect(), ..import(Kind::Ogb, &dir) })
}
