//! What a run would suffer from, in words.

use gnnflow_data::format::bytes;
use gnnflow_dataflow::links::Link;
use serde::Serialize;

use super::host::{Folder, Host};

/// Largest difference of a clock from that of rank 0, in seconds.
const CLOCK: f64 = 1.0;
/// Least available memory.
const MEMORY: u64 = 1 << 30;
/// Least free space of a folder's disk.
const DISK: u64 = 1 << 30;
/// Least limit on open files.
const OPEN_FILES: u64 = 1024;
/// Least bytes per second of a link between hosts: 100 Mbit/s.
const LEAST_RATE: f64 = 12.5e6;
/// A link has a finding if it is slower, or its round trip longer, than those of the best quarter of the links by this factor.
const FACTOR: f64 = 3.0;
/// Seconds by which a round trip with a finding is longer, at least.
const LONGER: f64 = 1e-3;

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// What was found, and where.
    pub(crate) text: String,
    /// What to do.
    pub(crate) advice: String,
}

/// Whether a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// A run would suffer from it.
    Problem,
    /// For information.
    Note,
}

/// A process, for findings.
pub(super) struct Facts<'a> {
    /// Its rank and address, for messages.
    pub(super) name: String,
    /// The number of its host.
    pub(super) number: usize,
    pub(super) host: &'a Host,
    pub(super) clock_seconds: f64,
    pub(super) clock_error_seconds: f64,
}

