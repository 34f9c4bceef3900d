//! The memory of a long run does not grow.

use std::time::Duration;

use crate::common::{TestDir, children, planted};

/// Returns the resident bytes of a process, or `None` if it has ended.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

/// Number of processes.
const PROCESSES: usize = 2;

/// Returns the minimum resident bytes of each process in the two halves of a run of some epochs of 5 steps, without the first tenth of the run
/// and of its second half. Minima over many samples leave out the peaks of the allocator, which returns memory after a second.
fn resident_in_halves(train: &str, epochs: usize) -> Vec<[u64; 2]> {
    let place = TestDir::new();
    // 450 training nodes in 4 partitions: 5 steps an epoch.
    let settings = format!(
        "[model]\nkind = 'sage'\nhidden = 16\n[train]\nbatch = 25\nfanouts = [5, 5]\nepochs = {epochs}\nevaluate_every = 0\n\
         checkpoint_every = 500\nthreads = 1\n{train}"
    );
    planted(&place, "p.toml", &settings);
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    let fetched = "partition.features=partitioned";
    let processes = PROCESSES.to_string();
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", &processes, "--set", fetched];
    let mut parent = place.command(&args).spawn().unwrap();
    let mut samples: Vec<(usize, Vec<u64>)> = Vec::new();
    let status = loop {
        if let Some(status) = parent.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
        let done = std::fs::read_to_string(place.path("run/metrics.jsonl")).map_or(0, |text| text.lines().count());
        samples.push((done, children(parent.id()).into_iter().filter_map(resident).collect()));
    };
    assert!(status.success());
    let (tenth, half) = (epochs / 10, epochs / 2);
    let least = |rank: usize, epochs: std::ops::Range<usize>| {
        let inside = samples.iter().filter(|(epoch, all)| epochs.contains(epoch) && all.len() == PROCESSES);
        inside.map(|(_, all)| all[rank]).min().expect("every half of the run has a sample")
    };
    (0..PROCESSES).map(|rank| [least(rank, tenth..half), least(rank, half + tenth..epochs)]).collect()
}

fn assert_flat(train: &str, epochs: usize) {
    for [early, late] in resident_in_halves(train, epochs) {
        // 3.5 kB for each epoch between the halves. Its records (seconds, a line of metrics) take some hundred bytes.
        let grown = late.saturating_sub(early);
        assert!(grown < (1 << 20) * epochs as u64 / 600, "{train}: {early} bytes grew to {late}");
        println!("{train:?}: {early} bytes, then {late}");
    }
}

#[test]
fn memory_of_batches_with_a_cache_is_flat_over_10000_steps() {
    assert_flat("schedule.cache = '16KiB'\nschedule.cache_policy = 'dynamic'\n", 2000);
}

#[test]
fn memory_of_partition_parallel_training_is_flat_over_5000_steps() {
    assert_flat("schedule = 'partition-parallel'\n", 1000);
}
