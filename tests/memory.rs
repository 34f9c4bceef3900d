//! The memory of a long run does not grow.

use std::time::Duration;

use crate::common::{TestDir, children, planted};

/// Returns the resident bytes of a process, or `None` if it has ended.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the minimum resident bytes of each process in the epochs 200 to 1,000 and 1,200 to 2,000 of a run of 10,000 steps.
/// Minima over many samples leave out the peaks of the allocator, which returns memory after a second.
fn resident_in_halves(train: &str, processes: &str) -> Vec<[u64; 2]> {
    let place = TestDir::new();
    // 450 training nodes in 4 partitions: 5 steps an epoch.
    let settings = format!(
        "[model]\nkind = 'sage'\nhidden = 16\n[train]\nbatch = 25\nfanouts = [5, 5]\nepochs = 2000\nevaluate_every = 0\n\
         checkpoint_every = 500\nthreads = 1\n{train}"
    );
    planted(&place, "p.toml", &settings);
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    let fetched = "partition.features=partitioned";
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes, "--set", fetched];
    let mut parent = place.command(&args).spawn().unwrap();
    let mut samples: Vec<(usize, Vec<u64>)> = Vec::new();
    let status = loop {
        if let Some(status) = parent.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
        let workers = if processes == "1" { vec![parent.id()] } else { children(parent.id()) };
        let epochs = std::fs::read_to_string(place.path("run/metrics.jsonl")).map_or(0, |text| text.lines().count());
        samples.push((epochs, workers.into_iter().filter_map(resident).collect()));
    };
    assert!(status.success());
    let count = processes.parse::<usize>().unwrap();
    let least = |rank: usize, epochs: std::ops::Range<usize>| {
        let inside = samples.iter().filter(|(epoch, all)| epochs.contains(epoch) && all.len() == count);
        inside.map(|(_, all)| all[rank]).min().expect("every half of the run has a sample")
    };
    (0..count).map(|rank| [least(rank, 200..1000), least(rank, 1200..2000)]).collect()
}

fn assert_flat(train: &str, processes: &str) {
    for [early, late] in resident_in_halves(train, processes) {
        // The records of an epoch (seconds, a line of metrics) take some hundred bytes; 1,000 epochs are in between.
        let grown = late.saturating_sub(early);
        assert!(grown < (10 << 20) / 3, "{processes} processes, {train}: {early} bytes grew to {late}");
        println!("{processes} processes, {train:?}: {early} bytes, then {late}");
    }
}

#[test]
fn memory_of_one_process_is_flat_over_10000_steps() {
    assert_flat("", "1");
}

#[test]
fn memory_of_two_processes_with_a_cache_is_flat_over_10000_steps() {
    assert_flat("schedule.cache = '16KiB'\nschedule.cache_policy = 'dynamic'\n", "2");
}

#[test]
fn memory_of_partition_parallel_training_is_flat_over_10000_steps() {
    assert_flat("schedule = 'partition-parallel'\n", "2");
}
