//! Fuzz targets: the decoders of this crate, with checks of what they accept. `fuzz/` has the programs for `cargo fuzz`; the tests
//! of this module run the same functions without it.
//!
//! Each function returns whether the bytes were accepted.

use std::sync::Arc;

use gnnflow_data::PartitionBook;
use gnnflow_data::testing::corpus::parts;
use timely::bytes::arc::BytesMut;

use crate::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use crate::graph::placement::Placement;
use crate::storage::{RowStore, checksum, sums_file};
use crate::wire::WireBlock;

/// A block of a message between workers.
pub fn wire_block(bytes: &[u8]) -> bool {
    let decode = |bytes: &[u8]| WireBlock::decode_plain(BytesMut::from(bytes.to_vec()).freeze());
    let Ok(mut block) = decode(bytes) else { return false };
    let encoded = |block: &WireBlock| {
        let mut encoded = Vec::new();
        block.encode_plain(&mut encoded).expect("memory can be written");
        assert_eq!(encoded.len(), block.wire_bytes());
        encoded
    };
    let content = |block: &WireBlock| {
        let mut rows = Vec::new();
        block.for_each_row_bytes(|bytes| rows.extend_from_slice(bytes));
        assert_eq!(rows.len(), block.row_bytes());
        assert!(block.rows_f32().is_none_or(|numbers| bytemuck::cast_slice::<f32, u8>(numbers) == rows));
        (block.header(), block.words().to_vec(), block.ids().to_vec(), rows)
    };
    assert_eq!(encoded(&block), bytes, "a block is forwarded as it is");
    let found = content(&block);
    assert!(8 * found.1.len() + 4 * found.2.len() + found.3.len() <= bytes.len());
    let detached = block.detach();
    assert_eq!(content(&detached), found);
    assert_eq!(content(&decode(&encoded(&detached)).expect("a written block can be read")), found);
    true
}

/// Nodes of each of two partitions, and numbers in each row.
const NODES: u64 = 3;
const WIDTH: usize = 2;

/// The file of a partition's stored rows, and that of their checksums. Rows without damage count as accepted.
pub fn stored_rows(bytes: &[u8]) -> bool {
    let place = tempfile::tempdir().expect("a folder can be created");
    let file = |part: usize| place.path().join(format!("part-{part}.f32"));
    let written = parts(bytes);
    for part in 0..2 {
        std::fs::write(file(part), written[0]).expect("a file can be written");
        std::fs::write(sums_file(&file(part)), written.get(1).copied().unwrap_or_default())
            .expect("a file can be written");
    }
    let book = PartitionBook::new(vec![0, NODES, 2 * NODES]).expect("two partitions");
    let edges = OwnedInEdges { indptr: vec![0; NODES as usize + 1], ..OwnedInEdges::default() };
    let edges: Arc<dyn InEdges> = Arc::new(edges);
    let graph = LocalGraph::load(&book, Placement::new(2, 1), 0, false, |_| Ok::<_, ()>(Arc::clone(&edges)));
    let graph = Arc::new(graph.expect("there are no edges"));

    let copies = RowStore::copies_of_files(file, &graph, 0, WIDTH).expect("files can be mapped");
    let stored = RowStore::in_files(file, &graph, 0, WIDTH).expect("files can be mapped");
    let number = |bytes: &[u8], at: usize| {
        let mut four = [0; 4];
        let found = bytes.iter().skip(4 * at).take(4);
        four.iter_mut().zip(found).for_each(|(byte, found)| *byte = *found);
        u32::from_le_bytes(four)
    };
    let intact = (0..NODES as usize).all(|row| {
        let row_of_file = [0, 1].map(|column| f32::from_bits(number(written[0], WIDTH * row + column)));
        checksum(&row_of_file) == written.get(1).map_or(0, |sums| number(sums, row))
    });
    for rows in [&copies, &stored] {
        let reader = rows.read().expect("no rows are written");
        (0..2 * NODES as u32).for_each(|node| assert_eq!(reader.row(node).len(), WIDTH));
        drop(reader);
        assert_eq!((rows.damaged(), rows.any_damaged()), (Ok(!intact), Ok(!intact)));
    }
    drop(copies);
    let all: Vec<u32> = (0..2 * NODES as u32).collect();
    stored.write().expect("no rows are read").set(&all, &vec![0.5; WIDTH * all.len()]);
    drop(stored);
    let again = RowStore::in_files(file, &graph, 0, WIDTH).expect("files can be mapped");
    assert_eq!(again.any_damaged(), Ok(false), "rows that were written are right");
    intact
}

#[cfg(test)]
mod tests {
    use gnnflow_data::testing::corpus::{self, join};

    use super::*;
    use crate::wire::{Header, Rows};

    #[test]
    fn blocks_do_not_panic() {
        corpus::run("wire_block", wire_block, 2000);
    }

    #[test]
    fn stored_rows_do_not_panic() {
        corpus::run("stored_rows", stored_rows, 100);
    }

    /// Writes the corpora anew, after a change of a format: `cargo test --release -p gnnflow-dataflow write_corpora -- --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_corpora() {
        let header = Header { to: 3, from: 1, partition: 9, tag: 4, key: 5 << 32, seq: 77, aux: 8 };
        for (file, words, ids, rows) in [
            ("valid-empty", vec![], vec![], Rows::None),
            ("valid-numbers", vec![1, u64::MAX], vec![1, 2, 3], Rows::F32(vec![1.5, -2.5, 3.0])),
            ("valid-bytes", vec![], vec![5], Rows::Bytes(b"seven..".to_vec())),
        ] {
            let mut encoded = Vec::new();
            WireBlock::new(header, words, ids, rows).encode_plain(&mut encoded).unwrap();
            corpus::write("wire_block", file, &encoded);
        }
        let rows = [[1.0f32, 2.0], [3.0, 4.0], [-1.0, 0.5]];
        let sums = rows.map(|row| checksum(&row));
        let parts = [bytemuck::cast_slice::<_, u8>(&rows).to_vec(), bytemuck::cast_slice::<_, u8>(&sums).to_vec()];
        corpus::write("stored_rows", "valid", &join(&parts));
        corpus::write("stored_rows", "without-checksums", &parts[0]);
    }
}
