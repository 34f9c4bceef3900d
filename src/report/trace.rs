//! Tables of traced workers: seconds by operator and by task of the compute thread.

use super::page::escape;
use super::{count, seconds};
use gnnflow_pipelines::trace_table::{ThreadTime, TraceTable};
use std::fmt::Write;

/// Names of a table beyond this number are left out; the files in the run folder have them.
const MOST: usize = 15;

/// Appends the tables of all workers, a column each.
pub(super) fn trace_section(page: &mut String, traces: &[TraceTable]) {
    let [first, ..] = traces else { return };
    page.push_str("<h2>Threads</h2>\n");
    page.push_str("<p>Seconds in each process. Events: <code>trace/worker-N.json</code>, for Perfetto.</p>\n");
    let for_compute: Vec<f64> = traces.iter().map(|trace| trace.waiting_for_compute).collect();
    let mut rows = rows(&first.dataflow, traces, |trace| &trace.dataflow);
    if let Some(waiting) = rows.iter().position(|row| row.name == "waiting") {
        let all = rows.remove(waiting);
        let others = all.seconds.iter().zip(&for_compute).map(|(all, compute)| all - compute).collect();
        rows.insert(0, Row { name: "waiting for sampling or messages".into(), count: all.count, seconds: others });
        rows.insert(0, Row { name: "waiting for the compute thread".into(), count: all.count, seconds: for_compute });
    }
    table(page, "worker thread", &rows, traces.len());
    table(page, "compute thread", &self::rows(&first.compute, traces, |trace| &trace.compute), traces.len());
    let dropped: u64 = traces.iter().map(|trace| trace.dropped).sum();
    if dropped > 0 {
        let _ = writeln!(page, "<p>Note: the files lack {} events, because there were too many.</p>", count(dropped));
    }
}

struct Row {
    name: String,
    count: u64,
    /// By process.
    seconds: Vec<f64>,
}

/// Returns a row for each name of the first process.
fn rows(names: &[ThreadTime], traces: &[TraceTable], of: impl Fn(&TraceTable) -> &[ThreadTime]) -> Vec<Row> {
    let seconds = |name: &str, trace: &TraceTable| {
        of(trace).iter().find(|time| time.name == name).map_or(0.0, |time| time.seconds)
    };
    let row = |time: &ThreadTime| Row {
        name: time.name.clone(),
        count: time.count,
        seconds: traces.iter().map(|trace| seconds(&time.name, trace)).collect(),
    };
    names.iter().map(row).collect()
}

fn table(page: &mut String, title: &str, rows: &[Row], processes: usize) {
    let heads: String = (0..processes).map(|rank| format!("<th>process {rank}</th>")).collect();
    let _ = writeln!(page, "<table><tr><th>{title}</th><th>runs</th>{heads}</tr>");
    for row in rows.iter().take(MOST) {
        let cells: String = row.seconds.iter().map(|&of| format!("<td>{}</td>", seconds(of.max(0.0)))).collect();
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td>{cells}</tr>", escape(&row.name), count(row.count));
    }
    page.push_str("</table>\n");
}
