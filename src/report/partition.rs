//! Reports of the quality of a partition: a table on the terminal, and a page with a heat map of halo nodes.

use std::fmt::Write;
use std::path::Path;

use gnnflow_data::fs::replace;
use gnnflow_data::prepare::{PassRecord, Quality};
use gnnflow_pipelines::Error;

use super::heat_map::heat_map;
use super::page::{begin, escape};
use super::{bytes, count, counted, plural, seconds};

/// Name of the page in a dataset's folder.
const FILE: &str = "partition.html";
/// Maximum number of partitions with a heat map.
const MAX_DRAWN: usize = 256;

/// Returns the report as text for a terminal.
pub fn partition_table(quality: &Quality) -> String {
    let mut text = String::new();
    for (name, value) in rows(quality) {
        let _ = writeln!(text, "{name:<24}{value}");
    }
    let _ = writeln!(text, "{:<24}{:>10}  {:>14}", "pass", "time", "rate");
    for pass in nonempty_passes(&quality.passes) {
        let _ = writeln!(text, "  {:<22}{:>10}  {:>14}", pass.name, seconds(pass.seconds), rate(pass));
    }
    text
}

/// Writes the report as a page into the dataset's folder.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_partition(dataset: &Path, quality: &Quality) -> Result<(), Error> {
    let mut page =
        begin("partition", &format!("{} by {}", plural(quality.parts as usize, "partition"), quality.method));
    partition_section(&mut page, quality);
    page.push_str("</body></html>\n");
    let path = dataset.join(FILE);
    replace(&path, page.as_bytes()).map_err(Error::io("write", &path))
}

/// Appends table, heat map and passes as HTML.
pub(super) fn partition_section(page: &mut String, quality: &Quality) {
    page.push_str("<table>\n");
    for (name, value) in rows(quality) {
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&value));
    }
    page.push_str("</table>\n");
    if (2..=MAX_DRAWN).contains(&quality.halo.len()) {
        let _ = writeln!(
            page,
            "<h2>Halo</h2>\n<p>Number of nodes of a partition (column) with edges to another partition (row), which reads \
             their features in training.</p>\n{}",
            heat_map(&quality.halo)
        );
    }
    page.push_str("<h2>Passes</h2>\n<table><tr><th>pass</th><th>time</th><th>rate</th></tr>\n");
    for pass in nonempty_passes(&quality.passes) {
        let (name, time) = (escape(&pass.name), seconds(pass.seconds));
        let _ = writeln!(page, "<tr><td>{name}</td><td>{time}</td><td>{}</td></tr>", rate(pass));
    }
    page.push_str("</table>\n");
}

/// Returns the passes that took time or processed items.
fn nonempty_passes(passes: &[PassRecord]) -> impl Iterator<Item = &PassRecord> {
    passes.iter().filter(|pass| pass.items > 0 || pass.seconds >= 0.01)
}

fn rate(pass: &PassRecord) -> String {
    if pass.items == 0 {
        return String::new();
    }
    format!("{} {}/s", count(pass.rate().round() as u64), pass.unit)
}

fn rows(quality: &Quality) -> Vec<(&'static str, String)> {
    let balance = &quality.balance;
    let halo: u64 = quality.halo.iter().flatten().sum();
    let has_train = balance.train > 0.0;
    let train = if has_train { format!("train {:.3}, ", balance.train) } else { String::new() };
    let mut rows = vec![
        ("edge cut", format!("{:.4}", quality.edge_cut)),
        ("replication factor", format!("{:.3}", quality.replication_factor)),
        (
            "balance",
            format!(
                "nodes {:.3}, edges {:.3}, {train}with halo {:.3} (largest over mean)",
                balance.nodes, balance.edges, balance.features
            ),
        ),
    ];
    if has_train {
        rows.push(("remote seeds", format!("{:.2}% of the train nodes", 100.0 * quality.remote_seed_share)));
    }
    if !quality.halo.is_empty() {
        rows.push(("halo nodes", count(halo)));
    }
    let degrees = &quality.in_degrees;
    let none = if degrees.none > 0 { format!(", 0 at {}", counted(degrees.none, "node")) } else { String::new() };
    let [median, p99, max] = [degrees.median, degrees.p99, degrees.max].map(count);
    rows.push(("in-degree", format!("median {median}, 99th percentile {p99}, maximum {max}{none}")));
    rows.extend(cleaned(quality));
    rows.push((
        "time",
        format!("{}, of which the method {}", seconds(quality.seconds), seconds(quality.partition_seconds)),
    ));
    if quality.peak_rss_bytes > 0 {
        let (peak, method) = (bytes(quality.peak_rss_bytes), bytes(quality.partition_bytes));
        rows.push(("peak memory", format!("{peak}; the method used {method}")));
    }
    rows
}

