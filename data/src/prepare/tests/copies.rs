//! Copies of the files of a dataset: only those that are read, always those of the present dataset, whole and once.

use std::time::Duration;

use super::*;
use crate::dataset::{FileKind, part_folder};
use crate::testing::{IdStyle, power_law};

const RETRY: Duration = Duration::from_secs(5);

/// A dataset of 2 partitions, and a folder for copies.
struct Place {
    dir: tempfile::TempDir,
    dataset: Dataset,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dataset = write(dir.path(), 1);
        Self { dir, dataset }
    }

    fn copies(&self) -> PathBuf {
        self.dir.path().join("copies")
    }

    fn open(&self) -> Result<Dataset> {
        Dataset::open_copies(self.dataset.dir(), &self.copies(), RETRY)
    }

    fn bytes(&self, part: usize, kind: FileKind) -> u64 {
        kind.info(&self.dataset.manifest().partitions[part]).unwrap().bytes
    }
}

/// Prepares a graph in the folder `prepared`.
fn write(dir: &Path, seed: u64) -> Dataset {
    let source = power_law(200, 1500, seed).dump(dir, IdStyle::Dense).unwrap();
    prepared(&source, &dir.join("prepared"), 2).unwrap()
}

/// Returns the names of all files in `dir` that are not of the folder of copies itself.
fn files(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for part in 0..3 {
        for entry in std::fs::read_dir(dir.join(part_folder(part))).into_iter().flatten() {
            names.push(format!("{part}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    names.sort();
    names
}

fn all(parts: usize) -> Vec<(usize, FileKind)> {
    FileKind::ALL.into_iter().flat_map(|kind| (0..parts).map(move |part| (part, kind))).collect()
}

#[test]
fn only_files_that_are_read_are_copied_and_only_once() {
    let place = Place::new();
    let copies = place.open().unwrap();
    assert_eq!(copies.manifest(), place.dataset.manifest());
    assert_eq!((copies.copied_bytes(), files(copies.dir())), (Some(0), vec![]));
    assert!(Quality::read(copies.dir()).is_ok());
    assert_eq!(Dataset::origin_of(copies.dir()).as_deref(), Some(place.dataset.dir()));
    assert_eq!((place.dataset.copied_bytes(), Dataset::origin_of(place.dataset.dir())), (None, None));

    copies.verify_files(&[(1, FileKind::Topology), (1, FileKind::Nodes)], &Silent).unwrap();
    assert_eq!(files(copies.dir()), ["1/nodes.arrow", "1/topology.arrow"]);
    let two = place.bytes(1, FileKind::Topology) + place.bytes(1, FileKind::Nodes);
    assert_eq!(copies.copied_bytes(), Some(two));
    let lists = |dataset: &Dataset| {
        let topology = dataset.topology(1).unwrap();
        (0..topology.num_nodes()).map(|node| topology.neighbors(node).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(lists(&copies), lists(&place.dataset));
    copies.features_verified_elsewhere(0).unwrap();
    assert_eq!(files(copies.dir()), ["0/features.arrow", "1/nodes.arrow", "1/topology.arrow"]);

    // The next process has them.
    let again = place.open().unwrap();
    again.verify_files(&[(1, FileKind::Topology), (1, FileKind::Nodes), (0, FileKind::Features)], &Silent).unwrap();
    assert_eq!(again.copied_bytes(), Some(0));
}

#[test]
fn damaged_copies_are_copied_again() {
    let place = Place::new();
    place.open().unwrap().verify_files(&all(2), &Silent).unwrap();
    for (part, kind) in all(2) {
        let path = place.copies().join(part_folder(part)).join(kind.name());
        let whole = std::fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        for content in [&damaged[..], &whole[..whole.len() / 2], &[]] {
            std::fs::write(&path, content).unwrap();
            let copies = place.open().unwrap();
            copies.verify_files(&[(part, kind)], &Silent).unwrap();
            assert_eq!(copies.copied_bytes(), Some(whole.len() as u64));
            std::fs::write(&path, content).unwrap();
            // Without verification before.
            let copies = place.open().unwrap();
            copies.open_verified(part, kind, &kind.info(&copies.manifest().partitions[part]).unwrap()).unwrap();
            assert_eq!(
                (copies.copied_bytes(), std::fs::read(&path).unwrap()),
                (Some(whole.len() as u64), whole.clone())
            );
        }
    }
    // What a killed process has left is overwritten.
    let topology = place.copies().join(part_folder(0)).join("topology.arrow");
    std::fs::remove_file(&topology).unwrap();
    for name in [".topology.arrow.part", ".topology.arrow.lock"] {
        std::fs::write(topology.with_file_name(name), "left").unwrap();
    }
    place.open().unwrap().verify_files(&all(2), &Silent).unwrap();
    assert_eq!(files(&place.copies()), files(place.dataset.dir()));
}

#[test]
fn copies_of_a_former_dataset_are_removed() {
    let place = Place::new();
    let former = place.open().unwrap();
    former.verify_files(&all(2), &Silent).unwrap();
    let kept = std::fs::metadata(place.copies().join("part-00000/nodes.arrow")).unwrap().modified().unwrap();
    let now = write(place.dir.path(), 2);
    assert_ne!(now.manifest().fingerprint, place.dataset.manifest().fingerprint);
    let copies = place.open().unwrap();
    assert_eq!(copies.manifest(), now.manifest());
    // Both graphs have the same nodes.
    assert!(!files(copies.dir()).contains(&"0/topology.arrow".to_owned()));
    copies.verify_files(&all(2), &Silent).unwrap();
    assert_eq!(std::fs::metadata(place.copies().join("part-00000/nodes.arrow")).unwrap().modified().unwrap(), kept);
    for (part, kind) in all(2) {
        let file = |dir: &Path| std::fs::read(dir.join(part_folder(part)).join(kind.name())).unwrap();
        assert!(file(copies.dir()) == file(now.dir()), "{part} {}", kind.name());
    }
    // A process that has started with the former dataset does not use files of the present one.
    std::fs::remove_file(place.copies().join("part-00001/topology.arrow")).unwrap();
    let error = former.topology(1).unwrap_err().to_string();
    let origin = place.dataset.dir().join("part-00001/topology.arrow");
    assert!(
        error.starts_with(&origin.display().to_string())
            && error.contains("if the dataset was replaced after the start, start again"),
        "{error}"
    );
    assert!(!files(copies.dir()).contains(&"1/topology.arrow".to_owned()));
}

#[test]
fn damaged_files_of_the_dataset_are_never_copied() {
    let place = Place::new();
    let path = place.dataset.dir().join("part-00001/features.arrow");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let copies = place.open().unwrap();
    let error = copies.verify_files(&all(2), &Silent).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()) && error.contains("its checksum differs"), "{error}");
    std::fs::write(&path, &bytes[1..]).unwrap();
    let error = copies.features(1).unwrap_err().to_string();
    assert!(error.contains("but the manifest says"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(copies.features(1), Err(Error::Missing { role: "graph.dataset", .. })));
    assert!(!files(copies.dir()).iter().any(|name| name.starts_with("1/") && name.contains("features")));
}

#[test]
fn features_of_another_process_are_verified_before_use() {
    let place = Place::new();
    place.open().unwrap().verify_files(&all(2), &Silent).unwrap();
    let path = place.copies().join("part-00000/features.arrow");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let last_row = whole.len() / 2;
    damaged[last_row] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let rows = |dataset: &Dataset| dataset.features_verified_elsewhere(0).unwrap().bytes().to_vec();
    assert!(rows(&place.open().unwrap()) == rows(&place.dataset));
    // Another process has replaced the copy: it is not copied again.
    let copies = place.open().unwrap();
    assert!(copies.discard_copy(&path, &Silent).unwrap() && std::fs::read(&path).unwrap() == whole);
    assert!(!copies.discard_copy(&place.dataset.dir().join("part-00000/features.arrow"), &Silent).unwrap());
}

#[test]
fn threads_copy_a_file_once() {
    let place = Place::new();
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..4).map(|_| place.open().unwrap()).collect();
        let threads: Vec<_> = opened
            .into_iter()
            .map(|copies| {
                scope.spawn(move || {
                    copies.verify_files(&all(2), &Silent).unwrap();
                    copies.copied_bytes().unwrap()
                })
            })
            .collect();
        let copied: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(copied, all(2).into_iter().map(|(part, kind)| place.bytes(part, kind)).sum::<u64>());
    });
}

#[test]
fn other_folders_are_not_overwritten() {
    let place = Place::new();
    std::fs::create_dir(place.copies()).unwrap();
    std::fs::write(place.copies().join("notes.txt"), "keep").unwrap();
    let error = place.open().unwrap_err().to_string();
    assert!(error.contains("has other files than copies of a dataset; name a new folder"), "{error}");
    let own = Dataset::open_copies(place.dataset.dir(), place.dataset.dir(), RETRY).unwrap_err().to_string();
    assert!(own.contains("has other files than copies"), "{own}");
    // Nor copies of another dataset.
    std::fs::remove_dir_all(place.copies()).unwrap();
    place.open().unwrap();
    let other = place.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(place.dataset.dir().join("manifest.json"), other.join("manifest.json")).unwrap();
    let error = Dataset::open_copies(&other, &place.copies(), RETRY).unwrap_err().to_string();
    assert!(error.contains("has copies of the dataset ") && error.contains("name another folder"), "{error}");
    // Copies alone are no dataset.
    let copies = Dataset::open(place.copies()).unwrap();
    for error in [copies.topology(0).unwrap_err(), copies.verify(&Silent).unwrap_err()] {
        assert!(matches!(&error, Error::Copies { origin, .. } if origin == place.dataset.dir()), "{error}");
    }
    let missing = Dataset::open_copies(&place.dir.path().join("none"), &place.copies(), RETRY).unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }), "{missing}");
}
