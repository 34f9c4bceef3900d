//! Reads the files of an update with the settings of the dataset's preparation.

use std::path::PathBuf;

use crate::dataset::{Dataset, InputFile, Manifest, TypeInfo};
use crate::dump::{EdgeChunk, EdgeReader, NodeReader};
use crate::error::{Error, Location, Result};
use crate::prepare::input_files;
use crate::progress::Progress;
use crate::source::{Columns, FeatureDtype, GraphSource, Isolated, RETRY, SelfLoops, UnknownNodes, expand};

use super::Batch;
use super::ids::{EarlierNodes, NONE, UpdateIds};
use super::new_nodes::NewNodes;
use super::new_values::NewValues;
use super::node_columns::check;
use super::policy::Change;
use super::type_codes::TypeCodes;

/// Edge rows of one batch, with the reader that knows their places.
pub(super) struct Rows {
    reader: EdgeReader,
    /// Numbers of the ids; after `look_up`, nodes.
    pub(super) src: Vec<u32>,
    pub(super) dst: Vec<u32>,
    pub(super) weights: Vec<f32>,
    pub(super) types: Vec<u16>,
    pub(super) times: Vec<i64>,
    pub(super) features: Vec<f32>,
    /// Rows that the policies of the dataset drop.
    pub(super) dropped: Vec<bool>,
}

/// The rows of a batch, except those of new nodes and values.
#[derive(Default)]
pub(super) struct BatchRows {
    pub(super) added: Option<Rows>,
    pub(super) removed: Option<Rows>,
    removed_nodes: Option<NodeRows>,
}

/// The nodes that a batch removes, with the reader that knows their places.
struct NodeRows {
    reader: NodeReader,
    /// Numbers of the ids.
    ids: Vec<u32>,
}

/// All data of an update.
///
/// Nodes are numbered by their old global ids, followed by the new nodes in the order of their rows. These numbers do not
/// depend on the partitions of new nodes.
pub(super) struct Input {
    pub(super) batches: Vec<BatchRows>,
    pub(super) nodes: NewNodes,
    /// Those of nodes that are not new and not removed.
    pub(super) values: NewValues,
    /// Removed nodes, ascending; some of them may be new.
    pub(super) removed: Vec<u32>,
    /// Batch and row of removals of nodes that do not exist.
    pub(super) missing_nodes: Vec<(u32, u32)>,
    pub(super) files: Vec<Vec<InputFile>>,
    /// Edge types, including new ones with larger numbers.
    pub(super) edge_types: Option<TypeInfo>,
    pub(super) unknown_dropped: u64,
    pub(super) self_loops_dropped: u64,
    update_ids: UpdateIds,
}

/// Returns the settings of the dataset's preparation.
pub(super) fn source(dataset: &Dataset) -> Result<GraphSource> {
    let mut graph = dataset.manifest().settings["graph"].clone();
    graph["nodes"] = serde_json::json!([]);
    graph["edges"] = serde_json::json!([]);
    graph["retry"] = serde_json::json!(RETRY);
    let source: GraphSource = serde_json::from_value(graph).map_err(|e| Error::Damaged {
        path: dataset.dir().join(Manifest::FILE),
        reason: format!("this version of gnnflow cannot read its settings ({e}); prepare the dataset again"),
    })?;
    // With some of these settings, one edge decides about other nodes anywhere, which needs the entire graph. Times of
    // nodes, and splits and labels of edges, are not implemented.
    let unsupported = [
        ("graph.k_core", source.k_core.is_some()),
        ("graph.largest_component", source.largest_component),
        ("graph.isolated", source.isolated != Isolated::Keep),
        ("graph.reverse_edges", source.reverse_edges),
        ("graph.columns.node_time", source.columns.node_time.is_some()),
        ("graph.columns.edge_split", source.columns.edge_split.is_some()),
        ("graph.columns.edge_label", source.columns.edge_label.is_some()),
    ];
    match unsupported.into_iter().find(|(_, set)| *set) {
        None => Ok(source),
        Some((key, _)) => {
            let dir = dataset.dir().display();
            let reason = format!(
                "an update cannot maintain this setting, which {dir} was prepared with; prepare the changed dump"
            );
            Err(Error::Setting { key, reason })
        }
    }
}

