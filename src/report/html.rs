//! `report.html`: one self-contained page.

use super::chart::{Epochs, Line, Source, chart};
use super::classes::class_section;
use super::memory::memory_chart;
use super::number::score;
use super::page::{begin, escape};
use super::partition::partition_section;
use super::table::{costs, loss_name, metric_names, splits, stages};
use super::trace::trace_section;
use super::{bytes, count, plural, seconds};
use crate::status::{MemoryOverTime, RunStatus};
use gnnflow_data::fs::replace;
use gnnflow_data::prepare::Quality;
use gnnflow_pipelines::summary::{EpochRecord, Scores};
use gnnflow_pipelines::trace_table::TraceTable;
use gnnflow_pipelines::{Error, Summary};
use std::fmt::Write;
use std::path::Path;

/// Name of the file in a run folder.
const FILE: &str = "report.html";

/// Writes the report of the run in `run_dir`, from its epochs, its resolved pipeline, `summary`, and the quality of the
/// partition, if it is known.
///
/// # Errors
/// If the folder cannot be read or written.
pub fn write(run_dir: &Path, summary: &Summary, quality: Option<&Quality>) -> Result<(), Error> {
    let epochs = match EpochRecord::read_all(run_dir) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        epochs => epochs?,
    };
    let pipeline = std::fs::read_to_string(run_dir.join("pipeline.toml")).unwrap_or_default();
    // A run of an earlier version has no status.
    let memory = RunStatus::read(run_dir).ok().and_then(|status| status.memory);
    let page = page(summary, &epochs, &TraceTable::read_all(run_dir)?, (quality, memory.as_ref()), &pipeline);
    let path = run_dir.join(FILE);
    replace(&path, page.as_bytes()).map_err(Error::io("write", &path))
}

fn page(
    summary: &Summary,
    epochs: &[EpochRecord],
    traces: &[TraceTable],
    (quality, memory): (Option<&Quality>, Option<&MemoryOverTime>),
    pipeline: &str,
) -> String {
    let mut page = begin(&summary.name, &summary.name);
    let (partitions, processes) = (plural(summary.partitions, "partition"), plural(summary.processes, "process"));
    let _ = write!(page, "<p>{partitions} on {processes}");
    if summary.epochs > 0 {
        let (threads, epochs) = (plural(summary.threads, "thread"), plural(summary.epochs, "epoch"));
        let _ = write!(page, " of {threads}, {}; {epochs}", escape(&summary.device));
        let best = summary.best_epoch.map_or_else(String::new, |best| format!("; the model is that of epoch {best}"));
        page.push_str(&best);
    }
    page.push_str(".</p>\n");
    metrics(&mut page, summary);
    if let Some(class) = &summary.positive_class {
        let _ = writeln!(page, "<p>Positive class of ranked metrics: {}.</p>", escape(class));
    }
    for note in &summary.notes {
        let _ = writeln!(page, "<p>Note: {}.</p>", escape(note));
    }
    for chart in charts(summary, epochs) {
        page.push_str(&chart);
    }
    class_section(&mut page, summary);
    times(&mut page, summary);
    trace_section(&mut page, traces);
    traffic(&mut page, summary);
    page.extend(memory.and_then(memory_chart));
    cost_section(&mut page, summary);
    if let Some(quality) = quality {
        let _ = writeln!(page, "<h2>Partition by {}</h2>", escape(&quality.method));
        partition_section(&mut page, quality);
    }
    if !pipeline.is_empty() {
        let _ = write!(page, "<h2>Pipeline</h2>\n<pre>{}</pre>\n", escape(pipeline));
    }
    page.push_str("</body></html>\n");
    page
}

fn metrics(page: &mut String, summary: &Summary) {
    let splits = splits(summary);
    if splits.is_empty() {
        return;
    }
    let names = metric_names(&splits);
    // Long names may break after each word.
    let head = |name: &&str| format!("<th>{}</th>", escape(name).replace('_', "_<wbr>"));
    let heads: String = names.iter().map(head).collect();
    let (examples, loss) = (summary.examples(), loss_name(summary));
    let _ = writeln!(page, "<table><tr><th>split</th><th>{examples}</th>{heads}<th>{loss}</th></tr>");
    for (split, scores) in splits {
        let _ = write!(page, "<tr><td>{split}</td><td>{}</td>", count(scores.nodes));
        for name in &names {
            let value = scores.metrics.get(*name).map_or_else(String::new, |value| score(*value));
            let _ = write!(page, "<td>{value}</td>");
        }
        let _ = writeln!(page, "<td>{}</td></tr>", score(scores.loss));
    }
    page.push_str("</table>\n");
}

/// Draws the loss and the metric of [`drawn_metric`] over epochs. Held-out links have another loss than training, in another chart.
fn charts(summary: &Summary, epochs: &[EpochRecord]) -> Vec<String> {
    let ([first, ..], [.., last]) = (epochs, epochs) else { return Vec::new() };
    let run = Epochs { first: first.epoch, last: last.epoch, best: summary.best_epoch };
    let steps = epochs.iter().map(|epoch| (epoch.epoch, epoch.loss)).collect();
    let (mut losses, mut held_out) = (vec![Line { source: Source::Steps, points: steps }], None);
    let of_splits = split_lines(epochs, |scores| Some(scores.loss));
    if summary.ranks_links() {
        held_out = chart("Mean −log σ(score) of held-out edges", &of_splits, run);
    } else {
        losses.extend(of_splits);
    }
    let metric = drawn_metric(epochs).and_then(|metric| {
        let lines = split_lines(epochs, |scores| scores.value(metric));
        chart(&metric_title(metric), &lines, run)
    });
    [chart("Loss", &losses, run), held_out, metric].into_iter().flatten().collect()
}

