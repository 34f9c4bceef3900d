//! Reads objects of a local web server with injected faults. The tests of the program use real object stores.

mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;

use super::*;
use crate::dataset::Dataset;
use crate::dump::{DumpFile, EdgeReader, NodeReader};
use crate::prepare::{PrepareSettings, State, fingerprint, prepare, state};
use crate::progress::Silent;
use crate::rng::{Key, Purpose};
use crate::source::GraphSource;
use crate::testing::{IdStyle, Modulo, power_law};
use server::{Faults, Server};

const SHORT_RETRY: Duration = Duration::from_millis(700);

fn one(url: &str, retry: Duration) -> Result<Arc<Object>> {
    find(vec![url.into()], "graph.nodes", retry).map(|mut found| found.remove(0).remove(0))
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let key = Key::new(seed, Purpose::GenerateEdges);
    (0..length.div_ceil(8) as u64).flat_map(|i| key.draw(i).to_le_bytes()).take(length).collect()
}

/// Returns the text of an error without the server's address, and its exit code.
fn failure_of<T>(server: &Server, result: Result<T>) -> (String, u8) {
    let error = result.err().expect("an error");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    (text.replace(&format!("http://{}", server.address()), ""), error.fault().exit_code())
}

#[test]
fn range_has_the_bytes_of_the_file_under_all_faults() {
    let server = Server::start();
    let bytes = noise(300_000, 1);
    server.put("a b.bin", bytes.clone());
    let object = one(&server.url("a%20b.bin"), Duration::from_secs(10)).unwrap();
    assert_eq!((object.bytes(), object.version()), (300_000, "v1".into()));
    let key = Key::new(2, Purpose::GenerateEdges);
    for (case, faults) in [
        Faults::default(),
        Faults { cut: Some((5, 7_000)), ..Faults::default() },
        Faults { cut: Some((3, 0)), ..Faults::default() },
        Faults { status: Some((2, 503)), ..Faults::default() },
        Faults { status: Some((1, 429)), cut: Some((2, 1)), ..Faults::default() },
        Faults { no_tags: true, ..Faults::default() },
    ]
    .into_iter()
    .enumerate()
    {
        server.faults(faults.clone());
        // Without ETags the version differs, so the object is opened again.
        let object = if faults.no_tags { one(&server.url("a%20b.bin"), SHORT_RETRY).unwrap() } else { object.clone() };
        for i in 0..8 {
            let start = (key.unit(2 * i) * 300_000.0) as u64;
            let end = start + (key.unit(2 * i + 1) * (300_000 - start) as f64) as u64;
            let part = wait(Arc::clone(&object).read(start..end)).unwrap();
            assert!(part == bytes[start as usize..end as usize], "case {case}: {start}..{end}");
        }
        assert!(server.faults_done(), "case {case}");
    }
}