impl Input {
    /// Reads `batches`. `earlier` are the nodes of earlier batches, of which the dataset does not know yet. New ones are numbered after those of the
    /// dataset.
    pub(super) fn read(
        dataset: &Dataset,
        source: &GraphSource,
        batches: &[Batch],
        earlier: Option<&EarlierNodes>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let manifest = dataset.manifest();
        let mut all = Self {
            batches: Vec::new(),
            nodes: NewNodes::new(manifest),
            values: NewValues::default(),
            removed: Vec::new(),
            missing_nodes: Vec::new(),
            files: Vec::new(),
            edge_types: manifest.edge_columns.edge_type.clone(),
            unknown_dropped: 0,
            self_loops_dropped: 0,
            update_ids: UpdateIds::new(manifest.ids),
        };
        progress.stage("reading the update", None, "rows");
        for (number, batch) in (0..).zip(batches) {
            all.files.push(files(batch)?);
            if !batch.nodes.is_empty() {
                let classes = manifest.labels.as_ref().map(|labels| labels.classes);
                let source = GraphSource { nodes: batch.nodes.clone(), num_classes: classes, ..source.clone() };
                let reader = NodeReader::open(&source)?;
                all.nodes.read(reader, number, manifest, &mut all.update_ids, progress)?;
            }
            if !batch.values.is_empty() {
                all.values.read(&batch.values, number, source, manifest, &mut all.update_ids, progress)?;
            }
            let added = all.rows(dataset, source, &batch.edges, &source.columns, true, progress)?;
            // Removals need ends and types only.
            let key_columns = Columns { weight: None, time: None, edge_features: Vec::new(), ..source.columns.clone() };
            let removed = all.rows(dataset, source, &batch.remove, &key_columns, false, progress)?;
            let removed_nodes = all.node_rows(source, manifest, &batch.remove_nodes, progress)?;
            all.batches.push(BatchRows { added, removed, removed_nodes });
        }
        progress.done();
        progress.stage("looking up ids", None, "");
        let (mut nodes, mut old) = (all.update_ids.find(dataset)?, manifest.nodes as u32);
        if let Some(earlier) = earlier {
            all.update_ids.find_earlier(earlier, old, &mut nodes);
            old += earlier.added();
        }
        all.nodes.check_count(old)?;
        all.look_up(source, &mut nodes, old)?;
        for (node, values) in all.values.split_off(old, manifest) {
            all.nodes.set((node - old) as usize, values);
        }
        progress.done();
        Ok(all)
    }

