//! Reports of runs: tables on the terminal, `report.html` in the run folder, and pages that compare several runs.

mod axis;
mod chart;
mod classes;
mod cluster;
mod comparison;
mod heat_map;
mod html;
mod memory;
mod number;
mod page;
mod partition;
mod svg;
mod table;
mod trace;

pub(crate) use cluster::cluster_text;
pub use comparison::{comparison_table, write_comparison};
pub use html::write;
pub use partition::{partition_table, write_partition};
pub use table::table;

use gnnflow_data::format::{bytes, count, counted, plural};

/// Formats seconds with about three digits.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{s:.3} s"),
    }
}
