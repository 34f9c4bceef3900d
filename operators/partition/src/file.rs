//! `file`: parts read from a table.

use std::fs::File as OsFile;
use std::io::Read;
use std::sync::OnceLock;

use gnnflow_data::dump::PartTable;
use gnnflow_data::format::hex;
use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, Error, GraphSize, GraphStream, Partitioner, Result};
use sha2::{Digest, Sha256};

/// A user's assignment, read from Parquet: every node id exactly once, with its part. No balance bound is enforced.
///
/// Reads no edges. 2 bytes per node. In a process group, one process reads the table.
#[derive(Debug, Default)]
pub struct File {
    table: PartTable,
    digest: OnceLock<String>,
}

impl File {
    /// Creates the method for `table`.
    pub fn new(table: PartTable) -> Self {
        Self { table, digest: OnceLock::new() }
    }

    /// SHA-256 of the file contents; of the version for objects in a store.
    fn digest(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        for file in self.table.files()? {
            let path = file.path();
            if let Some(version) = file.version() {
                hash.update(version);
                continue;
            }
            let mut file = OsFile::open(path).map_err(Error::io(path, "open"))?;
            let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
            hash.update(bytes.to_le_bytes());
            loop {
                let length = file.read(&mut buffer).map_err(Error::io(path, "read"))?;
                if length == 0 {
                    break;
                }
                hash.update(&buffer[..length]);
            }
        }
        Ok(hex(&hash.finalize()))
    }
}

impl Partitioner for File {
    fn name(&self) -> &str {
        "file"
    }

    fn settings(&self) -> String {
        // An unreadable file has an empty digest; `assign` returns the error.
        let digest = self.digest.get_or_init(|| self.digest().unwrap_or_default());
        format!("id = {:?}, part = {:?}, sha256 = {digest}", self.table.id, self.table.part)
    }

    fn needed_bytes(&self, size: GraphSize, _: &Goal) -> u64 {
        // The parts, and twice as bytes: as read, and as sent to the process group.
        6 * size.nodes
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let mut read = || {
            let parts = self.table.read(graph.node_ids(), goal.parts)?;
            Ok(bytemuck::cast_slice(&parts).to_vec())
        };
        let bytes = graph.once("reading parts", &mut read)?;
        let parts: Vec<u16> = bytes.chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        if parts.len() as u64 != graph.num_nodes() {
            return Err(Error::Bug(format!("{} parts for {} nodes", parts.len(), graph.num_nodes())));
        }
        Ok(Assignment::Stored(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::{IdStyle, TestGraph, write_parquet};
    use gnnflow_data::{Fault, prepare};
    use std::path::Path;

    /// Writes a table in which the part of node `v` is `v % parts`.
    fn table(dir: &Path, style: IdStyle, nodes: u32, parts: u32) -> PartTable {
        let path = dir.join("own.parquet");
        write_parquet(
            &path,
            vec![("node_id", style.ids(0..nodes)), ("part", IdStyle::Dense.ids((0..nodes).map(|v| v % parts)))],
            8,
        );
        PartTable { files: vec![path], ..PartTable::default() }
    }

    #[test]
    fn assignment_equals_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let graph = TestGraph { name: "nodes", nodes: 20, edges: Vec::new() };
        let method = File::new(table(dir.path(), IdStyle::Dense, 20, 3));
        let assignment = method.assign(&graph.stream(), &Goal::new(3)).unwrap();
        assert!((0..20).all(|node| assignment.part(node) == node as u32 % 3));
        let error = method.assign(&graph.stream(), &Goal::new(2)).unwrap_err();
        assert!(error.to_string().contains("row 2 (row group 0): 2 is not a part in 0..2"), "{error}");
        assert_eq!(error.fault(), Fault::Input);
    }

    #[test]
    fn settings_differ_for_different_tables() {
        let dir = tempfile::tempdir().unwrap();
        let settings = |parts| File::new(table(dir.path(), IdStyle::Dense, 20, parts)).settings();
        let (one, other) = (settings(3), settings(2));
        assert_ne!(one, other);
        assert_eq!(one, settings(3));
        assert!(one.starts_with("id = \"node_id\", part = \"part\", sha256 = "), "{one}");
    }

    #[test]
    fn prepare_with_text_ids_uses_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("dump");
        std::fs::create_dir(&dump).unwrap();
        let graph = gnnflow_data::testing::power_law(50, 200, 1);
        let source = graph.dump(&dump, IdStyle::Text).unwrap();
        let method = File::new(table(dir.path(), IdStyle::Text, 50, 4));
        let settings = prepare::PrepareSettings::new(dir.path().join("out"), 4);
        let manifest = prepare::prepare(&source, &method, &settings, &gnnflow_data::Silent).unwrap();
        assert_eq!(manifest.partitions.iter().map(|part| part.nodes).collect::<Vec<_>>(), [13, 13, 12, 12]);
    }
}
