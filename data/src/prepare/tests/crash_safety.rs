//! A dataset appears completely or not at all, also after crashes and a full disk.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::dataset::{FileKind, SCHEMA_VERSION, part_folder};
use crate::error::Fault;
use crate::partitioner::{Assignment, Goal, GraphStream};
use crate::testing::{IdStyle, power_law, reseal};

/// Counts the calls of `assign`.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Partitioner for Counting {
    fn name(&self) -> &str {
        "counting"
    }
    fn assign(&self, graph: &dyn GraphStream, _: &Goal) -> Result<Assignment> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Reads the edges twice, as a streaming method would.
        for _ in 0..2 {
            let mut edges = 0;
            graph.for_each_edges("counting", &mut |some| {
                edges += some.len() as u64;
                Ok(())
            })?;
            assert_eq!(edges, graph.num_edges());
        }
        assert_eq!(graph.splits().len() as u64, graph.num_nodes());
        Ok(Assignment::Stored(vec![0; graph.num_nodes() as usize]))
    }
}

/// Returns the sorted names of all files and folders in `dir`.
fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_stale_datasets_are_prepared_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = power_law(50, 300, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let (partitioner, out) = (Counting::default(), dir.path().join("out"));
    let run = |source: &GraphSource, parts| prepare(source, &partitioner, &settings(&out, parts), &Silent).unwrap();
    let is = |source: &GraphSource, parts| {
        let settings = settings(&out, parts);
        state(&out, &fingerprint(source, &partitioner, &settings).unwrap()).unwrap()
    };
    let times = || partitioner.0.load(Ordering::Relaxed);

    assert_eq!(is(&source, 1), State::Missing);
    let first = run(&source, 1);
    assert_eq!((run(&source, 1), times()), (first.clone(), 1));
    assert_eq!(is(&source, 1), State::Current(Box::new(first)));

    assert_eq!(is(&source, 2), State::Stale("partition.parts was 1, now it is 2".into()));
    source.undirected = true;
    assert_eq!(is(&source, 1), State::Stale("graph.undirected was false, now it is true".into()));
    run(&source, 1);
    assert_eq!(times(), 2);

    // Another input of the same length.
    let edges = source.edge_files().unwrap()[1].path().to_path_buf();
    power_law(50, 300, 5).dump(dir.path(), IdStyle::Dense).unwrap();
    assert!(matches!(is(&source, 1), State::Stale(why) if why.starts_with("input part-")), "{}", edges.display());
    run(&source, 1);

    // Damage.
    let file = out.join(part_folder(0)).join("topology.arrow");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(is(&source, 1), State::Stale(why) if why.contains("topology.arrow is damaged")));
    let error = Dataset::open(&out).unwrap().partition(0).unwrap_err();
    assert_eq!(error.fault(), Fault::Input);
    assert!(error.to_string().contains("topology.arrow: damaged"), "{error}");
    run(&source, 1);
    assert_eq!(times(), 4);
    assert_eq!(listing(dir.path()), ["edges", "nodes", "out"]);
}

#[test]
fn flipped_bit_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let source = power_law(50, 300, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
    dataset.verify(&Silent).unwrap();
    let file = dir.path().join("out").join(part_folder(0)).join("features.arrow");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = dataset.verify(&Silent).unwrap_err().to_string();
    assert!(error.contains("features.arrow: damaged: its checksum differs from the one in manifest.json"), "{error}");
}

/// Counts the bytes that are verified.
#[derive(Default)]
struct Bytes(std::sync::atomic::AtomicU64);

impl Progress for Bytes {
    fn stage(&self, _: &str, _: Option<u64>, _: &str) {}
    fn advance(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
    fn done(&self) {}
}

#[test]
fn large_file_is_verified_once_and_damage_at_any_position_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    // Features of more than two megabytes: several threads read them.
    let source = power_law(200_000, 200_000, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
    let features = dataset.manifest().partitions[0].features.unwrap().bytes;
    assert!(features > 2 << 20, "{features}");
    let files = [(0, FileKind::Features), (0, FileKind::Topology), (0, FileKind::Features)];
    let verified = |dataset: &Dataset| {
        let bytes = Bytes::default();
        dataset.verify_files(&files, &bytes).unwrap();
        bytes.0.into_inner()
    };
    let all = features + dataset.manifest().partitions[0].topology.bytes;
    assert_eq!([verified(&dataset), verified(&dataset.clone())], [all, 0]);
    let file = dataset.dir().join(part_folder(0)).join(FileKind::Features.name());
    let whole = std::fs::read(&file).unwrap();
    for at in [0, (1 << 20) - 1, 1 << 20, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&file, bytes).unwrap();
        for error in [
            Dataset::open(dataset.dir()).unwrap().verify_files(&files, &Silent).unwrap_err(),
            // Not verified before it is opened.
            Dataset::open(dataset.dir()).unwrap().features(0).unwrap_err(),
            // Verified before the change.
            dataset.features(0).unwrap_err(),
        ] {
            assert!(error.to_string().contains("features.arrow: damaged: its checksum differs"), "byte {at}: {error}");
        }
    }
}