    fn rows(
        &mut self,
        dataset: &Dataset,
        source: &GraphSource,
        paths: &[PathBuf],
        columns: &Columns,
        adds: bool,
        progress: &dyn Progress,
    ) -> Result<Option<Rows>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let manifest = dataset.manifest();
        let source = GraphSource { edges: paths.to_vec(), columns: columns.clone(), ..source.clone() };
        let reader = EdgeReader::open(&source, Some(manifest.ids))?;
        let width = manifest.edge_columns.features;
        if reader.rows() > 0 && !columns.edge_features.is_empty() && reader.feature_width() != width {
            let mut place = reader.place(0);
            place.column = columns.edge_features.join(", ");
            return Err(Error::Width { place, found: reader.feature_width(), expected: width });
        }
        let mut codes = TypeCodes::new(self.edge_types.as_ref(), source.self_loops == SelfLoops::Add);
        let (mut src, mut dst, mut weights, mut types) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut times, mut features) = (Vec::new(), Vec::new());
        let update_ids = &mut self.update_ids;
        reader.for_each(Ok, |chunk: EdgeChunk| {
            update_ids.number(&chunk.src, &mut src);
            update_ids.number(&chunk.dst, &mut dst);
            if let Some(found) = &chunk.types {
                let name = columns.edge_type.as_deref().unwrap_or_default();
                types.extend(codes.of(found, |row| chunk.origin.place(row, name))?);
            }
            weights.extend(chunk.weights.unwrap_or_default());
            times.extend(chunk.times.unwrap_or_default());
            features.extend(chunk.features);
            progress.advance(chunk.src.len() as u64);
            Ok(())
        })?;
        let largest = codes.largest;
        if let Some(info) = self.edge_types.as_mut().filter(|_| adds) {
            info.count = info.count.max(largest);
        }
        let dropped = vec![false; src.len()];
        Ok(Some(Rows { reader, src, dst, weights, types, times, features, dropped }))
    }

    /// Reads the nodes to remove.
    fn node_rows(
        &mut self,
        source: &GraphSource,
        manifest: &Manifest,
        paths: &[PathBuf],
        progress: &dyn Progress,
    ) -> Result<Option<NodeRows>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let columns = Columns { id: source.columns.id.clone(), ..Columns::default() };
        let feature_dtype = vec![FeatureDtype::F32];
        let of_nodes =
            GraphSource { nodes: paths.to_vec(), node_types: Vec::new(), feature_dtype, columns, ..source.clone() };
        let reader = NodeReader::open(&of_nodes)?;
        let mut ids = Vec::new();
        if reader.rows() > 0 {
            check(&reader, manifest)?;
            reader.for_each(Ok, |chunk| {
                progress.advance(chunk.ids.len() as u64);
                self.update_ids.number(&chunk.ids, &mut ids);
                Ok(())
            })?;
        }
        Ok(Some(NodeRows { reader, ids }))
    }

    /// Replaces numbers of ids by nodes, batch by batch, and applies the policies on single rows. `nodes` has the node of each id before the first
    /// batch. It then follows the batches.
    fn look_up(&mut self, source: &GraphSource, nodes: &mut [u32], old: u32) -> Result<()> {
        let mut batches = std::mem::take(&mut self.batches);
        for (number, BatchRows { added, removed, removed_nodes }) in (0..).zip(&mut batches) {
            self.nodes.add_batch(number, old, nodes)?;
            self.values.look_up(number, nodes, &self.update_ids)?;
            if let Some(rows) = removed {
                self.look_up_removed(rows, nodes);
            }
            for (row, &id) in (0..).zip(removed_nodes.iter().flat_map(|rows| &rows.ids)) {
                match std::mem::replace(&mut nodes[id as usize], NONE) {
                    NONE => self.missing_nodes.push((number, row)),
                    node => self.removed.push(node),
                }
            }
            if let Some(rows) = added {
                self.look_up_added(source, rows, nodes)?;
            }
        }
        self.batches = batches;
        self.removed.sort_unstable();
        self.removed.iter().for_each(|&node| self.values.remove(node));
        Ok(())
    }

    /// Replaces numbers of ids by nodes in rows that remove edges. A row with an unknown node is handled like one of an unknown edge, in `touched`.
    fn look_up_removed(&self, rows: &mut Rows, nodes: &[u32]) {
        for (src, dst) in rows.src.iter_mut().zip(&mut rows.dst) {
            let ends = [*src, *dst].map(|id| nodes[id as usize]);
            [*src, *dst] = if ends.contains(&NONE) { [NONE; 2] } else { ends };
        }
    }

    /// Replaces numbers of ids by nodes in rows that add edges, and applies the policies on unknown nodes and self-loops.
    fn look_up_added(&mut self, source: &GraphSource, rows: &mut Rows, nodes: &[u32]) -> Result<()> {
        for row in 0..rows.src.len() {
            let ids = [rows.src[row], rows.dst[row]];
            let ends = ids.map(|id| nodes[id as usize]);
            [rows.src[row], rows.dst[row]] = ends;
            if let Some(end) = ends.iter().position(|&end| end == NONE) {
                // An update does not create nodes that only edges name.
                if source.unknown_nodes != UnknownNodes::Drop {
                    return Err(self.update_ids.unknown(rows.place_of(row, end), ids[end]));
                }
                self.unknown_dropped += 1;
                rows.dropped[row] = true;
            } else if ends[0] == ends[1] {
                match source.self_loops {
                    SelfLoops::Fail => {
                        let place = rows.place(row);
                        return Err(Error::SelfLoop { place, id: self.update_ids.show(ids[0]) });
                    }
                    SelfLoops::Drop => {
                        self.self_loops_dropped += 1;
                        rows.dropped[row] = true;
                    }
                    SelfLoops::Keep | SelfLoops::Add => {}
                }
            }
        }
        Ok(())
    }
}