/// Returns the differences between dataset and dump.
fn cleaned(quality: &Quality) -> Vec<(&'static str, String)> {
    let cleaning = &quality.cleaning;
    let list = |all: &[(u64, &str)]| {
        let some = all.iter().filter(|(number, _)| *number > 0);
        some.map(|(number, what)| format!("{} {what}", count(*number))).collect::<Vec<_>>().join(", ")
    };
    let edges = list(&[
        (quality.duplicates_dropped, "duplicates"),
        (quality.unknown_dropped, "rows with unknown nodes"),
        (cleaning.edges_dropped, "rows of dropped nodes"),
    ]);
    let nodes = list(&[
        (cleaning.outside_core, "outside the core"),
        (cleaning.outside_component, "outside the largest component"),
        (cleaning.isolated_dropped, "isolated"),
    ]);
    let created = list(&[(cleaning.nodes_created, "that occur in edges only")]);
    let components = match (cleaning.components, cleaning.largest_component) {
        (Some(all), Some(largest)) => format!("{}, the largest has {}", count(all), counted(largest, "node")),
        _ => String::new(),
    };
    let isolated = cleaning.isolated.map(count).unwrap_or_default();
    let loops = list(&[(quality.self_loops, "")]).trim_end().to_string();
    [
        ("nodes created", created),
        ("nodes dropped", nodes),
        ("components", components),
        ("isolated nodes", isolated),
        ("edges dropped", edges),
        ("self-loops", loops),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::dataset::Cleaning;
    use gnnflow_data::prepare::{Balance, InDegrees};

    fn quality() -> Quality {
        let pass = |name: &str, items| PassRecord { name: name.into(), seconds: 0.5, items, unit: "edges".into() };
        Quality {
            method: "a<b".into(),
            parts: 3,
            edge_cut: 0.25,
            replication_factor: 1.5,
            balance: Balance { nodes: 1.0, edges: 1.1, train: 1.2, features: 1.3 },
            remote_seed_share: 0.125,
            in_degrees: InDegrees { min: 0, median: 3, p99: 40, max: 5000, none: 7 },
            cleaning: Cleaning {
                nodes_created: 17,
                outside_core: 1234,
                components: Some(9),
                largest_component: Some(99),
                ..Cleaning::default()
            },
            duplicates_dropped: 4321,
            unknown_dropped: 0,
            self_loops: 6,
            halo: vec![vec![0, 5, 10], vec![2, 0, 1], vec![3, 4, 0]],
            processes: 1,
            seconds: 2.0,
            partition_seconds: 1.0,
            partition_bytes: 1 << 20,
            peak_rss_bytes: 1 << 30,
            passes: vec![pass("clustering", 1_000_000), PassRecord { seconds: 0.0, ..pass("nothing", 0) }],
        }
    }

    #[test]
    fn table_shows_all_numbers() {
        let text = partition_table(&quality());
        for part in [
            "0.2500",
            "1.500",
            "edges 1.100",
            "12.50%",
            "25",
            "2,000,000 edges/s",
            "1.0 GiB",
            "maximum 5,000",
            "17 that",
            "1,234 outside",
            "4,321 duplicates",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("nothing"), "a stage without work is not in the table");
        let balance = Balance { train: 0.0, ..quality().balance };
        let text = partition_table(&Quality { balance, ..quality() });
        assert!(!text.contains("train"), "a graph without training nodes: {text}");
    }

    #[test]
    fn page_draws_one_cell_per_pair_with_halo_nodes() {
        let folder = tempfile::tempdir().unwrap();
        write_partition(folder.path(), &quality()).unwrap();
        let page = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        // Two rectangles are the frame and the scale.
        assert_eq!(page.matches("<rect").count(), 6 + 2, "{page}");
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    }
}
