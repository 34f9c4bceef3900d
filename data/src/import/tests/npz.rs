//! Sparse matrices that SciPy has saved (see `tests/fixtures/make.py`).

use super::*;

/// The edges that `make.py` writes.
const ROWS: [&str; 5] = ["0 1 2.5", "0 3 1", "1 2 -1", "3 0 0.25", "3 3 4"];

fn import(place: &TestDir, name: &str) -> Import {
    Import::new([fixture(name)], place.path("out"))
}

fn arrays(features: Option<&str>, labels: Option<&str>, split: Option<&str>) -> NodeArrays {
    let path = |name: &str| fixture(name).to_str().unwrap().to_string();
    NodeArrays { features: features.map(path), labels: labels.map(path), split: split.map(path) }
}

#[test]
fn csr_csc_and_coo_give_the_same_edges() {
    let place = TestDir::new();
    for name in ["csr.npz", "csc-stored.npz", "coo.npz", "benchmark.npz"] {
        let imported = good(&import(&place, name));
        assert_eq!((imported.nodes, imported.edges), (5, 5), "{name}");
        let mut found = edges(&place.path("out"), &["weight"]);
        found.sort();
        assert_eq!(found, ROWS, "{name}");
        assert_eq!(nodes(&place.path("out"), &[]).len(), 5);
    }
    let imported = good(&import(&place, "ones.npz"));
    assert!(!std::fs::read_to_string(imported.pipeline_path).unwrap().contains("weight"));
    assert_eq!(edges(&place.path("out"), &[]), ROWS.map(|row| row.rsplit_once(' ').unwrap().0));
    // The benchmark archive has features and labels.
    assert_eq!(good(&import(&place, "benchmark.npz")).features, 3);
    assert_eq!(nodes(&place.path("out"), &["label"]), ["0 1", "1 0", "2 -1", "3 2", "4 1"]);
}

#[test]
fn features_labels_and_split_are_read_from_arrays() {
    let place = TestDir::new();
    for features in ["features-f2.npy", "features-f8-big-endian.npy", "features-sparse.npz"] {
        let arrays = arrays(Some(features), Some("labels.npy"), Some("more.npz:split"));
        assert_eq!(good(&Import { arrays, ..import(&place, "csr.npz") }).features, 3);
        let wanted =
            ["0 0 0.5 1 1 train", "1 1.5 2 2.5 0 train", "2 3 3.5 4 -1 val", "3 4.5 5 5.5 2 test", "4 6 6.5 7 1 none"];
        assert_eq!(nodes(&place.path("out"), &["features", "label", "split"]), wanted, "{features}");
    }
    for (labels, wanted) in [("more.npz:flags", ["1 0 0 0", "0 1 0 0"]), ("more.npz:value", ["0.5", "1"])] {
        good(&Import { arrays: arrays(None, Some(labels), None), ..import(&place, "csr.npz") });
        assert_eq!(column(&place.path("out/nodes.parquet"), "label")[..2], wanted);
    }
}