/// Returns the name of the metric that selects the best epoch, unless it is the loss.
fn drawn_metric(epochs: &[EpochRecord]) -> Option<&str> {
    epochs.iter().rev().find_map(|epoch| epoch.metric.as_deref()).filter(|metric| *metric != "loss")
}

/// Collects a value of each split over epochs.
fn split_lines(epochs: &[EpochRecord], value: impl Fn(&Scores) -> Option<f64>) -> Vec<Line> {
    type Pick = fn(&EpochRecord) -> Option<&Scores>;
    let picks: [(Source, Pick); 3] = [
        (Source::Train, |epoch| epoch.train.as_ref()),
        (Source::Val, |epoch| epoch.val.as_ref()),
        (Source::Test, |epoch| epoch.test.as_ref()),
    ];
    let points = |pick: Pick| epochs.iter().filter_map(|epoch| Some((epoch.epoch, value(pick(epoch)?)?))).collect();
    picks.into_iter().map(|(source, pick)| Line { source, points: points(pick) }).collect()
}

/// Returns the name of a metric in words.
pub(super) fn metric_title(metric: &str) -> String {
    match metric {
        "accuracy" => "Accuracy".into(),
        "micro_f1" => "F1, micro average".into(),
        "macro_f1" => "F1, macro average".into(),
        "roc_auc" => "Area under the ROC curve".into(),
        "pr_auc" => "Area under the precision-recall curve".into(),
        "mrr" => "Mean reciprocal rank".into(),
        "mean_rank" => "Mean rank".into(),
        other => {
            let bounded = [
                ("hits_at_", "Hits at"),
                ("recall_at_precision_", "Recall at precision"),
                ("precision_at_", "Precision at"),
            ];
            let name =
                bounded.iter().find_map(|(prefix, name)| Some(format!("{name} {}", other.strip_prefix(prefix)?)));
            name.unwrap_or_else(|| other.into())
        }
    }
}

fn times(page: &mut String, summary: &Summary) {
    let stages = stages(summary);
    let longest = stages.iter().map(|(_, time)| *time).fold(f64::MIN_POSITIVE, f64::max);
    page.push_str("<table><tr><th>stage</th><th>time</th><th></th></tr>\n");
    for (name, time) in stages {
        let width = (time / longest * 300.0).ceil();
        let bar = format!("<td style=\"text-align:left\"><span class=\"bar\" style=\"width:{width}px\"></span></td>");
        let _ = writeln!(page, "<tr><td>{name}</td><td>{}</td>{bar}</tr>", seconds(time));
    }
    page.push_str("</table>\n");
}

fn traffic(page: &mut String, summary: &Summary) {
    page.push_str("<table><tr><th>resources</th><th></th></tr>\n");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(page, "<tr><td>{name}</td><td>{value}</td></tr>");
    };
    row("sent between processes", bytes(summary.bytes_sent));
    row("messages", count(summary.messages_sent));
    row("rounds per step", summary.rounds_per_step.to_string());
    for (rank, peak) in summary.peak_rss_bytes.iter().enumerate() {
        row(&format!("peak memory of process {rank}"), bytes(*peak));
    }
    for (rank, worker) in summary.workers.iter().enumerate() {
        if let Some(peak) = worker.device_peak_bytes {
            row(&format!("peak memory of process {rank} on its GPU"), bytes(peak));
        }
    }
    page.push_str("</table>\n");
}

/// Writes the work of tensor workers, and costs.
fn cost_section(page: &mut String, summary: &Summary) {
    let rows = costs(summary);
    if rows.is_empty() {
        return;
    }
    page.push_str("<table><tr><th>cost</th><th></th></tr>\n");
    for (name, value) in rows {
        let _ = writeln!(page, "<tr><td>{name}</td><td>{value}</td></tr>");
    }
    page.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_self_contained_and_escaped() {
        let scores = |accuracy| Some(Scores { nodes: 10, loss: 0.3, metrics: [("accuracy".into(), accuracy)].into() });
        let epoch = |epoch| {
            let metric = Some("accuracy".to_owned());
            EpochRecord { epoch, loss: 1.0 / epoch as f64, val: scores(0.5), metric, ..EpochRecord::default() }
        };
        let mut summary = Summary { name: "a<b".into(), epochs: 3, val: scores(0.75), ..Summary::default() };
        summary.seconds.train = 1.5;
        let page = page(&summary, &[epoch(1), epoch(2), epoch(3)], &[], (None, None), "name = \"<script>\"");
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("a&lt;b") && page.contains("0.7500") && !page.contains("<script"), "{page}");
        // The page loads nothing; the only URL is the SVG namespace.
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    }

    #[test]
    fn run_without_training_has_a_report() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &Summary { name: "prepare".into(), ..Summary::default() }, None).unwrap();
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
    }
}
