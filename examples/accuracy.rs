//! Runs every pipeline in `docs/book/src/accuracy/` with several seeds, some also with a multi-layer perceptron as the baseline,
//! and writes the table `docs/book/src/accuracy.md`.
//!
//! ```sh
//! cargo build --release && cargo run --release --example accuracy
//! ```
//!
//! `--seeds N` runs each pipeline with N seeds. `--only WORD` runs the pipelines whose name contains the word, and prints
//! the table instead of writing it. Existing runs in `target/accuracy` are not repeated; delete the folder to repeat them.
//! The environment variable `GNNFLOW_TEST_DATA` names the folder with the graphs, one folder per graph.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use gnnflow_pipelines::summary::Summary;

/// A pipeline, whether it has a perceptron as the baseline, and the smallest value of its first metric.
struct Case {
    pipeline: &'static str,
    seeds: u64,
    baseline: bool,
    bar: Option<f64>,
    /// Reported metrics. The first is compared with `bar`.
    metrics: &'static [(&'static str, &'static str)],
    published: &'static str,
}

const fn case(pipeline: &'static str, seeds: u64, baseline: bool, bar: Option<f64>, published: &'static str) -> Case {
    Case { pipeline, seeds, baseline, bar, metrics: &[("accuracy", "")], published }
}

/// Metrics for nodes with several labels.
const LABELS: &[(&str, &str)] = &[("micro_f1", "micro-F1 "), ("macro_f1", "macro-F1 ")];

/// Metrics for classes of different sizes.
const CLASSES: &[(&str, &str)] = &[("macro_f1", "macro-F1 "), ("accuracy", "accuracy ")];
/// Metrics for links, ranked among all nodes.
const RANKS: &[(&str, &str)] = &[("mrr", "MRR "), ("hits_at_10", "hits@10 ")];
/// Metrics for recommendation.
const LISTS: &[(&str, &str)] = &[("recall_at_20", "recall@20 "), ("ndcg_at_20", "NDCG@20 ")];

const CASES: [Case; 16] = [
    case("cora-gcn", 10, true, Some(0.805), "81.5 (Kipf and Welling 2017)"),
    case("cora-gat", 10, false, Some(0.815), "83.0 (Veličković et al. 2018)"),
    case("pubmed-gcn", 10, true, Some(0.780), "79.0 (Kipf and Welling 2017)"),
    case("pubmed-sage", 10, false, Some(0.765), ""),
    case("twitch-de", 3, true, None, ""),
    case("facebook-large", 3, true, None, ""),
    case("fb100-cornell5", 3, true, None, ""),
    case("tolokers", 3, true, None, ""),
    case("debian-bookworm", 3, true, None, ""),
    case("lastfm-asia", 3, false, None, ""),
    Case {
        metrics: LABELS,
        ..case(
            "blogcatalog",
            3,
            false,
            None,
            "micro-F1 41.0, macro-F1 27.3, given the number of labels per node (Perozzi et al. 2014)",
        )
    },
    Case { metrics: CLASSES, ..case("hetero-acm", 3, false, None, "macro-F1 85.7 HAN, 88.6 HeCo (Wang et al. 2021)") },
    Case { metrics: CLASSES, ..case("hetero-dblp", 3, false, None, "macro-F1 89.3 HAN, 91.3 HeCo (Wang et al. 2021)") },
    Case { metrics: RANKS, ..case("lastfm-asia-links", 3, false, None, "") },
    Case {
        metrics: RANKS,
        ..case("kg-fb15k-237", 1, false, None, "MRR 24.9, hits@10 41.7 (R-GCN+, Schlichtkrull et al. 2018)")
    },
    Case {
        metrics: LISTS,
        ..case(
            "recsys-gowalla",
            1,
            false,
            None,
            "recall@20 15.7, NDCG@20 13.3 NGCF, 18.3 and 15.5 LightGCN (He et al. 2020)",
        )
    },
];