#[test]
fn error_of_every_fault_is_one_line_with_its_cause() {
    let server = Server::start();
    server.put("x.bin", noise(1000, 3));
    let url = server.url("x.bin");
    let object = || one(&url, SHORT_RETRY);
    let read = || wait(object()?.read(10..900)).map(|_| ());

    assert_eq!(
        failure_of(&server, one(&server.url("y.bin"), SHORT_RETRY)),
        ("/y.bin: there is no such object (graph.nodes)".into(), 3)
    );
    let (text, code) = failure_of(&server, one("http://127.0.0.1:1/x.bin", SHORT_RETRY));
    assert!(text.contains("no connection: Connection refused") && text.contains("(graph.retry)"), "{text}");
    assert_eq!(code, 5);
    let (text, code) = failure_of(&server, one(&server.url("dir/"), SHORT_RETRY));
    assert!(text.contains("give the URL of each file") && text.starts_with("graph.nodes: "), "{text}");
    assert_eq!(code, 2);
    let no_tls_server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let no_tls = format!("https://{}/x.bin", no_tls_server.local_addr().unwrap());
    std::thread::spawn(move || {
        // Connections stay open, so that none is reset before the response is read.
        let mut connections = Vec::new();
        for stream in no_tls_server.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
            connections.push(stream);
        }
    });
    let (text, code) = failure_of(&server, one(&no_tls, SHORT_RETRY));
    assert!(text.contains("TLS failed") && text.contains("certificates"), "{text}");
    assert_eq!(code, 5);

    server.faults(Faults { status: Some((u32::MAX, 403)), ..Faults::default() });
    let (text, code) = failure_of(&server, object());
    assert!(text.starts_with("/x.bin: access refused (status 403); http(s) is read without credentials"), "{text}");
    assert_eq!(code, 3);
    server.faults(Faults { status: Some((u32::MAX, 503)), ..Faults::default() });
    let (text, code) = failure_of(&server, object());
    assert!(text.starts_with("/x.bin: status 503; tried ") && text.contains(" times in 0."), "{text}");
    assert_eq!(code, 5);
    server.faults(Faults { status: Some((u32::MAX, 400)), ..Faults::default() });
    assert_eq!(failure_of(&server, object()), ("/x.bin: the server answered status 400".into(), 3));
    server.faults(Faults { whole: true, ..Faults::default() });
    let (text, code) = failure_of(&server, read());
    assert_eq!((text.as_str(), code), ("/x.bin: the server ignores the header Range; download the file", 3));
    server.faults(Faults { short: true, ..Faults::default() });
    let (text, _) = failure_of(&server, read());
    assert!(text.contains("Requested 10..900, got 10..899"), "{text}");
    server.faults(Faults { cut: Some((u32::MAX, 0)), ..Faults::default() });
    let (text, code) = failure_of(&server, read());
    assert!(text.starts_with("/x.bin: connection lost: ") && text.contains("times in"), "{text}");
    assert_eq!(code, 5);
    server.faults(Faults { silent: u32::MAX, ..Faults::default() });
    let begin = Instant::now();
    let (text, code) = failure_of(&server, read());
    assert!(text.starts_with("/x.bin: no answer in time; tried"), "{text}");
    assert_eq!(code, 5);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // A signed URL may permit GET only.
    server.faults(Faults { no_head: true, ..Faults::default() });
    read().unwrap();
}

#[test]
fn changed_object_is_detected_with_and_without_if_match_and_etags() {
    let server = Server::start();
    for faults in [
        Faults::default(),
        Faults { no_conditions: true, ..Faults::default() },
        Faults { no_conditions: true, no_tags: true, ..Faults::default() },
    ] {
        server.faults(faults);
        server.put("x.bin", noise(1000, 3));
        let object = one(&server.url("x.bin"), SHORT_RETRY).unwrap();
        wait(Arc::clone(&object).read(0..10)).unwrap();
        server.put("x.bin", noise(1000, 4));
        let (text, code) = failure_of(&server, wait(object.read(0..10)));
        assert!(text.starts_with("/x.bin: it changed while it was read"), "{text}");
        assert_eq!(code, 3);
    }
}

/// Returns a Parquet file of one row group with `node_id`, `columns` columns of incompressible numbers, and `name`.
fn wide(rows: usize, columns: usize, page: usize) -> Vec<u8> {
    let mut named: Vec<(String, ArrayRef)> =
        vec![("node_id".into(), Arc::new((0..rows as i64).collect::<Int64Array>()) as ArrayRef)];
    for column in 0..columns {
        let key = Key::new(column as u64, Purpose::GenerateEdges);
        let numbers: Float32Array = (0..rows as u64).map(|row| key.unit(row) as f32).collect();
        named.push((format!("x{column}"), Arc::new(numbers)));
    }
    let names: StringArray = (0..rows).map(|row| Some(format!("name {}", row % 97))).collect();
    named.push(("name".into(), Arc::new(names)));
    let batch = RecordBatch::try_from_iter(named).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows))
        .set_data_page_size_limit(page)
        .set_write_batch_size(1024)
        .set_compression(Compression::SNAPPY)
        .build();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

fn chunk_ranges(file: &DumpFile, columns: &[usize]) -> Vec<std::ops::Range<u64>> {
    let footer = DumpFile::metadata(std::slice::from_ref(file), "graph.nodes").unwrap().remove(0);
    let chunks = footer.metadata().row_group(0).columns();
    columns.iter().map(|&c| chunks[c].byte_range()).map(|(start, length)| start..start + length).collect()
}