/// Errors of rows.
impl Input {
    /// Checks that nodes are left, of `before` ones and the new ones.
    pub(super) fn check_some_are_left(&self, before: u64, batches: &[Batch]) -> Result<()> {
        let path = batches.iter().flat_map(|batch| &batch.remove_nodes).next_back();
        match path.filter(|_| before + self.nodes.len() as u64 == self.removed.len() as u64) {
            None => Ok(()),
            Some(path) => Err(Error::AllNodesRemoved { path: path.clone() }),
        }
    }

    fn rows_of(&self, batch: u32, change: Change) -> Result<&Rows> {
        let rows = &self.batches[batch as usize];
        let rows = if change == Change::Add { &rows.added } else { &rows.removed };
        rows.as_ref().ok_or_else(|| Error::Bug("a row without a file".into()))
    }

    /// The edge that a row removes does not exist.
    pub(super) fn missing_edge(&self, batch: u32, row: u32) -> Result<Error> {
        let rows = self.rows_of(batch, Change::Remove)?;
        let [src, dst] = rows.ids(row as usize)?;
        Ok(Error::MissingEdge { place: rows.place(row as usize), src, dst })
    }

    /// The node that a row removes does not exist.
    pub(super) fn missing_node(&self, batch: u32, row: u32) -> Result<Error> {
        let rows = self.batches[batch as usize].removed_nodes.as_ref();
        let NodeRows { reader, ids } = rows.ok_or_else(|| Error::Bug("a row without a file".into()))?;
        let place = reader.place(u64::from(row), reader.id_name());
        Ok(Error::MissingNode { place, id: self.update_ids.show(ids[row as usize]) })
    }

    /// The edge that a row adds exists.
    pub(super) fn duplicate(&self, batch: u32, row: u32) -> Result<Error> {
        let rows = self.rows_of(batch, Change::Add)?;
        let [src, dst] = rows.ids(row as usize)?;
        let first = "the dataset or an earlier row".into();
        Ok(Error::DuplicateEdge { place: rows.place(row as usize), first, src, dst })
    }
}

impl Rows {
    /// Returns the place of a row.
    pub(super) fn place(&self, row: usize) -> Box<Location> {
        self.reader.place(row as u64)
    }

    fn place_of(&self, row: usize, end: usize) -> Box<Location> {
        let mut place = self.place(row);
        place.column = self.reader.end_names()[end].into();
        place
    }

    /// Returns the ids of both ends of a row, for messages. Reads the file again.
    pub(super) fn ids(&self, row: usize) -> Result<[String; 2]> {
        let mut found = [String::new(), String::new()];
        let mut first = 0;
        self.reader.for_each_pair(Ok, |chunk| {
            if (first..first + chunk.src.len()).contains(&row) {
                found = [chunk.src.show(row - first), chunk.dst.show(row - first)];
            }
            first += chunk.src.len();
            Ok(())
        })?;
        Ok(found)
    }
}

/// Returns lengths and digests of a batch's files.
pub(super) fn files(batch: &Batch) -> Result<Vec<InputFile>> {
    let mut files = Vec::new();
    for (role, name, paths) in [
        ("nodes", "--nodes", &batch.nodes),
        ("values", "--values", &batch.values),
        ("edges", "--edges", &batch.edges),
        ("remove", "--remove", &batch.remove),
        ("remove_nodes", "--remove-nodes", &batch.remove_nodes),
    ] {
        files.extend(input_files(role, &expand(paths, name, RETRY)?)?);
    }
    Ok(files)
}
