//! An update appears completely or not at all, and never changes files of the old dataset.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::error::Error;
use crate::testing::power_law;

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = Dump::of(&power_law(60, 300, 2)).write(&dir.path().join("dump"), IdStyle::Sparse);
    let out = dir.path().join("out");
    prepared(&source, (0..60).map(|node| node as u16 % 3).collect(), &out, 3);
    (dir, out)
}

fn one_edge(dir: &Path) -> Batch {
    let path = dir.join("one.parquet");
    write_rows(&path, IdStyle::Sparse, &[Row { src: 57, dst: 58, stamp: 1 }]);
    Batch { edges: vec![path], ..Batch::default() }
}

fn inodes(out: &Path) -> Vec<u64> {
    bytes(out, 3).iter().map(|(file, _)| std::fs::metadata(out.join(file)).unwrap().ino()).collect()
}

#[test]
fn empty_update_changes_no_file() {
    let (dir, out) = place();
    let (before, files) = (Dataset::open(&out).unwrap().manifest().clone(), inodes(&out));
    for batches in [vec![], vec![Batch::default()], {
        let path = dir.path().join("none.parquet");
        write_rows(&path, IdStyle::Sparse, &[]);
        vec![Batch { edges: vec![path.clone()], remove: vec![path], ..Batch::default() }]
    }] {
        let updated = in_place(&out, &batches).unwrap();
        assert_eq!((&updated.manifest, updated.affected), (&before, 0));
        assert!(updated.rewritten.is_empty());
        assert_eq!(inodes(&out), files);
    }
}

#[test]
fn unchanged_partition_keeps_its_files() {
    let (dir, out) = place();
    let before = inodes(&out);
    let updated = in_place(&out, &[one_edge(dir.path())]).unwrap();
    // Node 58 is in partition 1.
    assert_eq!(updated.rewritten, [1]);
    let changed: Vec<bool> = inodes(&out).iter().zip(&before).map(|(after, before)| after != before).collect();
    let expected: Vec<bool> = (0..12).map(|file| file == 4 || file == 7).collect();
    assert_eq!(changed, expected, "topology and halo of partition 1");
    assert_eq!(updated.manifest.updates.len(), 1);
    assert_eq!(updated.manifest.updates[0].batches[0][0].role, "edges");
}

#[test]
fn dataset_that_a_killed_update_has_moved_away_is_moved_back() {
    let (dir, out) = place();
    let before = bytes(&out, 3);
    std::fs::rename(&out, dir.path().join(".out.old")).unwrap();
    in_place(&out, &[]).unwrap();
    assert!(bytes(&out, 3) == before);
    assert!(!dir.path().join(".out.old").exists());
}

#[test]
fn update_to_another_folder_keeps_the_old_dataset() {
    let (dir, out) = place();
    let before = bytes(&out, 3);
    let elsewhere = dir.path().join("elsewhere");
    let settings = UpdateSettings { out: Some(elsewhere.clone()), ..UpdateSettings::default() };
    let updated = update(&out, &[one_edge(dir.path())], &settings, &Silent).unwrap();
    assert!(bytes(&out, 3) == before && bytes(&elsewhere, 3) != before);
    let old = Dataset::open(&out).unwrap();
    assert_ne!(updated.manifest.fingerprint, old.manifest().fingerprint);
    // The same update gives the same dataset.
    let again = in_place(&out, &[one_edge(dir.path())]).unwrap();
    assert_eq!(again.manifest, updated.manifest);
    assert!(bytes(&out, 3) == bytes(&elsewhere, 3));

    let foreign = dir.path().join("dump");
    let settings = UpdateSettings { out: Some(foreign.clone()), ..UpdateSettings::default() };
    let error = update(&out, &[], &settings, &Silent).unwrap_err();
    assert!(matches!(error, Error::Occupied { .. }), "{error}");
    assert!(foreign.join("nodes.parquet").exists());
    assert!(matches!(in_place(&foreign, &[]).unwrap_err(), Error::NotADataset { .. }));
    assert!(!dir.path().join("dump.lock").exists());
}

#[test]
fn folder_of_a_killed_update_is_removed_and_never_written_to() {
    let (dir, out) = place();
    let left = dir.path().join(".out.tmp");
    // The killed update had linked files of the dataset.
    for part in 0..3 {
        std::fs::create_dir_all(left.join(part_folder(part))).unwrap();
        for name in ["topology.arrow", "nodes.arrow"] {
            let file = Path::new(&part_folder(part)).join(name);
            std::fs::hard_link(out.join(&file), left.join(&file)).unwrap();
        }
    }
    let held = Dataset::open(&out).unwrap();
    let lists = held.topology(1).unwrap();
    let before = lists.indices().to_vec();
    in_place(&out, &[one_edge(dir.path())]).unwrap();
    assert_eq!(lists.indices(), before, "an open dataset changed");
    assert!(!left.exists());
    Dataset::open(&out).unwrap().verify(&Silent).unwrap();
}