/// Test metrics of several seeds.
struct Scores {
    model: String,
    /// Values by metric, then by seed.
    values: Vec<Vec<f64>>,
    names: Vec<&'static str>,
    seconds: f64,
}

impl Scores {
    /// The mean of the first metric.
    fn mean(&self) -> f64 {
        self.values.first().map_or(f64::NAN, |values| mean(values))
    }

    /// Formats means and standard deviations in percent.
    fn text(&self) -> String {
        let text = |(name, values): (&&str, &Vec<f64>)| {
            let (n, mean) = (values.len() as f64, mean(values));
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
            format!("{name}{:.1} ± {:.1}", 100.0 * mean, 100.0 * variance.sqrt())
        };
        self.names.iter().zip(&self.values).map(text).collect::<Vec<_>>().join(", ")
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1)).cloned();
    let seeds: Option<u64> = value("--seeds").map(|text| text.parse()).transpose()?;
    let only = value("--only");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));

    let mut table = String::new();
    let mut short = Vec::new();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|word| case.pipeline.contains(word.as_str()))) {
        let seeds = seeds.unwrap_or(case.seeds);
        let scores = run_seeds(root, case, None, seeds)?;
        let baseline = case.baseline.then(|| run_seeds(root, case, Some("mlp"), seeds)).transpose()?;
        let (mlp, gain) = baseline.as_ref().map_or((String::new(), String::new()), |mlp| {
            (mlp.text(), format!("{:+.1}", 100.0 * (scores.mean() - mlp.mean())))
        });
        let bar = case.bar.map_or(String::new(), |bar| format!("{:.1}", 100.0 * bar));
        if case.bar.is_some_and(|bar| scores.mean() < bar) {
            short.push(case.pipeline);
        }
        let Case { pipeline, published, .. } = case;
        let (model, text, seconds) = (&scores.model, scores.text(), scores.seconds);
        let row = format!(
            "| [{pipeline}](accuracy/{pipeline}.toml) | {model} | {seeds} | {text} | {mlp} | {gain} | {bar} | {published} | {seconds:.1} |"
        );
        println!("{row}");
        writeln!(table, "{row}")?;
    }
    let text = page(&table)?;
    match only {
        Some(_) => print!("{text}"),
        None => {
            let page = root.join("docs/book/src/accuracy.md");
            // Keeps the sections after the table, which are not generated.
            let old = std::fs::read_to_string(&page).unwrap_or_default();
            let behind = old.find("\n## ").map_or("", |at| &old[at..]);
            std::fs::write(page, text + behind)?;
        }
    }
    if !short.is_empty() {
        return Err(format!("below their bar: {}", short.join(", ")).into());
    }
    Ok(())
}

/// Runs one pipeline with the seeds 1, 2, …
fn run_seeds(root: &Path, case: &Case, model: Option<&str>, seeds: u64) -> Result<Scores, Box<dyn Error>> {
    let Case { pipeline, metrics, .. } = case;
    let names = metrics.iter().map(|&(_, name)| name).collect();
    let model_name = model.unwrap_or_default().to_owned();
    let mut scores = Scores { model: model_name, values: vec![Vec::new(); metrics.len()], names, seconds: 0.0 };
    for seed in 1..=seeds {
        let summary = run(root, pipeline, model, seed)?;
        for ((metric, _), values) in metrics.iter().zip(&mut scores.values) {
            let value = summary.test.as_ref().and_then(|test| test.metrics.get(*metric).copied());
            values.push(value.ok_or_else(|| format!("{pipeline}: no test {metric} in its summary"))?);
        }
        scores.seconds += summary.seconds.train / seeds as f64;
    }
    if model.is_none() {
        scores.model = setting(root, pipeline, "kind")?;
    }
    Ok(scores)
}