/// Returns all findings, problems first.
pub(super) fn findings(all: &[Facts<'_>], links: &[Link]) -> Vec<Finding> {
    let mut found: Vec<Finding> = all.iter().flat_map(of_host).collect();
    let between: Vec<&Link> = links.iter().filter(|link| all[link.from].number != all[link.to].number).collect();
    found.extend(slow_links(all, &between));
    found.extend(late_links(all, &between));
    found.extend(unequal_cores(all));
    found
}

fn problem(text: String, advice: &str) -> Finding {
    Finding { severity: Severity::Problem, text, advice: advice.into() }
}

fn of_host(facts: &Facts<'_>) -> Vec<Finding> {
    let Facts { name, host, clock_seconds, clock_error_seconds, .. } = facts;
    let mut found = Vec::new();
    if clock_seconds.abs() - clock_error_seconds > CLOCK {
        let side = if *clock_seconds > 0.0 { "ahead of" } else { "behind" };
        found.push(problem(
            format!("{name}: the clock is {:.1} s {side} that of rank 0", clock_seconds.abs()),
            "synchronize the clocks of all hosts, with chrony or systemd-timesyncd",
        ));
    }
    match host.available_memory_bytes {
        Some(memory) if memory < MEMORY => found.push(problem(
            format!("{name}: only {} of memory are available", bytes(memory)),
            "end other programs on that host, or raise the memory limit of the job",
        )),
        _ => {}
    }
    let folders = [(&host.temporary_folder, "TMPDIR"), (&host.current_folder, "the current folder")];
    found.extend(folders.into_iter().filter_map(|(folder, setting)| of_folder(name, folder, setting)));
    match host.open_files {
        Some(limit) if limit < OPEN_FILES => found.push(problem(
            format!("{name}: a process may have only {limit} open files"),
            "raise the limit to 1024 or more: `ulimit -n 4096` before the start, or LimitNOFILE of the service",
        )),
        _ => {}
    }
    found
}

fn of_folder(name: &str, folder: &Folder, setting: &str) -> Option<Finding> {
    let path = folder.path.display();
    match folder.free_bytes {
        None => Some(problem(
            format!("{name}: {path} ({setting}) is not a folder that can be used"),
            "create the folder, or start the process with another one",
        )),
        Some(free) if free < DISK => Some(problem(
            format!("{name}: the disk of {path} ({setting}) has only {} left", bytes(free)),
            "delete files there, or start the process with a folder on another disk",
        )),
        Some(_) => None,
    }
}

/// Returns findings on links that carry little. If all links of a rank in one direction do, they are one finding.
fn slow_links(all: &[Facts<'_>], links: &[&Link]) -> Vec<Finding> {
    let rate = |link: &&Link| link.bytes_per_second;
    let usual = quartile(links.iter().map(|link| -rate(link))).map_or(0.0, |rate| -rate);
    let limit = (usual / FACTOR).max(LEAST_RATE);
    let is_slow = |link: &&&Link| rate(link) < limit;
    let mut slow: Vec<&Link> = links.iter().filter(is_slow).copied().collect();
    let advice =
        "compare the speed of the network adapters (`ethtool`), and check cables, switch and other traffic there";
    let expected =
        if usual > limit { format!("; a quarter of the links reach {}", megabytes(usual)) } else { String::new() };
    let mut found = Vec::new();
    type End = fn(&Link) -> usize;
    let ends: [(&str, End); 2] = [("all links from", |link| link.from), ("all links to", |link| link.to)];
    for (what, end) in ends {
        for (rank, facts) in all.iter().enumerate() {
            let count = links.iter().filter(|link| end(link) == rank).count();
            let of_rank: Vec<f64> = slow.iter().filter(|link| end(link) == rank).map(rate).collect();
            if count > 1 && of_rank.len() == count {
                let best = of_rank.into_iter().fold(0.0, f64::max);
                let text = format!("{what} {}: at most {}{expected}", facts.name, megabytes(best));
                found.push(problem(text, advice));
                slow.retain(|link| end(link) != rank);
            }
        }
    }
    let single = slow.iter().map(|link| {
        let (from, to) = (&all[link.from].name, &all[link.to].name);
        problem(format!("{from} to {to}: {}{expected}", megabytes(link.bytes_per_second)), advice)
    });
    found.extend(single);
    found
}

/// Returns findings on round trips that take long. Both directions of a link are one finding.
fn late_links(all: &[Facts<'_>], links: &[&Link]) -> Vec<Finding> {
    let Some(usual) = quartile(links.iter().map(|link| link.round_trip_seconds)) else { return Vec::new() };
    let limit = (usual * FACTOR).max(usual + LONGER);
    let back = |link: &Link| links.iter().find(|other| (other.from, other.to) == (link.to, link.from)).copied();
    let shortest = |link: &Link| {
        back(link).map_or(link.round_trip_seconds, |back| link.round_trip_seconds.min(back.round_trip_seconds))
    };
    let late = links.iter().filter(|link| link.from < link.to && shortest(link) > limit);
    late.map(|link| {
        let (from, to) = (&all[link.from].name, &all[link.to].name);
        problem(
            format!(
                "{from} and {to}: a round trip takes {:.2} ms; a quarter of the links need at most {:.2} ms",
                shortest(link) * 1e3,
                usual * 1e3
            ),
            "use hosts in one data center and one network, and end other programs that use all cores of these hosts",
        )
    })
    .collect()
}

/// Returns a note if hosts have different numbers of cores.
fn unequal_cores(all: &[Facts<'_>]) -> Option<Finding> {
    let fewest = all.iter().min_by_key(|facts| facts.host.cores)?;
    let most = all.iter().max_by_key(|facts| facts.host.cores)?;
    (fewest.host.cores < most.host.cores).then(|| Finding {
        severity: Severity::Note,
        text: format!("{} has {} cores, {} has {}", fewest.name, fewest.host.cores, most.name, most.host.cores),
        advice: "the others wait for the slowest process, unless training is asynchronous".into(),
    })
}

/// Returns the value that a quarter of all values do not exceed.
fn quartile(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().div_ceil(4).saturating_sub(1)).copied()
}

fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.1} MB/s", bytes_per_second / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        let folder = |path: &str| Folder { path: path.into(), free_bytes: Some(1 << 40) };
        Host {
            host_name: "h".into(),
            cores: 8,
            available_memory_bytes: Some(1 << 36),
            temporary_folder: folder("/tmp"),
            current_folder: folder("/home/u"),
            open_files: Some(4096),
        }
    }

    fn facts(number: usize, host: &Host) -> Facts<'_> {
        Facts { name: format!("rank {number}"), number, host, clock_seconds: 0.0, clock_error_seconds: 1e-4 }
    }

    /// Links of 1 GB/s with round trips of 0.1 ms, changed by `change`.
    fn links(count: usize, change: impl Fn(&mut Link)) -> Vec<Link> {
        let ends = (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
        ends.map(|(from, to)| {
            let mut link = Link {
                from,
                to,
                round_trip_seconds: 1e-4,
                bytes_per_second: 1e9,
                clock_seconds: 0.0,
                clock_error_seconds: 0.0,
            };
            change(&mut link);
            link
        })
        .collect()
    }

    fn texts(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.text.as_str()).collect()
    }

    #[test]
    fn fit_hosts_have_no_findings() {
        let host = host();
        for count in 1..4 {
            let all: Vec<_> = (0..count).map(|number| facts(number, &host)).collect();
            assert_eq!(findings(&all, &links(count, |_| ())), []);
        }
    }

    #[test]
    fn each_shortage_of_a_host_is_a_problem() {
        let fit = host();
        type Change = (fn(&mut Host), &'static str);
        let changes: [Change; 6] = [
            (|host| host.available_memory_bytes = Some(200 << 20), "rank 1: only 200 MiB of memory"),
            (
                |host| host.temporary_folder.free_bytes = Some(5 << 20),
                "rank 1: the disk of /tmp (TMPDIR) has only 5.0 MiB",
            ),
            (|host| host.current_folder.free_bytes = Some(0), "rank 1: the disk of /home/u (the current folder)"),
            (|host| host.temporary_folder.free_bytes = None, "rank 1: /tmp (TMPDIR) is not a folder"),
            (|host| host.open_files = Some(256), "rank 1: a process may have only 256 open files"),
            (|host| host.available_memory_bytes = None, ""),
        ];
        for (change, text) in changes {
            let mut host = host();
            change(&mut host);
            let found = findings(&[facts(0, &fit), facts(1, &host)], &links(2, |_| ()));
            assert_eq!(found.len(), usize::from(!text.is_empty()), "{found:?}");
            assert!(
                found.iter().all(|finding| finding.severity == Severity::Problem && finding.text.starts_with(text))
            );
        }
        for (clock, words) in [(3.5, Some("3.5 s ahead of")), (-2.0, Some("2.0 s behind")), (0.9, None)] {
            let late = Facts { clock_seconds: clock, ..facts(1, &fit) };
            let found = findings(&[facts(0, &fit), late], &links(2, |_| ()));
            assert_eq!(found.len(), usize::from(words.is_some()));
            assert!(words.is_none_or(|words| found[0].text.contains(words)), "{found:?}");
        }
        let uncertain = Facts { clock_seconds: 1.2, clock_error_seconds: 0.3, ..facts(1, &fit) };
        assert_eq!(findings(&[facts(0, &fit), uncertain], &links(2, |_| ())), []);
        let small = Host { cores: 2, ..host() };
        let found = findings(&[facts(0, &fit), facts(1, &small)], &links(2, |_| ()));
        assert!(found.len() == 1 && found[0].severity == Severity::Note, "{found:?}");
    }

    #[test]
    fn slow_and_late_links_are_problems() {
        let host = host();
        let all: Vec<_> = (0..3).map(|number| facts(number, &host)).collect();
        let one = links(3, |link| {
            if (link.from, link.to) == (1, 2) {
                link.bytes_per_second = 2e8;
            }
        });
        let found = findings(&all, &one);
        assert_eq!(texts(&found), ["rank 1 to rank 2: 200.0 MB/s; a quarter of the links reach 1000.0 MB/s"]);
        // Two thirds of the links are slow.
        let adapter = links(3, |link| {
            if link.from == 2 || link.to == 2 {
                link.bytes_per_second = 1e8;
            }
        });
        let found = findings(&all, &adapter);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(texts(&found)[0].starts_with("all links from rank 2: at most 100.0 MB/s"), "{found:?}");
        assert!(texts(&found)[1].starts_with("all links to rank 2: "), "{found:?}");
        let all_slow = findings(&all[..2], &links(2, |link| link.bytes_per_second = 1e7));
        assert_eq!(texts(&all_slow), ["rank 0 to rank 1: 10.0 MB/s", "rank 1 to rank 0: 10.0 MB/s"]);

        let late = |seconds: f64| {
            links(3, move |link| {
                if link.from + link.to == 1 {
                    link.round_trip_seconds = seconds;
                }
            })
        };
        let found = findings(&all, &late(5e-3));
        assert!(found.len() == 1 && found[0].text.starts_with("rank 0 and rank 1: a round trip takes 5.00 ms"));
        assert_eq!(findings(&all, &late(1e-3)), []);
        // A network cannot be compared with the memory of one host.
        let on_one_host = [facts(0, &host), facts(0, &host), facts(1, &host)];
        assert_eq!(findings(&on_one_host, &late(5e-3)), []);
    }
}
