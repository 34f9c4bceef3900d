//! Several runs side by side: a table on the terminal, and one self-contained page.

use std::fmt::Write;
use std::path::Path;

use super::chart::{Epochs, Line, Source, chart};
use super::html::metric_title;
use super::number::score;
use super::page::{begin, escape};
use super::table::{empty, numbers_right};
use super::{bytes, plural, seconds};
use crate::compare::{ComparedRun, Comparison, Mean, OverSeeds, Settings};
use gnnflow_data::fs::replace;
use gnnflow_pipelines::Error;
use gnnflow_pipelines::summary::EpochRecord;

/// With more keys, the table has no columns of them, and a second table has a row for each key.
const MAX_KEY_COLUMNS: usize = 6;
/// Maximum number of runs in a chart.
const MAX_DRAWN: usize = 10;
/// Maximum characters of a value.
const MAX_VALUE: usize = 32;

/// Returns the comparison as text: a row per run with the keys that differ, means over seeds, and which models are equal.
pub fn comparison_table(compared: &Comparison) -> String {
    let mut text = String::new();
    for rows in tables(compared) {
        let mut table = empty(&rows.head.iter().map(String::as_str).collect::<Vec<_>>());
        table.add_rows(&rows.rows);
        let _ = writeln!(text, "{}", numbers_right(table));
    }
    for note in notes(compared) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Writes the comparison as a page with charts of all epochs.
///
/// # Errors
/// If the file cannot be written.
pub fn write_comparison(path: &Path, compared: &Comparison) -> Result<(), Error> {
    replace(path, page(compared).as_bytes()).map_err(Error::io("write", path))
}

fn page(compared: &Comparison) -> String {
    let heading = plural(compared.runs.len(), "run");
    let mut page = begin(&heading, &heading);
    for rows in tables(compared) {
        write_table(&mut page, &rows);
    }
    for note in notes(compared) {
        let _ = writeln!(page, "<p>{}.</p>", escape(&note));
    }
    let charts = charts(compared);
    if compared.runs.len() > MAX_DRAWN && !charts.is_empty() {
        let _ = writeln!(page, "<p>The charts show the first {MAX_DRAWN} runs.</p>");
    }
    page.extend(charts);
    page.push_str("</body></html>\n");
    page
}

/// A table as text: the names of the columns, and the rows. The first column is text.
struct Rows {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn write_table(page: &mut String, table: &Rows) {
    let head: String = table.head.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let _ = writeln!(page, "<table><tr>{head}</tr>");
    for row in &table.rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    page.push_str("</table>\n");
}

fn tables(compared: &Comparison) -> Vec<Rows> {
    let mut tables = vec![runs_table(compared)];
    if compared.keys.len() > MAX_KEY_COLUMNS {
        tables.push(keys_table(compared));
    }
    if !compared.over_seeds.is_empty() {
        tables.push(seeds_table(compared));
    }
    tables
}

/// Returns the names of the runs: their folders without the part that all have.
fn names(compared: &Comparison) -> Vec<String> {
    let mut shared = compared.runs.first().and_then(|run| run.run.parent());
    while let Some(folder) = shared.filter(|folder| !compared.runs.iter().all(|run| run.run.starts_with(folder))) {
        shared = folder.parent();
    }
    let name = |run: &ComparedRun| match shared.map(|folder| run.run.strip_prefix(folder)) {
        Some(Ok(rest)) if !rest.as_os_str().is_empty() => rest.display().to_string(),
        _ => run.run.display().to_string(),
    };
    compared.runs.iter().map(name).collect()
}

fn value(settings: &Settings, key: &str) -> String {
    let value = match settings.get(key) {
        None => return "–".to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if value.chars().count() <= MAX_VALUE {
        return value;
    }
    // The end of a path says more than its begin.
    let skipped = value.chars().count() - MAX_VALUE + 1;
    std::iter::once('…').chain(value.chars().skip(skipped)).collect()
}

/// Returns the keys that have columns.
fn columns(compared: &Comparison) -> &[String] {
    if compared.keys.len() > MAX_KEY_COLUMNS { &[] } else { &compared.keys }
}

/// Returns `name` with the metric, if all runs have the same.
fn head_of(split: &str, compared: &Comparison) -> String {
    compared.metric.as_ref().map_or_else(|| split.to_owned(), |metric| format!("{split} {metric}"))
}

fn runs_table(compared: &Comparison) -> Rows {
    let keys = columns(compared);
    let own_metric = |run: &ComparedRun, value: Option<f64>| {
        let name = run.metric.as_deref().filter(|_| compared.metric.is_none());
        let text = value.map_or_else(|| "–".to_owned(), score);
        name.filter(|_| value.is_some()).map_or(text.clone(), |name| format!("{name} {text}"))
    };
    let mut head = vec!["run".to_owned()];
    head.extend(keys.iter().cloned());
    head.extend([head_of("val", compared), head_of("test", compared)]);
    head.extend(["best epoch", "epochs", "per epoch", "train", "peak memory"].map(str::to_owned));
    let row = |(run, name): (&ComparedRun, String)| {
        let unfinished = if run.finished { "" } else { " (not finished)" };
        let mut row = vec![name + unfinished];
        row.extend(keys.iter().map(|key| value(&run.settings, key)));
        row.extend([own_metric(run, run.val_score()), own_metric(run, run.test_score())]);
        row.push(run.best_epoch.map_or_else(|| "–".to_owned(), |best| best.to_string()));
        row.push(run.epochs.to_string());
        row.extend([seconds(run.seconds_per_epoch), seconds(run.seconds)]);
        row.push(run.peak_rss_bytes.map_or_else(|| "–".to_owned(), bytes));
        row
    };
    Rows { head, rows: compared.runs.iter().zip(names(compared)).map(row).collect() }
}

fn keys_table(compared: &Comparison) -> Rows {
    let head = [vec!["key".to_owned()], names(compared)].concat();
    let row = |key: &String| {
        let values = compared.runs.iter().map(|run| value(&run.settings, key));
        std::iter::once(key.clone()).chain(values).collect()
    };
    Rows { head, rows: compared.keys.iter().map(row).collect() }
}

/// Returns the means over seeds.
fn seeds_table(compared: &Comparison) -> Rows {
    let keys: Vec<&String> = columns(compared).iter().filter(|key| *key != "train.seed").collect();
    let mean = |mean: Option<Mean>| match mean {
        Some(Mean { mean, deviation }) => format!("{} ± {}", score(mean), score(deviation)),
        None => "–".to_owned(),
    };
    let mut head = vec!["over seeds".to_owned()];
    head.extend(keys.iter().map(|key| (*key).clone()));
    head.extend([head_of("val", compared), head_of("test", compared)]);
    let row = |group: &OverSeeds| {
        let mut row = vec![plural(group.runs.len(), "run")];
        row.extend(keys.iter().map(|key| value(&group.settings, key)));
        row.extend([mean(group.val), mean(group.test)]);
        row
    };
    Rows { head, rows: compared.over_seeds.iter().map(row).collect() }
}

/// Returns remarks on the runs.
fn notes(compared: &Comparison) -> Vec<String> {
    let names = names(compared);
    let group = |group: &Vec<usize>| group.iter().map(|&run| names[run].as_str()).collect::<Vec<_>>().join(", ");
    compared.same_models.iter().map(|runs| format!("the same model, bit for bit: {}", group(runs))).collect()
}

/// Draws the validation metric and the loss of training of all runs over epochs.
fn charts(compared: &Comparison) -> Vec<String> {
    let epochs = || compared.runs.iter().take(MAX_DRAWN).flat_map(|run| &run.records).map(|record| record.epoch);
    let (Some(first), Some(last)) = (epochs().min(), epochs().max()) else { return Vec::new() };
    let names = names(compared);
    let lines = |value: &dyn Fn(&EpochRecord) -> Option<f64>| -> Vec<Line> {
        let line = |(index, run): (usize, &ComparedRun)| {
            let points = run.records.iter().filter_map(|record| Some((record.epoch, value(record)?))).collect();
            Line { source: Source::Run { index, name: names[index].clone() }, points }
        };
        compared.runs.iter().take(MAX_DRAWN).enumerate().map(line).collect()
    };
    let all = Epochs { first, last, best: None };
    let metric = compared.metric.as_ref().and_then(|metric| {
        let title = format!("Validation: {}", metric_title(metric));
        chart(&title, &lines(&|record| record.val.as_ref()?.value(metric)), all)
    });
    let loss = chart("Loss of training steps", &lines(&|record| Some(record.loss)), all);
    [metric, loss].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [(u32, u32, f64); 4] = [(16, 1, 0.5), (16, 2, 0.75), (32, 1, 0.75), (32, 2, 0.8)];

    #[test]
    fn table_has_a_row_per_run_and_means_over_seeds() {
        let text = comparison_table(&Comparison::example(&RUNS));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["run", "model.hidden", "train.seed", "val"], "{text}");
        let first = lines.iter().find(|line| line.first() == Some(&"hidden=16,seed=1")).unwrap();
        assert_eq!(first[1..5], ["16", "1", "0.5000", "0.2500"], "{text}");
        assert!(text.contains("0.6250 ± 0.1768") && text.contains("2 runs"), "{text}");
        assert!(text.contains("the same model, bit for bit: hidden=16,seed=2, hidden=32,seed=1"), "{text}");
    }

    #[test]
    fn many_keys_have_a_table_of_their_own() {
        let mut compared = Comparison::example(&RUNS);
        compared.keys = (0..9).map(|key| format!("key{key}")).collect();
        compared.runs[0].settings.insert("key3".into(), "x".repeat(100).into());
        let text = comparison_table(&compared);
        let row = text.lines().find(|line| line.trim_start().starts_with("key3")).unwrap();
        assert!(row.contains(&format!("…{} ", "x".repeat(MAX_VALUE - 1))) && row.contains('–'), "{text}");
    }

    #[test]
    fn page_has_charts_and_is_escaped() {
        let mut compared = Comparison::example(&RUNS);
        compared.runs[0].run = "runs/<b>".into();
        let page = page(&compared);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
        assert!(page.contains("class=\"run3\"") && !page.contains("The charts show"), "{page}");
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
        let many: Vec<_> = (0..12).map(|hidden| (hidden, 1, 0.5)).collect();
        let page = super::page(&Comparison::example(&many));
        assert!(page.contains("The charts show the first 10 runs") && !page.contains("class=\"run10\""));
    }
}
