//! Damaged files: for any flipped bit, the command exits with 3 and names the file.

use std::path::Path;
use std::process::Stdio;

use crate::common::{TestDir, hashes, planted, summary, wait_for_epochs};
use gnnflow_data::testing::reseal;

const SETTINGS: &str =
    "halo = 'features'\n[model]\nkind = 'sage'\nhidden = 8\n[train]\nepochs = 2\nbatch = 64\nfanouts = [4, 3]\n";
/// Settings that only mini-batches have.
const BATCHES: &str = "batch = 64\nfanouts = [4, 3]\n";
const KINDS: [&str; 4] = ["topology", "nodes", "features", "halo"];

/// Prepares a dataset in `dataset`, and writes pipelines that train on it: `p.toml` in mini-batches, `local.toml` per
/// partition, `full.toml` as full graph and `columns.toml` tensor-parallel.
fn dataset() -> TestDir {
    let place = TestDir::new();
    planted(&place, "prepare.toml", SETTINGS);
    place.succeed(&["prepare", "prepare.toml", "--quiet"]);
    let text = std::fs::read_to_string(place.path("prepare.toml")).unwrap();
    let (_, rest) = text.split_once("[model]").unwrap();
    let text = format!("[graph]\ndataset = 'dataset'\n[model]{rest}");
    place.write("p.toml", &text);
    place.write("local.toml", text.replace(BATCHES, &format!("{BATCHES}schedule = 'partition-parallel'\n")));
    let without_batches = |schedule: &str| {
        text.replace(BATCHES, &format!("schedule = '{schedule}'\n")).replace("hash_blocks = true\n", "")
    };
    place.write("full.toml", without_batches("full-graph"));
    place.write("columns.toml", without_batches("tensor-parallel"));
    place
}

/// Flips one bit of a file, calls `with`, and flips it back.
fn with_flipped_bit(path: &Path, at: usize, with: impl FnOnce()) {
    let whole = std::fs::read(path).unwrap();
    let mut bytes = whole.clone();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
    with();
    std::fs::write(path, whole).unwrap();
}

/// Returns the offsets of the first, a middle and the last byte.
fn regions(path: &Path) -> [usize; 3] {
    let bytes = std::fs::metadata(path).unwrap().len() as usize;
    [0, bytes / 2, bytes - 1]
}

/// Returns arguments that run a pipeline in the run folder `run`.
fn run_of<'a>(pipeline: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["run", pipeline, "--quiet", "--run-dir", "run"], args].concat()
}

/// Returns arguments that run `p.toml` in the run folder `run`.
fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
    run_of("p.toml", args)
}

#[test]
fn dataset_file_with_flipped_bit_ends_run_of_1_and_2_processes_with_3() {
    let place = dataset();
    place.succeed(&run(&[]));
    let expected = hashes(&summary(&place, "run"));
    for processes in ["1", "2"] {
        for kind in KINDS {
            // Partition 3 belongs to the second process.
            for part in [0, 3] {
                let name = format!("part-{part:05}/{kind}.arrow");
                let path = place.path("dataset").join(&name);
                for at in regions(&path) {
                    with_flipped_bit(&path, at, || {
                        if kind == "halo" && processes == "1" {
                            // One process has all features and does not read halos.
                            place.succeed(&run(&[]));
                            assert_eq!(hashes(&summary(&place, "run")), expected);
                            return;
                        }
                        let args = ["run", "p.toml", "--quiet", "--run-dir", "bad", "--processes", processes];
                        place.fail(&args, 3, &[&name, "checksum", "run `gnnflow prepare` again"]);
                        for result in ["checkpoints/last.safetensors", "model.safetensors"] {
                            assert!(!place.path("bad").join(result).exists(), "{name}, byte {at}: {result}");
                        }
                        // The process without a damaged file may have created it.
                        let epochs = std::fs::read_to_string(place.path("bad/metrics.jsonl")).unwrap_or_default();
                        assert_eq!(epochs, "", "{name}, byte {at}");
                    });
                }
            }
        }
    }
    place.succeed(&run(&["--processes", "2"]));
    assert_eq!(hashes(&summary(&place, "run")), expected);
}

