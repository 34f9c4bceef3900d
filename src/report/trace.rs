//! Tables of traced workers: times by operator and job, use of the threads, queues, and messages.

use super::page::escape;
use super::{bytes, count, seconds};
use gnnflow_pipelines::trace_table::{InUse, ThreadTime, ThreadUse, TraceTable};
use std::fmt::Write;

/// Causes of waiting beyond this number are left out, too.
const MOST_CAUSES: usize = 6;

/// Names of a table beyond this number are left out; the files in the run folder have them.
const MOST: usize = 15;

/// Appends the tables of all workers, a column each.
pub(super) fn trace_section(page: &mut String, traces: &[TraceTable]) {
    if traces.is_empty() {
        return;
    }
    page.push_str("<h2>Threads</h2>\n");
    page.push_str("<p>Times in each process. Events: <code>trace/worker-N.json</code>, for Perfetto.</p>\n");
    let mut operators = times(traces, |trace| &trace.dataflow);
    if let Some(waiting) = operators.iter().position(|row| row.name == "waiting") {
        let runs = operators.remove(waiting).runs;
        operators.splice(0..0, waiting_rows(traces, runs));
    }
    table(page, "worker thread", &operators, traces.len());
    table(page, "compute thread (CPU time)", &times(traces, |trace| &trace.compute), traces.len());
    let sampling = times(traces, |trace| &trace.sampling);
    if !sampling.is_empty() {
        table(page, "sampling threads (CPU time)", &sampling, traces.len());
    }
    table(page, "threads and queues", &uses(traces), traces.len());
    messages(page, traces);
    let dropped: u64 = traces.iter().map(|trace| trace.dropped).sum();
    if dropped > 0 {
        let _ = writeln!(page, "<p>Note: the files lack {} events, because there were too many.</p>", count(dropped));
    }
}

struct Row {
    name: String,
    /// How often it ran, in the first process.
    runs: Option<u64>,
    /// By process.
    cells: Vec<String>,
}

impl Row {
    fn new(
        name: impl Into<String>,
        runs: Option<u64>,
        traces: &[TraceTable],
        cell: impl Fn(&TraceTable) -> String,
    ) -> Self {
        Self { name: name.into(), runs, cells: traces.iter().map(cell).collect() }
    }
}

/// Returns a row for each name of the first process.
fn times(traces: &[TraceTable], of: impl Fn(&TraceTable) -> &[ThreadTime]) -> Vec<Row> {
    let cell = |name: &str, trace: &TraceTable| match of(trace).iter().find(|time| time.name == name) {
        Some(ThreadTime { seconds: wall, cpu_seconds: Some(cpu), .. }) => {
            format!("{} ({})", seconds(*wall), seconds(*cpu))
        }
        Some(time) => seconds(time.seconds),
        None => seconds(0.0),
    };
    let first = traces.first().map_or(&[][..], &of);
    first.iter().map(|time| Row::new(&*time.name, Some(time.count), traces, |trace| cell(&time.name, trace))).collect()
}

/// Returns the waiting of the worker threads by cause.
fn waiting_rows(traces: &[TraceTable], runs: Option<u64>) -> Vec<Row> {
    let row = |cause: &str, of: fn(&TraceTable) -> f64| {
        Row::new(format!("waiting for {cause}"), runs, traces, |trace| seconds(of(trace).max(0.0)))
    };
    let mut rows = vec![
        row("the compute thread", |trace| trace.waiting_for_compute),
        row("sampling threads", |trace| trace.waiting_for_sampling),
        row("messages", TraceTable::waiting_for_messages),
    ];
    // The causes with the most time.
    let mut causes: Vec<(&str, f64)> = Vec::new();
    for time in traces.iter().flat_map(|trace| &trace.waiting_for) {
        match causes.iter_mut().find(|(cause, _)| *cause == time.cause) {
            Some((_, sum)) => *sum += time.seconds,
            None => causes.push((&time.cause, time.seconds)),
        }
    }
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows.extend(causes.into_iter().take(MOST_CAUSES).map(|(cause, _)| {
        let of = |trace: &TraceTable| {
            trace.waiting_for.iter().filter(|time| time.cause == cause).map(|time| time.seconds).sum()
        };
        Row::new(format!("… of {cause}"), None, traces, |trace| seconds(of(trace)))
    }));
    rows
}

/// Returns rows about the threads, and about what waits for them.
fn uses(traces: &[TraceTable]) -> Vec<Row> {
    let mut rows = vec![Row::new("time of the record", None, traces, |trace| seconds(trace.seconds))];
    rows.extend(thread_rows("worker thread", traces, |trace| trace.worker_thread));
    rows.extend(thread_rows("compute threads", traces, |trace| trace.compute_threads));
    rows.extend(thread_rows("sampling threads", traces, |trace| trace.sampling_threads));
    rows.push(queue_row("jobs waiting for the compute thread", traces, |trace| trace.jobs_waiting));
    rows.push(queue_row("permits in use", traces, |trace| trace.permits_in_use));
    rows
}

fn thread_rows(name: &str, traces: &[TraceTable], of: fn(&TraceTable) -> ThreadUse) -> Vec<Row> {
    let mut rows = vec![
        Row::new(format!("{name}: CPU time"), None, traces, |trace| seconds(of(trace).cpu_seconds)),
        Row::new(format!("{name}: page faults from disk"), None, traces, |trace| {
            count(of(trace).page_faults_from_disk)
        }),
    ];
    if traces.iter().any(|trace| of(trace).disk_seconds.is_some()) {
        let waited = |trace: &TraceTable| of(trace).disk_seconds.map_or_else(|| "?".to_owned(), seconds);
        rows.push(Row::new(format!("{name}: waiting for disks"), None, traces, waited));
    }
    rows
}

fn queue_row(name: &str, traces: &[TraceTable], of: fn(&TraceTable) -> InUse) -> Row {
    let cell = |InUse { mean, max }| format!("{mean:.1} on average, at most {max}");
    Row::new(name, None, traces, |trace| cell(of(trace)))
}

fn table(page: &mut String, title: &str, rows: &[Row], processes: usize) {
    let heads: String = (0..processes).map(|rank| format!("<th>process {rank}</th>")).collect();
    let has_runs = rows.iter().any(|row| row.runs.is_some());
    let runs = if has_runs { "<th>runs</th>" } else { "" };
    let _ = writeln!(page, "<table><tr><th>{title}</th>{runs}{heads}</tr>");
    for row in rows.iter().take(MOST) {
        let runs = row.runs.map(count).unwrap_or_default();
        let runs = if has_runs { format!("<td>{runs}</td>") } else { String::new() };
        let cells: String = row.cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = writeln!(page, "<tr><td>{}</td>{runs}{cells}</tr>", escape(&row.name));
    }
    page.push_str("</table>\n");
}

/// Appends the bytes and messages from each process to each other process.
fn messages(page: &mut String, traces: &[TraceTable]) {
    let processes = traces.iter().map(|trace| trace.sent.len()).max().unwrap_or(0);
    if processes < 2 {
        return;
    }
    let heads: String = (0..processes).map(|rank| format!("<th>to process {rank}</th>")).collect();
    let _ = writeln!(page, "<table><tr><th>sent (messages)</th>{heads}</tr>");
    for (rank, trace) in traces.iter().enumerate() {
        let cells = trace.sent.iter().map(|sent| format!("<td>{} ({})</td>", bytes(sent.bytes), count(sent.messages)));
        let _ = writeln!(page, "<tr><td>process {rank}</td>{}</tr>", cells.collect::<String>());
    }
    page.push_str("</table>\n");
}
