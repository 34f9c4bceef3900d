//! The hosts file, and the rank and size of this process.
//!
//! A hosts file has one `host:port` per line. The number of the entry, from 0, is the rank. `#` starts a comment. All processes read the
//! same file. The rank comes from `--rank` or from a launcher's variable.

use std::collections::HashMap;
use std::path::Path;

use super::ClusterError;

/// The variables of a launcher or batch system.
struct Variables {
    rank: &'static str,
    /// `None` if there is none. Such processes may as well be independent of each other, so without a hosts file the rank has no meaning.
    size: Option<&'static str>,
}

/// Launchers, by precedence.
const LAUNCHERS: [Variables; 6] = [
    Variables { rank: "GNNFLOW_RANK", size: Some("GNNFLOW_SIZE") },
    Variables { rank: "OMPI_COMM_WORLD_RANK", size: Some("OMPI_COMM_WORLD_SIZE") },
    Variables { rank: "PMI_RANK", size: Some("PMI_SIZE") },
    Variables { rank: "SLURM_PROCID", size: Some("SLURM_NTASKS") },
    Variables { rank: "RANK", size: Some("WORLD_SIZE") },
    // An indexed job of Kubernetes.
    Variables { rank: "JOB_COMPLETION_INDEX", size: None },
];

/// Rank and size of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankAssignment {
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
}

/// Reads a hosts file into the addresses of all ranks, in rank order.
///
/// # Errors
/// [`ClusterError::Hosts`] with the line, for a file that cannot be read, an entry without port, a port outside 1..=65535,
/// a repeated address, or a file without entries.
pub fn read_hosts(path: &Path) -> Result<Vec<String>, ClusterError> {
    let text = std::fs::read_to_string(path).map_err(|e| ClusterError::Hosts {
        path: path.to_path_buf(),
        line: 0,
        problem: format!("cannot read the hosts file: {e}"),
    })?;
    parse_hosts(&text).map_err(|(line, problem)| ClusterError::Hosts { path: path.to_path_buf(), line, problem })
}

/// Parses a hosts file. An error is a line and a problem.
pub(super) fn parse_hosts(text: &str) -> Result<Vec<String>, (usize, String)> {
    let mut addresses = Vec::new();
    let mut first_seen: HashMap<String, usize> = HashMap::new();
    for (line, entry) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        check_address(entry).map_err(|problem| (line, problem))?;
        if let Some(before) = first_seen.insert(entry.to_string(), line) {
            return Err((line, format!("`{entry}` is already in line {before}; every rank needs its own address")));
        }
        addresses.push(entry.to_string());
    }
    if addresses.is_empty() {
        return Err((0, "no host:port in the hosts file; write one line per process".to_string()));
    }
    Ok(addresses)
}

/// Checks that an entry is `host:port` or `[v6]:port` with a valid port.
pub(super) fn check_address(entry: &str) -> Result<(), String> {
    let Some((host, port)) = entry.rsplit_once(':') else {
        return Err(format!("`{entry}` has no port; write host:port"));
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(format!("`{entry}` has no usable host; write host:port"));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(format!("`{entry}`: write an IPv6 address in brackets, [address]:port"));
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("`{entry}`: `{port}` is not a port (1 to 65535)")),
    }
}

/// Returns, by rank, the number of the process's host, from `host:port` addresses. Processes with equal host names or IP addresses are on
/// one host.
///
/// ```
/// use gnnflow::cluster::host_numbers;
///
/// let addresses = ["node1:7000", "node2:7000", "node1:7001"].map(String::from);
/// assert_eq!(host_numbers(&addresses), [0, 1, 0]);
/// ```
pub fn host_numbers(addresses: &[String]) -> Vec<usize> {
    let name = |address: &String| address.rsplit_once(':').map_or(address.clone(), |(host, _)| host.to_owned());
    let mut names: Vec<String> = Vec::new();
    let number = |name: String| {
        names.iter().position(|seen| *seen == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        })
    };
    addresses.iter().map(name).map(number).collect()
}