/// Returns the value of a key in a pipeline file.
fn setting(root: &Path, pipeline: &str, key: &str) -> Result<String, Box<dyn Error>> {
    let text = std::fs::read_to_string(root.join("docs/book/src/accuracy").join(format!("{pipeline}.toml")))?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    Ok(value.ok_or_else(|| format!("{pipeline}: no {key}"))?.trim_matches('"').to_owned())
}

/// Runs a pipeline once, or reads the summary of an existing run.
fn run(root: &Path, pipeline: &str, model: Option<&str>, seed: u64) -> Result<Summary, Box<dyn Error>> {
    let work = root.join("target/accuracy");
    let folder = work.join("runs").join(format!("{pipeline}-{}-{seed}", model.unwrap_or("gnn")));
    if let Ok(summary) = Summary::read(&folder) {
        return Ok(summary);
    }
    eprintln!("{pipeline} {} seed {seed}", model.unwrap_or_default());
    let file = root.join("docs/book/src/accuracy").join(format!("{pipeline}.toml"));
    let mut command = Command::new(program()?);
    command.arg("run").arg(file).arg("--quiet").arg("--run-dir").arg(&folder);
    let mut set = |key: &str, value: String| _ = command.arg("--set").arg(format!("{key}={value}"));
    set("train.seed", seed.to_string());
    set("partition.out", work.join("prepared").join(pipeline).display().to_string());
    if let Some(kind) = model {
        set("model.kind", kind.to_owned());
    }
    let data = std::env::var_os("GNNFLOW_TEST_DATA").map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let name = setting(root, pipeline, "nodes")?;
    let name = Path::new(&name).parent().and_then(Path::file_name).ok_or("the pipeline has no graph folder")?;
    set("graph.nodes", data.join(name).join("nodes.parquet").display().to_string());
    set("graph.edges", data.join(name).join("edges.parquet").display().to_string());
    let status = command.status()?;
    if !status.success() {
        return Err(format!("{pipeline}, seed {seed}: gnnflow ended with {status}").into());
    }
    Ok(Summary::read(&folder)?)
}

/// Returns the path of the program built with this example.
fn program() -> Result<PathBuf, Box<dyn Error>> {
    let folder = std::env::current_exe()?;
    let folder = folder.ancestors().nth(2).ok_or("the folder of this example is unknown")?;
    let program = folder.join("gnnflow");
    if !program.exists() {
        return Err(format!("{} is missing; run `cargo build --release`", program.display()).into());
    }
    Ok(program)
}

/// Formats the page.
fn page(table: &str) -> Result<String, Box<dyn Error>> {
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]);
    let date = first_line("date", &["-u", "+%F"]);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(" : unknown processor");
    let cpu = cpu.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "# Accuracy on real graphs\n\n\
         The table shows test accuracy in per cent, or the named metric, at the epoch with the best validation metric. Graphs without validation data use the last epoch.\n\
         Values are the mean and standard deviation over training seeds. All seeds use the same split of the data.\n\n\
         | column | meaning |\n\
         |---|---|\n\
         | perceptron | the same pipeline with `model.kind = \"mlp\"`, which reads features and no edges. Empty: not run. Graphs without features have no perceptron; their pipelines [learn rows](embeddings.md) |\n\
         | gain | the model's result minus the perceptron's |\n\
         | bar | the smallest mean that `examples/accuracy.rs` accepts |\n\
         | published | results in papers |\n\
         | seconds | training and evaluation of one seed, on a machine that also did other work |\n\n\
         | pipeline | model | seeds | test accuracy | perceptron | gain | bar | published | seconds |\n\
         |---|---|---|---|---|---|---|---|---|\n\
         {table}\n\
         Made on {date} by `cargo run --release --example accuracy`, commit {commit}, {cores} cores of {cpu}.\n\
         Each pipeline file describes its graph and its split. The graphs are public, and are not part of this repository.\n"
    ))
}

/// Returns the first line of a command's output, or "unknown".
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or("unknown").to_owned()
}