#[test]
fn manifest_without_checksum_opens_and_any_flipped_bit_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let source = power_law(20, 30, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let out = prepared(&source, &dir.path().join("out"), 1).unwrap().dir().to_path_buf();
    let path = out.join(Manifest::FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let bytes = text.as_bytes();
    // One bit of every byte, each of the eight in turn.
    for bit in (0..8 * bytes.len()).step_by(9) {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, flipped).unwrap();
        let error = Dataset::open(&out).err().unwrap_or_else(|| panic!("bit {bit} of {}", bytes.len()));
        assert_eq!(error.fault(), Fault::Input, "bit {bit}: {error}");
        assert!(error.to_string().contains("manifest.json"), "bit {bit}: {error}");
    }
    let (old, _) = text.rsplit_once(",\n  \"crc32\": ").unwrap();
    std::fs::write(&path, format!("{old}\n}}")).unwrap();
    Dataset::open(&out).unwrap().verify(&Silent).unwrap();
}

#[test]
fn index_beyond_the_last_node_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = power_law(50, 300, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
    let info = dataset.manifest().partitions[0].topology;
    let file = dir.path().join("out").join(part_folder(0)).join("topology.arrow");
    let mut bytes = std::fs::read(&file).unwrap();
    let indices = info.body.0 as usize + (8usize * 51).next_multiple_of(64);
    bytes[indices..indices + 4].copy_from_slice(&50u32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let error = dataset.topology(0).unwrap_err().to_string();
    assert!(error.contains("topology.arrow: damaged: its checksum differs"), "{error}");
    // With a valid checksum, the check of values finds it.
    reseal(dataset.dir()).unwrap();
    let error = Dataset::open(dataset.dir()).unwrap().topology(0).unwrap_err().to_string();
    assert!(error.contains("an edge comes from node 50, but there are 50 nodes"), "{error}");
}

#[test]
fn folders_with_other_content_are_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let source = power_law(20, 30, 4).dump(dir.path(), IdStyle::Dense).unwrap();
    let out = dir.path().join("out");
    for content in ["thesis.tex", "manifest.json"] {
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join(content), "{\"mine\": true}").unwrap();
        let error = prepared(&source, &out, 1).unwrap_err();
        assert!(error.to_string().contains("exists and is not a prepared dataset; choose another folder"), "{error}");
        assert_eq!(listing(&out), [content]);
        assert!(matches!(Dataset::open(&out), Err(Error::NotADataset { .. })));
        std::fs::remove_dir_all(&out).unwrap();
    }
    // An empty folder is used; a dataset of another version is prepared again.
    std::fs::create_dir(&out).unwrap();
    prepared(&source, &out, 1).unwrap();
    let manifest = out.join(Manifest::FILE);
    let text = std::fs::read_to_string(&manifest).unwrap();
    let text = text.replacen(&format!("\"schema\": {SCHEMA_VERSION}"), "\"schema\": 999", 1);
    std::fs::write(&manifest, text).unwrap();
    let error = Dataset::open(&out).unwrap_err();
    assert!(error.to_string().contains("prepared with schema version 999, but this gnnflow reads 1"), "{error}");
    prepared(&source, &out, 1).unwrap();
}

#[test]
fn estimates_bound_the_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let plain = power_law(500, 9000, 6).dump(dir.path(), IdStyle::Dense).unwrap();
    for (undirected, self_loops) in [(false, SelfLoops::Keep), (true, SelfLoops::Add)] {
        let source = GraphSource { undirected, self_loops, ..plain.clone() };
        let settings = settings(&dir.path().join("out"), 3);
        let estimate = estimate(&source, Some(&Modulo), &settings, 1).unwrap();
        let manifest = prepare(&source, &Modulo, &settings, &Silent).unwrap();
        assert_eq!((estimate.nodes, estimate.edge_rows, estimate.feature_dim), (500, 9000, manifest.features.dim));
        assert!(manifest.edges <= estimate.edges);
        let bytes = |part: &PartitionInfo| {
            part.topology.bytes + part.node_columns.bytes + part.features.map_or(0, |file| file.bytes)
        };
        let disk: u64 = manifest.partitions.iter().map(bytes).sum();
        // Headers, at most two kibibytes per file, are not counted.
        assert!(disk <= estimate.disk + 9 * 2048, "{disk} bytes, {} expected", estimate.disk);
    }
}