#[test]
fn dataset_file_with_flipped_bit_ends_every_schedule_with_3() {
    let place = dataset();
    let all = [("1", "topology"), ("2", "topology"), ("1", "nodes"), ("2", "features"), ("1", "halo")];
    for pipeline in ["local.toml", "full.toml", "columns.toml"] {
        place.succeed(&run_of(pipeline, &[]));
        // In one process, only partition-parallel training reads halos.
        for (processes, kind) in all.into_iter().filter(|(_, kind)| *kind != "halo" || pipeline == "local.toml") {
            let name = format!("part-00002/{kind}.arrow");
            let path = place.path("dataset").join(&name);
            with_flipped_bit(&path, regions(&path)[1], || {
                place.fail(&run_of(pipeline, &["--processes", processes]), 3, &[&name, "checksum"]);
            });
        }
    }
    // With the topology replicated, both processes read all of it.
    let path = place.path("dataset/part-00001/topology.arrow");
    with_flipped_bit(&path, regions(&path)[1], || {
        let args = run(&["--processes", "2", "--set", "partition.topology=replicated"]);
        place.fail(&args, 3, &["part-00001/topology.arrow", "checksum"]);
    });
}

#[test]
fn dataset_file_with_flipped_bit_ends_inspect_export_and_update_with_3() {
    let place = dataset();
    let ids = |values: Vec<i64>| std::sync::Arc::new(arrow::array::Int64Array::from(values)) as arrow::array::ArrayRef;
    // 40 random edges, which very likely change every partition.
    place.parquet("new.parquet", vec![("src", ids((0..40).collect())), ("dst", ids((700..740).collect()))]);
    let before = std::fs::read(place.path("dataset/manifest.json")).unwrap();
    for kind in KINDS {
        let name = format!("part-00001/{kind}.arrow");
        let path = place.path("dataset").join(&name);
        for at in regions(&path) {
            with_flipped_bit(&path, at, || {
                place.fail(&["inspect", "dataset", "--quiet"], 3, &[&name, "checksum"]);
                place.fail(&["export", "dataset", "--out", "back", "--quiet"], 3, &[&name, "checksum"]);
                assert!(!place.path("back").exists());
                // An update writes halos and does not read them.
                if kind != "halo" {
                    place.fail(&["update", "dataset", "--edges", "new.parquet", "--quiet"], 3, &[&name, "checksum"]);
                    assert_eq!(std::fs::read(place.path("dataset/manifest.json")).unwrap(), before);
                }
            });
        }
    }
    place.succeed(&["update", "dataset", "--edges", "new.parquet", "--quiet"]);
    place.succeed(&["inspect", "dataset", "--quiet"]);
    place.succeed(&run(&["--processes", "2"]));
}

#[test]
fn manifest_with_flipped_bit_ends_every_command_with_3() {
    let place = dataset();
    let path = place.path("dataset/manifest.json");
    let bytes = std::fs::metadata(&path).unwrap().len() as usize;
    for at in (0..bytes).step_by(bytes / 40).chain(bytes - 24..bytes) {
        with_flipped_bit(&path, at, || {
            place.fail(&run(&[]), 3, &["manifest.json"]);
        });
    }
    with_flipped_bit(&path, bytes / 2, || {
        place.fail(&run(&["--processes", "2"]), 3, &["manifest.json", "checksum"]);
        place.fail(&["inspect", "dataset"], 3, &["manifest.json", "checksum"]);
        place.fail(&["export", "dataset", "--out", "back"], 3, &["manifest.json", "checksum"]);
        place.fail(&["update", "dataset", "--edges", "new.parquet"], 3, &["manifest.json", "checksum"]);
    });
    // Not UTF-8.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..200], &[0xff, 0xfe], &whole[200..]].concat()).unwrap();
    place.fail(&run(&[]), 3, &["manifest.json"]);
}