/// Writes the archive of a fixture, which is not compressed, with other items in an array of 32-bit integers. Returns its path.
fn with_items(place: &TestDir, fixture_name: &str, array: &str, items: &[i32]) -> std::path::PathBuf {
    let mut bytes = std::fs::read(fixture(fixture_name)).unwrap();
    let name = bytes.windows(array.len()).position(|bytes| bytes == array.as_bytes()).unwrap();
    let word = |at: usize, bytes: &[u8]| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    // The checksum is in the 30 bytes before the name of an entry. NumPy writes the size after it, in a field of 20 bytes.
    let (before, size) = (word(name - 16, &bytes), word(name + array.len() + 4, &bytes) as usize);
    let begin = name + array.len() + 20;
    let end = begin + size;
    let (size, new) = (4 * items.len(), items.iter().flat_map(|item| item.to_le_bytes()));
    new.zip(&mut bytes[end - size..end]).for_each(|(new, byte)| *byte = new);
    let checksum = crc32fast::hash(&bytes[begin..end]).to_le_bytes();
    // In the header, and in the directory.
    let places: Vec<usize> = (0..bytes.len() - 4).filter(|&at| word(at, &bytes) == before).collect();
    assert_eq!(places.len(), 2);
    places.into_iter().for_each(|at| bytes[at..at + 4].copy_from_slice(&checksum));
    let path = place.path("changed.npz");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn pointers_of_rows_must_ascend_to_the_number_of_entries() {
    let place = TestDir::new();
    for (items, words) in [
        ([0, 5, 0, 0, 0, 5], "decreases at item 2"),
        ([0, 1, 2, 1, 5, 5], "decreases at item 3"),
        ([0, 5, 5, 5, 5, 4], "decreases at item 5"),
        ([0, 1, 2, 3, 5, 6], "ends at 6, but there are 5 entries"),
        ([0, 1, 2, 3, 4, 4], "ends at 4, but there are 5 entries"),
        ([1, 1, 2, 3, 5, 5], "does not begin with 0"),
    ] {
        let path = with_items(&place, "csc-stored.npz", "indptr.npy", &items);
        bad(&Import::new([path], place.path("out")), words);
    }
    let path = with_items(&place, "csc-stored.npz", "indptr.npy", &[0, 0, 0, 3, 5, 5]);
    assert_eq!(good(&Import::new([path], place.path("out"))).edges, 5);
}

#[test]
fn invalid_file_error_names_file_and_cause() {
    let place = TestDir::new();
    bad(&import(&place, "bsr.npz"), "a matrix in format \"bsr\"; save tocsr() of it");
    bad(&import(&place, "oblong.npz"), "its matrix has shape [2, 3]; an adjacency matrix is square");
    bad(&import(&place, "more.npz"), "no array \"shape\"");
    let with =
        |features, labels, split| Import { arrays: arrays(features, labels, split), ..import(&place, "csr.npz") };
    bad(&with(Some("features-fortran.npy"), None, None), "features-fortran.npy: is in Fortran order, column by column");
    bad(&with(Some("features-complex.npy"), None, None), "holds items of type <c8, which cannot be imported");
    bad(&with(Some("more.npz"), None, None), "name one of its arrays, as in");
    bad(&with(Some("more.npz:flag"), None, None), "no array \"flag\"; did you mean \"flags\"? it has \"label\"");
    bad(&with(None, None, Some("labels.npy")), "has -1: must be 0 none, 1 train, 2 validation or 3 test");
    bad(&with(None, Some("features-sparse.npz:data"), None), "has 14 rows, but the matrix has 5");

    let whole = std::fs::read(fixture("csc-stored.npz")).unwrap();
    std::fs::write(place.path("cut.npz"), &whole[..whole.len() / 2]).unwrap();
    bad(&place.import("cut.npz"), "cut.npz: is not a complete .npz archive");
    let mut broken = std::fs::read(fixture("csr.npz")).unwrap();
    let data = broken.windows(11).position(|bytes| bytes == b"indices.npy").unwrap() + 40;
    broken[data..data + 8].fill(0x5a);
    std::fs::write(place.path("broken.npz"), &broken).unwrap();
    bad(&place.import("broken.npz"), "broken.npz: damaged zip data");
    let labels = std::fs::read(fixture("labels.npy")).unwrap();
    std::fs::write(place.path("short.npy"), &labels[..labels.len() - 3]).unwrap();
    std::fs::write(place.path("text.npy"), "1 2 3 4 5 6 7 8").unwrap();
    let dict = "{'descr': 'a\nb', 'shape': (5,), }\n";
    let header = [b"\x93NUMPY\x01\x00", &(dict.len() as u16).to_le_bytes()[..], dict.as_bytes()].concat();
    std::fs::write(place.path("type.npy"), header).unwrap();
    for (name, words) in [
        ("short.npy", "is it cut off?"),
        ("text.npy", "is not a NumPy array"),
        ("type.npy", "holds items of type a\u{fffd}b, which cannot be imported"),
    ] {
        let labels = Some(place.path(name).to_str().unwrap().to_string());
        bad(&Import { arrays: NodeArrays { labels, ..NodeArrays::default() }, ..import(&place, "csr.npz") }, words);
    }
}
