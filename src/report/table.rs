//! The table of a run's results on the terminal.

use super::number::score;
use super::{bytes, count, plural, seconds};
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use gnnflow_pipelines::Summary;
use gnnflow_pipelines::summary::{Chosen, Refreshed, Scores};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Returns a run's results as text: metrics of each split, time of each stage, bytes sent, peak memory.
pub fn table(summary: &Summary) -> String {
    let Summary { name, partitions, processes, threads, epochs, device, .. } = summary;
    let (partitions, processes) = (plural(*partitions, "partition"), plural(*processes, "process"));
    let mut text = format!("{name}: {partitions} on {processes}");
    if summary.epochs > 0 {
        let _ = write!(text, " of {}, {device}; {}", plural(*threads, "thread"), plural(*epochs, "epoch"));
    }
    if let Some(best) = summary.best_epoch {
        let _ = write!(text, ", the best was {best}");
    }
    text.push('\n');
    if let Some(metrics) = metrics(summary) {
        let _ = writeln!(text, "{metrics}");
    }
    if let Some(class) = &summary.positive_class {
        let _ = writeln!(text, "positive class of ranked metrics: {class}");
    }
    for note in &summary.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if let Some(refreshed) = &summary.refreshed {
        let Refreshed { computed_rows, all_rows, changed_nodes, .. } = refreshed;
        let of = format!("{} of {}", count(*computed_rows), count(*all_rows));
        let _ = write!(text, "refreshed: {of} rows of layers computed in {}", seconds(refreshed.seconds));
        let _ = match changed_nodes {
            Some(nodes) => writeln!(text, "; {} in changes.parquet", plural(*nodes as usize, "node")),
            None => writeln!(text),
        };
    }
    if let Some(Chosen { nodes, computed_rows, all_rows }) = &summary.chosen {
        let (nodes, rows) = (plural(*nodes as usize, "node"), count(*computed_rows));
        let _ = writeln!(text, "results of {nodes}, from {rows} of {} rows of layers", count(*all_rows));
    }
    for table in [time(summary), traffic(summary), cost_table(summary)].into_iter().flatten() {
        let _ = writeln!(text, "{table}");
    }
    text
}

/// Returns the evaluated splits with their names.
pub(super) fn splits(summary: &Summary) -> Vec<(&'static str, &Scores)> {
    let all = [("train", &summary.train), ("val", &summary.val), ("test", &summary.test)];
    all.into_iter().filter_map(|(name, scores)| Some((name, scores.as_ref()?))).collect()
}

/// Returns the names of all metrics of all splits, accuracy first.
pub(super) fn metric_names<'a>(splits: &[(&str, &'a Scores)]) -> Vec<&'a str> {
    let names: BTreeSet<&str> =
        splits.iter().flat_map(|(_, scores)| scores.metrics.keys()).map(String::as_str).collect();
    let (mut first, rest): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| *name == "accuracy");
    first.extend(rest);
    first
}

/// Returns the name of the column of losses. Of links, it is the loss of held-out edges alone, without negatives.
pub(super) fn loss_name(summary: &Summary) -> &'static str {
    if summary.ranks_links() { "−log σ(score)" } else { "loss" }
}

/// Returns the wall-clock seconds of the stages that took any.
pub(super) fn stages(summary: &Summary) -> Vec<(&'static str, f64)> {
    let s = &summary.seconds;
    let stages = [
        ("prepare", s.prepare),
        ("train", s.train),
        ("· sample", s.sample),
        ("· fetch", s.fetch),
        ("· forward", s.forward),
        ("· backward", s.backward),
        ("· reduce", s.reduce),
        ("· step", s.step),
        ("· on the GPU", s.device),
        ("· evaluate", s.evaluate),
        ("infer", s.infer),
    ];
    stages.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect()
}

fn metrics(summary: &Summary) -> Option<Table> {
    let splits = splits(summary);
    if splits.is_empty() {
        return None;
    }
    let names = metric_names(&splits);
    let mut table = empty(&[&["split", summary.examples()], names.as_slice(), &[loss_name(summary)]].concat());
    for (name, scores) in &splits {
        let mut row = vec![name.to_string(), count(scores.nodes)];
        row.extend(names.iter().map(|name| scores.metrics.get(*name).map_or_else(String::new, |value| score(*value))));
        row.push(score(scores.loss));
        table.add_row(row);
    }
    Some(numbers_right(table))
}