#[test]
fn manifest_without_checksum_is_opened_and_without_features_is_refused() {
    let place = dataset();
    let path = place.path("dataset/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    // The manifest of an older version.
    let (old, _) = text.rsplit_once(",\n  \"crc32\": ").unwrap();
    let old = format!("{old}\n}}");
    place.succeed(&run(&[]));
    let expected = hashes(&summary(&place, "run"));
    std::fs::write(&path, &old).unwrap();
    place.succeed(&run(&[]));
    assert_eq!(hashes(&summary(&place, "run")), expected);
    // With a letter of the key changed, the partition has no features.
    let other = old.replacen("      \"features\": {", "      \"featurer\": {", 1);
    assert_ne!(other, old);
    std::fs::write(&path, other).unwrap();
    place.fail(&run(&[]), 3, &["manifest.json", "features"]);
}

#[test]
fn values_out_of_range_with_valid_checksums_are_refused() {
    use gnnflow_data::Dataset;
    let place = dataset();
    let dataset = Dataset::open(place.path("dataset")).unwrap();
    let nodes = dataset.nodes(2).unwrap();
    let path = place.path("dataset/part-00002/nodes.arrow");
    let whole = std::fs::read(&path).unwrap();
    let find = |column: &[u8]| whole.windows(column.len()).position(|window| window == column).unwrap();
    let labels = find(bytemuck::cast_slice(nodes.class_labels().unwrap()));
    let splits = find(nodes.split());
    for (at, words) in [(labels, "is not among the 5 classes"), (splits, "is not a split")] {
        let mut bytes = whole.clone();
        bytes[at] |= 16;
        std::fs::write(&path, bytes).unwrap();
        reseal(&place.path("dataset")).unwrap();
        for processes in ["1", "2"] {
            place.fail(&run(&["--processes", processes]), 3, &["part-00002/nodes.arrow", words]);
        }
    }
}

#[test]
fn parquet_footer_with_column_outside_the_file_ends_prepare_and_inspect_with_3() {
    use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    place
        .write("q.toml", "[graph]\nnodes = 'graph/nodes.parquet'\nedges = 'bad.parquet'\n[partition]\nout = 'other'\n");
    let path = place.path("graph/edges.parquet");
    let whole = std::fs::read(&path).unwrap();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&std::fs::File::open(&path).unwrap()).unwrap();
    let column = || footer.row_group(0).column(0).clone().into_builder();
    let build = |column: parquet::file::metadata::ColumnChunkMetaDataBuilder| column.build().unwrap();
    let bad: [ColumnChunkMetaData; 4] = [
        build(column().set_dictionary_page_offset(None).set_data_page_offset(-4)),
        build(column().set_dictionary_page_offset(Some(-1))),
        build(column().set_total_compressed_size(-100)),
        build(column().set_total_compressed_size(i64::MAX)),
    ];
    for bad in bad {
        let mut group = footer.row_group(0).clone().into_builder();
        let mut columns = footer.row_group(0).columns().to_vec();
        columns[0] = bad;
        group = group.set_column_metadata(columns);
        let other = footer.clone().into_builder().set_row_groups(vec![group.build().unwrap()]).build();
        let length = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize;
        let mut bytes = whole[..whole.len() - 8 - length].to_vec();
        ParquetMetaDataWriter::new(&mut bytes, &other).finish().unwrap();
        place.write("bad.parquet", bytes);
        place.fail(&["prepare", "q.toml", "--quiet"], 3, &["bad.parquet", "row group 0"]);
        place.fail(&["inspect", "bad.parquet", "--quiet"], 3, &["bad.parquet", "row group 0"]);
        assert!(!place.path("other").exists());
    }
}

#[test]
fn checkpoint_with_flipped_bit_ends_resume_with_3_and_names_the_file() {
    let place = dataset();
    for (pipeline, processes) in [("p.toml", &["1", "2"][..]), ("full.toml", &["1"])] {
        let train = |args: &[&str]| place.succeed(&run_of(pipeline, args));
        train(&[]);
        let expected = hashes(&summary(&place, "run"));
        train(&["--set", "train.epochs=1"]);
        let path = place.path("run/checkpoints/last.safetensors");
        let whole = std::fs::read(&path).unwrap();
        let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let offsets = [0, 8 + header / 3, 8 + header - 1, 8 + header, whole.len() / 2, whole.len() - 1];
        for processes in processes {
            for at in offsets {
                with_flipped_bit(&path, at, || {
                    let args = run_of(pipeline, &["--resume", "--processes", processes]);
                    place.fail(&args, 3, &["last.safetensors", "is damaged", "leave --resume out"]);
                });
            }
        }
        train(&["--resume", "--processes", "2", "--set", "train.keep_checkpoints=1"]);
        assert_eq!(hashes(&summary(&place, "run")), expected);
        // Checkpoints of an older version have no checksum.
        let at = whole.windows(13).position(|window| window == b"gnnflow.crc32").unwrap();
        let old = [&whole[..at], b"gnnflow.other", &whole[at + 13..]].concat();
        std::fs::write(&path, old).unwrap();
        place.fail(&run_of(pipeline, &["--resume"]), 3, &["last.safetensors", "no checksum", "older version"]);
    }
}

