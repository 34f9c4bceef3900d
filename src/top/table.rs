//! The status of a run as one table.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use super::view::{COLUMNS, View};
use crate::status::RunStatus;

/// Returns the status of a run as text.
pub(crate) fn text(run: &RunStatus) -> String {
    let View { lines, rows } = View::of(run, run.age());
    let mut text = lines.iter().fold(String::new(), |text, line| text + &line.text + "\n");
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(COLUMNS);
    table.set_style(TableComponent::HeaderLines, '─').set_style(TableComponent::MiddleHeaderIntersections, '─');
    for row in rows {
        table.add_row(row.cells);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        // Rank, host and state are text.
        column.set_cell_alignment(if index < 3 { CellAlignment::Left } else { CellAlignment::Right });
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    text
}
