//! A finished run for people: a table on the terminal, and `report.html` in the run folder.

mod chart;
mod html;
mod partition;
mod table;

pub use html::write;
pub use partition::{partition_table, write_partition};
pub use table::table;

/// `1234567` as `1,234,567`.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `1 process`, `2 processes`.
fn plural(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ if word.ends_with('s') => format!("{number} {word}es"),
        _ => format!("{number} {word}s"),
    }
}

/// A size, to three digits.
fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1024.0 && unit + 1 < units.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && size < 100.0);
    format!("{size:.digits$} {}", units[unit])
}

/// Seconds, to three digits or so.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{s:.3} s"),
    }
}