#[test]
fn shard_of_learned_rows_with_flipped_bit_ends_resume_with_3_and_names_the_file() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        &SETTINGS.replace("hidden = 8", "hidden = 8\nembedding = { dim = 6 }").replace("halo = 'features'\n", ""),
    );
    let train = |args: &[&str]| place.succeed(&run(&[&["--set", "graph.generate.features=0"], args].concat()));
    train(&[]);
    let expected = hashes(&summary(&place, "run"));
    train(&["--set", "train.epochs=1"]);
    for name in ["embeddings-e1-p00000", "embeddings-e1-p00003", "embeddings-best-e1-p00002"] {
        let path = place.path("run/checkpoints").join(format!("{name}.safetensors"));
        for at in regions(&path) {
            for processes in ["1", "2"] {
                with_flipped_bit(&path, at, || {
                    let args = run(&["--set", "graph.generate.features=0", "--resume", "--processes", processes]);
                    place.fail(&args, 3, &[name, "is damaged", "leave --resume out"]);
                });
            }
        }
    }
    train(&["--resume"]);
    assert_eq!(hashes(&summary(&place, "run")), expected);
}

#[test]
fn model_with_flipped_bit_is_found_by_inspect() {
    let place = dataset();
    place.succeed(&run(&[]));
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let path = place.path("run").join(name);
        for at in regions(&path) {
            with_flipped_bit(&path, at, || {
                place.fail(&["inspect", "run"], 3, &[&format!("{name}: damaged")]);
            });
        }
    }
    place.succeed(&["inspect", "run"]);
}