#[test]
fn read_ahead_has_the_bytes_of_the_file_for_any_order_of_pages() {
    let server = Server::start();
    let bytes = Bytes::from(noise(400_000, 5));
    server.put("x.bin", bytes.to_vec());
    let object = one(&server.url("x.bin"), SHORT_RETRY).unwrap();
    let key = Key::new(6, Purpose::GenerateEdges);
    for (case, share) in [1u64, 20_000, 100_000, 10_000_000].into_iter().enumerate() {
        for ahead in [false, true] {
            let ranges = vec![250_000..399_000, 10..90_000, 90_000..90_001, 95_000..250_000];
            let group = RowGroup::begin(&object, ranges.clone(), share, ahead).unwrap();
            let mut at: Vec<u64> = ranges.iter().map(|range| range.start).collect();
            // Short segments need many requests, so this case has fewer steps.
            for step in 0..if share == 1 { 150 } else { 400 } {
                let (column, kind, length) = (
                    (key.unit(3 * step) * 4.0) as usize,
                    key.unit(3 * step + 1),
                    (key.unit(3 * step + 2) * 9000.0) as u64,
                );
                let start = match kind {
                    // Mostly sequential; sometimes back to the start, or some pages skipped.
                    k if k < 0.02 => ranges[column].start,
                    k if k < 0.1 => (at[column] + length * 7).min(ranges[column].end),
                    _ => at[column],
                };
                let end = (start + length).min(ranges[column].end);
                let got = group.get_bytes(start, (end - start) as usize).unwrap();
                assert!(got == bytes[start as usize..end as usize], "case {case}, step {step}: {start}..{end}");
                if start < ranges[column].end {
                    let mut byte = [0];
                    std::io::Read::read_exact(&mut group.get_read(start).unwrap(), &mut byte).unwrap();
                    assert_eq!(byte[0], bytes[start as usize]);
                }
                at[column] = end;
            }
            assert!(group.failure().is_none());
        }
    }
}

#[test]
fn only_the_requested_columns_of_a_row_group_are_fetched() {
    let server = Server::start();
    // 64 MiB: 838,861 rows of 20 columns of 4 bytes.
    let file = wide(838_861, 19, 1 << 20);
    assert!(file.len() > 60 << 20, "{}", file.len());
    server.put("n.parquet", file);
    let url = server.url("n.parquet");
    let mut source = GraphSource::new(&url, &url);
    source.columns.features = vec!["x15".into()];
    let wanted: u64 = chunk_ranges(&source.node_files().unwrap()[0], &[0, 16]).iter().map(|r| r.end - r.start).sum();
    let reader = NodeReader::open(&source).unwrap();
    let (mut rows, threads) = (0, rayon::current_num_threads() as u64);
    server.sent();
    server.requests();
    let count = |some| {
        rows += some;
        Ok(())
    };
    reader.for_each(|chunk| Ok(chunk.features.len()), count).unwrap();
    let (sent, requests) = (server.sent(), server.requests());
    println!("wanted {wanted} bytes, sent {sent} in {requests} requests");
    assert_eq!(rows, 838_861);
    assert_eq!(sent, wanted);
    assert!(requests <= 4 * threads.max(4), "{requests}");
}

#[test]
fn read_ahead_stays_within_its_bound() {
    let server = Server::start();
    let rows = 3_000_000;
    server.put("n.parquet", wide(rows, 5, 1 << 20));
    let url = server.url("n.parquet");
    let mut source = GraphSource::new(&url, &url);
    source.columns.features = (0..5).map(|i| format!("x{i}")).collect();
    let reader = NodeReader::open(&source).unwrap();
    let total: u64 =
        chunk_ranges(&source.node_files().unwrap()[0], &[0, 1, 2, 3, 4, 5]).iter().map(|r| r.end - r.start).sum();
    assert!(total > 2 * READ_AHEAD, "{total}");
    server.sent();
    let (mut first, mut sent, mut rows_read) = (true, 0, 0);
    reader
        .for_each(
            |chunk| Ok(chunk.features.len() / 5),
            |some| {
                // The reader waits until everything that can be read ahead has been sent.
                if std::mem::take(&mut first) {
                    std::thread::sleep(Duration::from_secs(1));
                    sent = server.sent();
                }
                rows_read += some;
                Ok(())
            },
        )
        .unwrap();
    println!("{sent} bytes sent of {total} while the first chunk waits");
    assert_eq!(rows_read, rows);
    assert!(sent <= READ_AHEAD, "{sent}");
    assert_eq!(sent + server.sent(), total);
}