fn time(summary: &Summary) -> Option<Table> {
    let stages = stages(summary);
    let mut table = empty(&["stage", "time"]);
    for (name, time) in &stages {
        table.add_row([name.to_string(), seconds(*time)]);
    }
    let epochs = &summary.seconds.per_epoch;
    if !epochs.is_empty() {
        table.add_row(["per epoch".into(), seconds(epochs.iter().sum::<f64>() / epochs.len() as f64)]);
    }
    (!stages.is_empty()).then(|| numbers_right(table))
}

fn traffic(summary: &Summary) -> Option<Table> {
    let mut table = empty(&["resources", ""]);
    table.add_row(["sent between processes".into(), bytes(summary.bytes_sent)]);
    table.add_row(["messages".into(), count(summary.messages_sent)]);
    if summary.epochs > 0 {
        table.add_row(["rounds per step".into(), summary.rounds_per_step.to_string()]);
    }
    if let Some(cache) = &summary.device_cache {
        table.add_row(["rows found on the GPU".into(), format!("{:.1} %", 100.0 * cache.hit_rate)]);
    }
    if let Some(cache) = &summary.cache {
        table.add_row(["cached remote features".into(), format!("{:.1} %", 100.0 * cache.hit_rate)]);
    }
    for (rank, peak) in summary.peak_rss_bytes.iter().enumerate() {
        table.add_row([format!("peak memory of process {rank}"), bytes(*peak)]);
    }
    for (rank, worker) in summary.workers.iter().enumerate() {
        if let Some(peak) = worker.device_peak_bytes {
            table.add_row([format!("peak memory of process {rank} on its GPU"), bytes(peak)]);
        }
    }
    Some(numbers_right(table))
}

/// Returns the work of tensor workers, and costs, if there are any.
pub(super) fn costs(summary: &Summary) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(tensor) = &summary.tensor {
        rows.extend([
            ("tensor workers at the end", count(tensor.workers)),
            ("tasks of tensor workers", count(tensor.tasks)),
            ("tasks that the processes computed", count(tensor.local)),
            ("calls of tensor workers", count(tensor.calls)),
            ("time of tensor workers", seconds(tensor.seconds)),
            ("tasks reassigned", count(tensor.again)),
            ("tensor workers lost", count(tensor.lost)),
            ("tensor workers relaunched", count(tensor.relaunched)),
        ]);
    }
    if let Some(value) = &summary.value {
        let number = |value: f64| format!("{value:.6}");
        rows.extend([
            ("cost of processes", number(value.graph_workers)),
            ("cost of tensor-worker calls", number(value.tensor_calls)),
            ("cost of tensor-worker time", number(value.tensor_seconds)),
            ("cost", number(value.cost)),
            ("value, 1 / (time × cost)", number(value.value)),
        ]);
    }
    rows
}

fn cost_table(summary: &Summary) -> Option<Table> {
    let rows = costs(summary);
    let mut table = empty(&["cost", ""]);
    for (name, value) in &rows {
        table.add_row([*name, value.as_str()]);
    }
    (!rows.is_empty()).then(|| numbers_right(table))
}

/// Returns a table without rows.
pub(super) fn empty(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.set_style(TableComponent::HeaderLines, '─').set_style(TableComponent::MiddleHeaderIntersections, '─');
    table
}

/// Aligns all columns but the first to the right.
pub(super) fn numbers_right(mut table: Table) -> Table {
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_only_existing_results() {
        let mut summary =
            Summary { name: "cora".into(), partitions: 2, processes: 1, threads: 2, ..Summary::default() };
        summary.seconds.prepare = 0.25;
        let text = table(&summary);
        assert!(text.contains("prepare") && !text.contains("split") && !text.contains("epochs"), "{text}");

        summary.epochs = 200;
        summary.best_epoch = Some(120);
        summary.peak_rss_bytes = vec![300 << 20];
        let scores = |accuracy: f64| Scores { nodes: 1000, loss: 0.5, metrics: [("accuracy".into(), accuracy)].into() };
        (summary.train, summary.test) = (Some(scores(1.0)), Some(scores(0.815)));
        let text = table(&summary);
        for part in ["accuracy", "0.8150", "1,000", "300 MiB", "200 epochs, the best was 120"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("val"), "{text}");
    }
}
