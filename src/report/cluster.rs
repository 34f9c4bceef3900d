//! The text of a check of several hosts.

use std::collections::BTreeSet;
use std::fmt::Write;

use comfy_table::Table;
use gnnflow_dataflow::links::Link;

use super::table::{empty, numbers_right};
use super::{bytes, plural};
use crate::check_cluster::{CheckedHost, ClusterReport, Severity};

/// Most links that are shown: the slowest ones.
const LINKS: usize = 40;

/// Returns the report as text: a table of processes, a table of links, and the findings.
pub(crate) fn cluster_text(report: &ClusterReport) -> String {
    let ClusterReport { build, encrypted, hosts, links, findings } = report;
    let names: BTreeSet<&str> = hosts.iter().map(|checked| checked.host.host_name.as_str()).collect();
    let (processes, machines) = (plural(hosts.len(), "process"), plural(names.len(), "host name"));
    let how = match (links.is_empty(), encrypted) {
        (true, _) => "",
        (false, true) => "; connections are encrypted",
        (false, false) => "; connections are plain",
    };
    let mut text = format!("gnnflow {build}: {processes}, {machines}{how}\n{}\n", host_table(hosts));
    if !links.is_empty() {
        let _ = writeln!(text, "{}", link_table(links));
        if links.len() > LINKS {
            let _ = writeln!(text, "the {LINKS} slowest of {} links; `--json` prints all", links.len());
        }
    }
    for finding in findings {
        let kind = match finding.severity {
            Severity::Problem => "problem",
            Severity::Note => "note",
        };
        let _ = writeln!(text, "{kind}: {}; {}", finding.text, finding.advice);
    }
    if report.is_fit() {
        text.push_str("no problem was found\n");
    }
    text
}

fn host_table(hosts: &[CheckedHost]) -> Table {
    let header = ["rank", "address", "host", "cores", "memory", "TMPDIR", "current folder", "open files", "clock"];
    let mut table = empty(&header);
    let amount = |amount: Option<u64>| amount.map_or_else(|| "?".into(), bytes);
    for CheckedHost { rank, address, host, clock_seconds, clock_error_seconds } in hosts {
        let clock = match rank {
            0 => "0".into(),
            // Rounded first, so that no zero has a minus sign.
            _ => format!("{:+.1} ± {:.1} ms", (clock_seconds * 1e4).round() / 10.0 + 0.0, clock_error_seconds * 1e3),
        };
        table.add_row([
            rank.to_string(),
            address.clone(),
            host.host_name.clone(),
            host.cores.to_string(),
            amount(host.available_memory_bytes),
            amount(host.temporary_folder.free_bytes),
            amount(host.current_folder.free_bytes),
            host.open_files.map_or_else(|| "no limit".into(), |limit| limit.to_string()),
            clock,
        ]);
    }
    table
}

fn link_table(links: &[Link]) -> Table {
    let mut shown: Vec<&Link> = links.iter().collect();
    if links.len() > LINKS {
        shown.sort_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
        shown.truncate(LINKS);
    }
    let mut table = empty(&["link", "round trip", "bandwidth"]);
    for link in shown {
        table.add_row([
            format!("{} → {}", link.from, link.to),
            format!("{:.3} ms", link.round_trip_seconds * 1e3),
            format!("{:.1} MB/s", link.bytes_per_second / 1e6),
        ]);
    }
    numbers_right(table)
}
