//! Short runs of the fuzz targets over their corpora.

use super::*;
use crate::testing::corpus::{self, join};

#[test]
fn manifests_do_not_panic() {
    corpus::run("manifest", manifest, 200);
}

#[test]
fn files_of_partitions_do_not_panic() {
    corpus::run("partition", partition, 100);
}

#[test]
fn parquet_tables_do_not_panic() {
    corpus::run("parquet", parquet, 20);
}

#[test]
fn imports_do_not_panic() {
    corpus::run("import_text", import_text, 20);
    corpus::run("import_metis", import_metis, 20);
    corpus::run("import_npz", import_npz, 20);
    corpus::run("import_ogb", import_ogb, 20);
}

/// Writes the corpora anew, after a change of a format: `cargo test --release -p gnnflow-data write_corpora -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_corpora() {
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    for (name, ids, style) in [("integers", 0, IdStyle::Sparse), ("strings", 4, IdStyle::Text)] {
        let place = folder();
        prepare_small(place.path(), style);
        let dir = place.path().join("dataset");
        corpus::write("manifest", &format!("valid-{name}"), &read(dir.join(Manifest::FILE)));
        for (number, kind) in FileKind::ALL.into_iter().enumerate() {
            let file = format!("valid-{}-{name}", kind.name().trim_end_matches(".arrow"));
            let content = read(dir.join(part_folder(0)).join(kind.name()));
            corpus::write("partition", &file, &[vec![number as u8 + ids], content].concat());
        }
    }
    for (number, table) in ["nodes", "edges"].into_iter().enumerate() {
        corpus::write("parquet", &format!("valid-{table}"), &[vec![number as u8], TABLES[number][1].clone()].concat());
    }
    for (file, options, files) in [
        ("valid-blanks", 0, &["# Undirected graph: a\n7 9\n9 11\n11 7\n"][..]),
        ("valid-header", 0b111, &["source,target\na,\"b\"\n\"c,\"\"d\",a\n"][..]),
        ("valid-matrix-market", 8, &["%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n1 2 0.5\n3 1 2\n"]),
        ("valid-nodes", 0b1101_1001, &["1\t2\t0.5\t10\n2\t3\t1\t11\n", "1,0.5,1\n2,1,2\n3,4,5\n"]),
        ("valid-labels", 0b11, &["src dst\n1 2\n", "id,label,split\n1,x,train\n2,y,test\n"]),
    ] {
        corpus::write("import_text", file, &[vec![options], join(files)].concat());
    }
    let fixture =
        |name: &str| std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap();
    for (file, parts) in [
        ("valid-plain", vec![b"% a comment\n7 11\n5 3 2\n1 3 4\n5 4 2 1\n2 3 6 7\n1 3 6\n5 4 7\n6 4\n".to_vec()]),
        ("valid-weights", vec![b"3 1 111 2\n4 1 2 2 7\n% between\n5 3 4 1 7\n6 5 6".to_vec()]),
        ("valid-arrays", vec![b"5 1\n2\n1\n\n\n\n".to_vec(), fixture("features-f2.npy"), fixture("labels.npy")]),
    ] {
        corpus::write("import_metis", file, &join(&parts));
    }
    for name in ["benchmark", "coo", "csc-stored"] {
        corpus::write("import_npz", &format!("valid-{name}"), &fixture(&format!("{name}.npz")));
    }
    let ints = |name: &str, values: &[i64]| {
        let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({},), }}\n", values.len());
        let magic = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
        [format!("{name}\n").into_bytes(), magic, header.into_bytes(), bytemuck::cast_slice(values).to_vec()].concat()
    };
    let arrays = [ints("shape", &[2, 2]), ints("indptr", &[0, 1, 2]), ints("indices", &[1, 0]), ints("data", &[3, 4])];
    corpus::write("import_npz", "valid-arrays", &join(&arrays));
    // Pointers whose difference is not an integer of 64 bits.
    let [shape, _, indices, data] = arrays;
    let decreasing = ints("indptr", &[0, 1, i64::MIN]);
    corpus::write("import_npz", "pointers", &join(&[shape.clone(), decreasing, indices.clone(), data.clone()]));
    let [starts, columns] = [ints("attr_indptr", &[i64::MIN, i64::MAX, 0]), ints("attr_indices", &[0])];
    let features = [ints("attr_shape", &[2, 2]), starts, columns, ints("attr_data", &[1])];
    let adjacency = [shape, ints("indptr", &[0, 1, 2]), indices, data];
    corpus::write("import_npz", "pointers-of-features", &join(&[&adjacency[..], &features].concat()));
    let one_type = [
        "raw/edge.csv\n0,1\n1,2\n2,0\n4,0\n",
        "raw/num-node-list.csv\n5\n",
        "raw/num-edge-list.csv\n4\n",
        "raw/node-feat.csv\n0,0.5\n1,1.5\n2,2.5\n3,3.5\n4,-4.5e-1\n",
        "raw/node-label.csv\n2\n0\nnan\n1\n3.0\n",
        "raw/node_year.csv\n2000\n2001\n2002\n2003\n2004\n",
        "raw/edge-feat.csv\n1\n2\n3\n4\n",
        "split/time/train.csv\n0\n1\n",
        "split/time/valid.csv\n4\n",
        "split/time/test.csv\n3\n",
        "mapping/nodeidx2paperid.csv\nnode idx,paper id\n0,901\n1,902\n2,903\n3,904\n4,905\n",
    ];
    corpus::write("import_ogb", "valid-one-type", &join(&one_type));
    let types = [
        "raw/num-node-dict.csv\npaper,author\n2,1\n",
        "raw/triplet-type-list.csv\nauthor,writes,paper\n",
        "raw/relations/author___writes___paper/edge.csv\n0,1\n0,0\n",
        "raw/relations/author___writes___paper/num-edge-list.csv\n2\n",
        "raw/node-feat/paper/node-feat.csv\n1,2\n3,4\n",
        "raw/node-label/paper/node-label.csv\n0\n1\n",
    ];
    corpus::write("import_ogb", "valid-types", &join(&types));
}