/// Trains `args` to `epochs` epochs with a checkpoint after each, in the run folder `run`.
fn train_to(place: &TestDir, args: &[&str], epochs: u32) -> String {
    let epochs = format!("train.epochs={epochs}");
    let end = ["--set", &epochs, "--set", "train.checkpoint_every=1", "--run-dir", "run"];
    let ended = place.run(&[&["run", "p.toml"], args, &end].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stderr
}

/// Returns the sorted names in the folder of checkpoints.
fn checkpoint_names(place: &TestDir) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("run/checkpoints")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn damaged_checkpoint_is_replaced_by_the_one_before_it() {
    let place = dataset();
    train_to(&place, &[], 6);
    assert_eq!(checkpoint_names(&place), ["e5.safetensors", "last.safetensors"]);
    let expected = hashes(&summary(&place, "run"));
    let resume = |processes| ["--resume", "--processes", processes];
    for processes in ["1", "2", "4"] {
        train_to(&place, &[], 4);
        let [last, before] = ["last", "e3"].map(|name| place.path(&format!("run/checkpoints/{name}.safetensors")));
        let middle = regions(&last)[1];
        // All are damaged: the error names the newest.
        with_flipped_bit(&last, middle, || {
            with_flipped_bit(&before, middle, || {
                let args = run(&["--resume", "--processes", processes]);
                place.fail(&args, 3, &["last.safetensors", "is damaged", "leave --resume out"]);
            });
        });
        let mut bytes = std::fs::read(&last).unwrap();
        bytes[middle] ^= 4;
        std::fs::write(&last, bytes).unwrap();
        let told = train_to(&place, &resume(processes), 6);
        for words in ["last.safetensors is damaged", "continues after the checkpoint run/checkpoints/e3.safetensors"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(hashes(&summary(&place, "run")), expected, "{processes} processes");
        assert_eq!(checkpoint_names(&place), ["e5.safetensors", "last.safetensors"]);
    }
    // A missing file counts as damaged.
    train_to(&place, &[], 3);
    std::fs::remove_file(place.path("run/checkpoints/last.safetensors")).unwrap();
    let told = train_to(&place, &resume("2"), 6);
    assert!(told.contains("continues after the checkpoint run/checkpoints/e2.safetensors"), "{told}");
    assert_eq!(hashes(&summary(&place, "run")), expected);
    // A new run without --resume keeps these checkpoints.
    std::fs::remove_file(place.path("run/checkpoints/last.safetensors")).unwrap();
    for name in ["summary.json", "model.safetensors", "optimizer.safetensors", "report.html", "metrics.jsonl"] {
        std::fs::remove_file(place.path("run").join(name)).unwrap();
    }
    let told = train_to(&place, &["--set", "train.keep_checkpoints=1"], 3);
    assert!(told.contains("has an earlier run"), "{told}");
    assert_eq!(checkpoint_names(&place), ["last.safetensors"]);
}

#[test]
fn damaged_learned_rows_are_replaced_by_those_before_them() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        &SETTINGS.replace("hidden = 8", "hidden = 8\nembedding = { dim = 6 }").replace("halo = 'features'\n", ""),
    );
    let features = ["--set", "graph.generate.features=0"];
    let train = |args: &[&str], epochs| train_to(&place, &[&features, args].concat(), epochs);
    train(&["--set", "train.keep_checkpoints=3"], 5);
    let expected = hashes(&summary(&place, "run"));
    let names = checkpoint_names(&place);
    let shards = |at: &str| names.iter().filter(|name| name.starts_with(&format!("embeddings-{at}-p"))).count();
    assert_eq!([5, 4, 3, 2].map(|epoch| shards(&format!("e{epoch}"))), [4, 4, 4, 0], "{names:?}");
    for processes in ["1", "2", "4"] {
        train(&[], 4);
        // Of the second process, if there are two.
        let path = place.path("run/checkpoints/embeddings-e4-p00003.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let told = train(&["--resume", "--processes", processes], 5);
        for words in ["embeddings-e4-p00003.safetensors is damaged", "run/checkpoints/e3.safetensors"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(hashes(&summary(&place, "run")), expected, "{processes} processes");
    }
}

#[test]
fn parquet_page_with_wrong_checksum_ends_prepare_with_3() {
    // Written by pyarrow with `write_page_checksum = True`: 64 nodes with four features each, not compressed.
    let whole = include_bytes!("common/page-checksums.parquet");
    let place = TestDir::new();
    let ids = |values: Vec<i64>| std::sync::Arc::new(arrow::array::Int64Array::from(values)) as arrow::array::ArrayRef;
    place.parquet("edges.parquet", vec![("src", ids((0..63).collect())), ("dst", ids((1..64).collect()))]);
    let tables = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n[partition]\nout = 'dataset'\n";
    place.write("p.toml", tables);
    place.write("nodes.parquet", whole);
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    // The first feature of the first node.
    let value = 1234.5f32.to_le_bytes();
    let at = whole.windows(4).position(|window| window == value).unwrap();
    let mut bytes = whole.to_vec();
    bytes[at] ^= 1;
    place.write("nodes.parquet", bytes);
    place.fail(&["prepare", "p.toml", "--quiet", "--out", "other"], 3, &["nodes.parquet", "checksum"]);
    assert!(!place.path("other").exists());
}

#[test]
fn metrics_that_are_not_utf8_end_resume_with_3() {
    let place = dataset();
    place.succeed(&run(&["--set", "train.epochs=1"]));
    let path = place.path("run/metrics.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    place.fail(&run(&["--resume"]), 3, &["run/metrics.jsonl", "UTF-8"]);
}

#[test]
fn parquet_page_without_its_dictionary_ends_commands_with_3() {
    // A table `src`, `dst` of four rows by pyarrow, with one flipped bit in the header of a page. The decoder panics.
    let place = TestDir::new();
    place.write("bad.parquet", include_bytes!("common/page-without-dictionary.parquet"));
    let ids = std::sync::Arc::new(arrow::array::Int64Array::from_iter_values(0..600)) as arrow::array::ArrayRef;
    place.parquet("nodes.parquet", vec![("node_id", ids)]);
    place.write("p.toml", "[graph]\nnodes = 'nodes.parquet'\nedges = 'bad.parquet'\n[partition]\nout = 'dataset'\n");
    for args in [&["prepare", "p.toml", "--quiet"][..], &["inspect", "bad.parquet", "--quiet"]] {
        let errors = place.fail(args, 3, &["bad.parquet", "row group 0", "damaged"]);
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
    assert!(!place.path("dataset").exists());
}

#[test]
fn mapped_file_that_is_cut_short_ends_the_run_with_3() {
    for processes in ["1", "2"] {
        let place = TestDir::new();
        planted(&place, "p.toml", "[model]\nhidden = 8\n[train]\nepochs = 100000\nread_ahead = true\n");
        let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes];
        let mut run = place.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_epochs(&place, "run", 2, &mut run);
        for part in 0..4 {
            let path = place.path(&format!("dataset/part-{part:05}/features.arrow"));
            std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        }
        let ended = run.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(3), "{processes} processes: {stderr}");
        assert!(stderr.contains("features.arrow was cut short while it was in use; "), "{stderr}");
    }
}