/// Returns rank and size of this process.
///
/// `rank` is the command line's `--rank`; `hosts` the number of entries in the hosts file, if there is one; `environment`
/// looks a variable up (`|name| std::env::var(name).ok()`). Returns `None` for a single process.
///
/// # Errors
/// [`ClusterError::Usage`] for a value that is not a number, a rank beyond the size, different sizes, or a hosts file without a rank.
///
/// ```
/// use gnnflow::cluster::{RankAssignment, rank_assignment};
///
/// let slurm = |name: &str| match name { "SLURM_PROCID" => Some("1".into()), "SLURM_NTASKS" => Some("4".into()), _ => None };
/// assert_eq!(rank_assignment(None, Some(4), slurm).unwrap(), Some(RankAssignment { rank: 1, size: 4 }));
/// assert!(rank_assignment(Some(4), Some(4), |_| None).is_err());
/// assert_eq!(rank_assignment(None, None, |_| None).unwrap(), None);
/// ```
pub fn rank_assignment(
    rank: Option<usize>,
    hosts: Option<usize>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<RankAssignment>, ClusterError> {
    let number = |name: &str| -> Result<Option<usize>, ClusterError> {
        environment(name)
            .map(|text| {
                text.trim()
                    .parse()
                    .map_err(|_| ClusterError::Usage(format!("environment variable {name} = `{text}` is not a number")))
            })
            .transpose()
    };
    // `--rank` has no size; a launcher's rank comes with the same launcher's size.
    let mut found = (rank, "--rank", None, "");
    if rank.is_none() {
        for Variables { rank: rank_name, size } in LAUNCHERS.iter().filter(|of| of.size.is_some() || hosts.is_some()) {
            if let Some(rank) = number(rank_name)? {
                let size_name = size.unwrap_or_default();
                found = (Some(rank), rank_name, size.map_or(Ok(None), number)?, size_name);
                break;
            }
        }
    }
    match (found, hosts) {
        ((None, ..), None) => Ok(None),
        ((None, ..), Some(hosts)) => Err(ClusterError::Usage(format!(
            "the hosts file has {hosts} entries, but the rank of this process is unknown; give --rank, or use a \
             launcher that sets one of {}",
            LAUNCHERS.map(|of| of.rank).join(", ")
        ))),
        ((Some(_), _, Some(size), size_name), Some(hosts)) if size != hosts => Err(ClusterError::Usage(format!(
            "the hosts file has {hosts} entries, but {size_name} = {size}; start as many processes as there are entries"
        ))),
        ((Some(_), "--rank", ..), None) => {
            Err(ClusterError::Usage("--rank needs the addresses of all ranks; give --hosts FILE".into()))
        }
        // The script of a batch job has rank 0; without a hosts file it is a single process.
        ((Some(0), ..), None) => Ok(None),
        ((Some(rank), rank_name, ..), None) => Err(ClusterError::Usage(format!(
            "{rank_name} = {rank}: one of several processes needs the addresses of all; give --hosts FILE"
        ))),
        ((Some(rank), rank_name, ..), Some(size)) if rank >= size => Err(ClusterError::Usage(format!(
            "rank {rank} (from {rank_name}) does not exist among {size} processes; ranks begin at 0"
        ))),
        ((Some(rank), ..), Some(size)) => Ok(Some(RankAssignment { rank, size })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_entry_numbers_without_comments() {
        let hosts = parse_hosts("# cluster\n a:7000\n\nb.example:7001 # the big one\n[::1]:7002\n").unwrap();
        assert_eq!(hosts, ["a:7000", "b.example:7001", "[::1]:7002"]);
    }

    #[test]
    fn invalid_lines_are_named() {
        for (text, line, word) in [
            ("a:1\nb\n", 2, "no port"),
            ("a:0\n", 1, "not a port"),
            ("a:70000\n", 1, "not a port"),
            (":80\n", 1, "host"),
            ("::1:80\n", 1, "brackets"),
            ("a:1\n#\na:1\n", 3, "line 1"),
            ("# nothing\n", 0, "no host:port"),
        ] {
            let (at, problem) = parse_hosts(text).unwrap_err();
            assert_eq!(at, line, "{text:?}");
            assert!(problem.contains(word), "{problem}");
        }
        let error = read_hosts(Path::new("/nonexistent/hosts.txt")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/hosts.txt: cannot read"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    fn environment(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn rank_and_size_come_from_launcher_variables() {
        for pairs in [
            &[("GNNFLOW_RANK", "1"), ("GNNFLOW_SIZE", "3")][..],
            &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")],
            &[("PMI_RANK", "1"), ("PMI_SIZE", "3")],
            &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "3")],
            &[("RANK", "1"), ("WORLD_SIZE", "3")],
        ] {
            let look = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
            assert_eq!(rank_assignment(None, Some(3), look).unwrap(), Some(RankAssignment { rank: 1, size: 3 }));
            assert!(rank_assignment(None, Some(2), look).unwrap_err().to_string().contains("2 entries"));
        }
    }

    #[test]
    fn command_line_takes_precedence_and_invalid_values_are_errors() {
        let slurm = environment(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "3")]);
        assert_eq!(rank_assignment(Some(2), Some(3), slurm).unwrap(), Some(RankAssignment { rank: 2, size: 3 }));
        assert!(rank_assignment(None, Some(2), |_| None).unwrap_err().to_string().contains("--rank"));
        assert!(rank_assignment(Some(0), None, |_| None).unwrap_err().to_string().contains("--hosts"));
        let batch = environment(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "3")]);
        assert_eq!(rank_assignment(None, None, batch).unwrap(), None);
        let one_of_many = environment(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "3")]);
        assert!(rank_assignment(None, None, one_of_many).unwrap_err().to_string().contains("--hosts"));
        let index = || environment(&[("JOB_COMPLETION_INDEX", "2")]);
        assert_eq!(rank_assignment(None, Some(3), index()).unwrap(), Some(RankAssignment { rank: 2, size: 3 }));
        assert_eq!(rank_assignment(None, None, index()).unwrap(), None, "the processes may be independent");
        let missing = rank_assignment(None, Some(2), index()).unwrap_err().to_string();
        assert!(missing.contains("rank 2 (from JOB_COMPLETION_INDEX) does not exist"), "{missing}");
        let junk = environment(&[("RANK", "one")]);
        assert!(rank_assignment(None, Some(2), junk).unwrap_err().to_string().contains("RANK"));
    }
}