fn settings(out: &Path) -> PrepareSettings {
    PrepareSettings { memory: 64 << 20, ..PrepareSettings::new(out, 3) }
}

/// Returns all files below `dir` except reports and the manifest.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    found.push((path.strip_prefix(dir).unwrap().display().to_string(), std::fs::read(&path).unwrap()))
                }
            }
        }
    }
    // JSON files have times, input names and speeds.
    found.retain(|(name, _)| !name.ends_with(".json"));
    found.sort();
    found
}

#[test]
fn dataset_of_a_remote_dump_equals_the_local_one_under_all_faults() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let graph = power_law(400, 3000, 9);
    let local = graph.dump(dir.path(), IdStyle::Text).unwrap();
    let mut remote = local.clone();
    for (role, files, urls) in [
        ("nodes", local.node_files().unwrap(), &mut remote.nodes),
        ("edges", local.edge_files().unwrap(), &mut remote.edges),
    ] {
        urls.clear();
        for file in files {
            let name = format!("{role}/{}", file.path().file_name().unwrap().display());
            server.put(&name, std::fs::read(file.path()).unwrap());
            urls.push(server.url(&name).into());
        }
    }
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    prepare(&local, &Modulo, &settings(&here), &Silent).unwrap();
    let cut = |length| Faults { cut: Some((12, length)), status: Some((2, 500)), ..Faults::default() };
    for faults in [Faults::default(), cut(0), cut(100), cut(5000)] {
        let _ = std::fs::remove_dir_all(&there);
        server.faults(faults);
        prepare(&remote, &Modulo, &settings(&there), &Silent).unwrap();
        assert!(contents(&here) == contents(&there));
        assert_eq!(Dataset::open(&there).unwrap().manifest().nodes, 400);
    }

    // A changed object makes the dataset stale; a changed `retry` does not.
    remote.retry = SHORT_RETRY;
    let dataset_state = || state(&there, &fingerprint(&remote, &Modulo, &settings(&there)).unwrap()).unwrap();
    assert!(matches!(dataset_state(), State::Current(_)));
    let name = remote.edges[0].to_str().unwrap().rsplit_once('/').unwrap().1;
    server.put(&format!("edges/{name}"), std::fs::read(local.edge_files().unwrap()[0].path()).unwrap());
    assert!(matches!(dataset_state(), State::Stale(why) if why.contains("http://") && why.ends_with("has changed")));
}

#[test]
fn invalid_or_changed_parquet_object_is_refused() {
    let server = Server::start();
    for bytes in [Vec::new(), vec![1; 5], noise(100_000, 8)] {
        server.put("n.parquet", bytes);
        let url = server.url("n.parquet");
        let (text, code) = failure_of(&server, NodeReader::open(&GraphSource::new(&url, &url)));
        assert!(text.starts_with("/n.parquet: not a complete Parquet file"), "{text}");
        assert_eq!(code, 3);
    }
    let file = wide(5000, 2, 4096);
    server.put("n.parquet", file.clone());
    let url = server.url("n.parquet");
    let mut source = GraphSource::new(&url, &url);
    source.columns.src = "node_id".into();
    source.columns.dst = "node_id".into();
    let reader = EdgeReader::open(&source, None).unwrap();
    server.put("n.parquet", file);
    let (text, code) = failure_of(&server, reader.for_each_pair(|chunk| Ok(chunk.src.len()), |_| Ok(())));
    assert_eq!(text, "/n.parquet: it changed while it was read; start again when it is no longer written");
    assert_eq!(code, 3);
}