#[test]
fn dates_and_timestamps_are_times() {
    use arrow::array::{ArrayRef, Date32Array, TimestampMillisecondArray};
    let dir = tempfile::tempdir().unwrap();
    let mut source = power_law(3, 0, 6).dump(dir.path(), IdStyle::Dense).unwrap();
    source.edges = vec![dir.path().join("timed.parquet")];
    source.columns.time = Some("when".into());
    let times: [ArrayRef; 2] = [
        std::sync::Arc::new(Date32Array::from(vec![19_000, 19_001])),
        std::sync::Arc::new(TimestampMillisecondArray::from(vec![19_000, 19_001])),
    ];
    for when in times {
        let columns = vec![("src", IdStyle::Dense.ids([0, 1])), ("dst", IdStyle::Dense.ids([2, 2])), ("when", when)];
        crate::testing::write_parquet(&source.edges[0], columns, 10);
        let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
        assert_eq!(dataset.topology(0).unwrap().times().unwrap(), [19_000, 19_001]);
    }
}

#[test]
fn concurrent_preparations_run_once() {
    let dir = tempfile::tempdir().unwrap();
    let source = power_law(300, 5000, 6).dump(dir.path(), IdStyle::Dense).unwrap();
    let (partitioner, settings) = (Counting::default(), settings(&dir.path().join("out"), 2));
    let manifests = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let manifest = prepare(&source, &partitioner, &settings, &Silent).unwrap();
                manifests.lock().unwrap().push(manifest);
            });
        }
    });
    assert_eq!(partitioner.0.load(Ordering::Relaxed), 1);
    assert!(manifests.into_inner().unwrap().windows(2).all(|pair| pair[0] == pair[1]));
}

/// Returns a command that runs test `name` of this binary in another process, with `key` set to `value`.
fn in_child(name: &str, key: &str, value: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(key, value);
    command
}

#[test]
fn killed_preparation_leaves_no_dataset() {
    const KEY: &str = "GNNFLOW_TEST_KILLED";
    let dump = |dir: &Path| power_law(2000, 60_000, 7).dump(dir, IdStyle::Text).unwrap();
    if let Some(dir) = std::env::var_os(KEY) {
        let dir = Path::new(&dir);
        let source = dump(dir);
        std::fs::write(dir.join("ready"), "").unwrap();
        let settings = PrepareSettings { memory: 96 << 10, ..settings(&dir.join("out"), 3) };
        prepare(&source, &Modulo, &settings, &Silent).unwrap();
        return;
    }
    let name = "prepare::tests::crash_safety::killed_preparation_leaves_no_dataset";
    let mut half = 0;
    for milliseconds in [0, 2, 5, 10, 20, 40, 80] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = in_child(name, KEY, dir.path()).stdout(std::process::Stdio::null()).spawn().unwrap();
        while !dir.path().join("ready").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        let out = dir.path().join("out");
        half += usize::from(listing(dir.path()).iter().any(|name| name == ".out.tmp"));
        match Dataset::open(&out) {
            Ok(dataset) => dataset.verify(&Silent).unwrap(),
            Err(error) => assert!(matches!(error, Error::Missing { .. }), "{error}"),
        }
        // The next preparation removes its files and succeeds.
        let source = dump(dir.path());
        prepared(&source, &out, 3).unwrap().verify(&Silent).unwrap();
        assert_eq!(listing(dir.path()), ["edges", "nodes", "out", "ready"]);
    }
    println!("{half} of 7 kills left a half-written folder");
}

#[test]
fn full_disk_is_reported_and_leaves_no_files() {
    const KEY: &str = "GNNFLOW_TEST_FULL_DISK";
    if let Some(dir) = std::env::var_os(KEY) {
        let (disk, dump) = (Path::new(&dir).join("disk"), tempfile::tempdir().unwrap());
        // The datasets take about 150 KB and their buckets 500 KB; the disk has 200 KB.
        let source = power_law(1000, 60_000, 8).dump(dump.path(), IdStyle::Dense).unwrap();
        for memory in [6 << 10, 1 << 30] {
            let settings = PrepareSettings { memory, ..settings(&disk.join("out"), 2) };
            let error = prepare(&source, &Modulo, &settings, &Silent).unwrap_err();
            assert_eq!(error.fault(), Fault::Machine, "{error}");
            assert!(error.to_string().contains("free some space or choose another disk"), "{error}");
            assert!(listing(&disk).is_empty());
        }
        println!("the disk was full");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    let name = "prepare::tests::crash_safety::full_disk_is_reported_and_leaves_no_files";
    let script = "mount -t tmpfs -o size=200k tmpfs \"$DISK/disk\" || exit 77; exec \"$0\" \"$@\"";
    let plain = in_child(name, KEY, dir.path());
    let mut command = Command::new("unshare");
    command.args(["-r", "-m", "sh", "-c", script]).arg(plain.get_program()).args(plain.get_args());
    let output = command.env(KEY, dir.path()).env("DISK", dir.path()).output();
    match output {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("the disk was full"));
        }
        Ok(output)
            if output.status.code() == Some(77) || String::from_utf8_lossy(&output.stderr).contains("unshare") =>
        {
            println!("skipped: this system lets us mount no small disk");
        }
        Ok(output) => panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        Err(error) => println!("skipped: {error}"),
    }
}
