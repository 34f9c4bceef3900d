//! Several runs side by side: their results, the keys in which they differ, and means over seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gnnflow_pipelines::config::{Metric, Registered};
use gnnflow_pipelines::summary::{EpochRecord, Scores};
use gnnflow_pipelines::{Error, Summary, defines_results, read_settings};
use serde::Serialize;
use serde_json::Value;

/// Values of keys, by dotted paths.
pub type Settings = BTreeMap<String, Value>;

/// The key whose values are seeds: runs that differ in it only are repetitions.
const SEED: &str = "train.seed";
/// The key that names a run.
const NAME: &str = "name";

/// Several runs. It serializes as the output of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The validation metric that selects the best epoch, if it is the same in all trained runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The keys in which the pipelines differ, without `name`.
    pub keys: Vec<String>,
    /// The runs, in the given order.
    pub runs: Vec<ComparedRun>,
    /// Groups of at least two finished runs whose results differ only by `train.seed`.
    pub over_seeds: Vec<OverSeeds>,
    /// Groups of at least two runs whose best models have the same bits, by their numbers in `runs`.
    pub same_models: Vec<Vec<usize>>,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRun {
    /// The run folder.
    pub run: PathBuf,
    /// Whether the run has ended. If not, the results are those of its epochs so far.
    pub finished: bool,
    /// The values of the keys in which the runs differ. A key without a value is absent.
    pub settings: Settings,
    /// The schedule of training.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// Trained epochs.
    pub epochs: usize,
    /// The epoch of the best model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<usize>,
    /// The metric that selects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Metrics of the best model on the validation nodes or edges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Scores>,
    /// Metrics of the best model on the test nodes or edges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Scores>,
    /// Mean seconds of training in an epoch.
    pub seconds_per_epoch: f64,
    /// Seconds of all epochs, with evaluation and checkpoints.
    pub seconds: f64,
    /// Largest peak memory of a process; absent in a run that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// Bytes sent between processes; absent in a run that has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// SHA-256 of the best model's parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// All epochs.
    #[serde(skip)]
    pub records: Vec<EpochRecord>,
}

/// Runs that differ only in their seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverSeeds {
    /// The runs, by their numbers in [`Comparison::runs`].
    pub runs: Vec<usize>,
    /// The values of the other keys.
    pub settings: Settings,
    /// The metric on the validation nodes or edges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Mean>,
    /// The metric on the test nodes or edges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Mean>,
}

/// A mean of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample: the divisor is the number of runs minus one.
    pub deviation: f64,
}

impl Mean {
    /// Returns the mean of at least two values.
    fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (values.len() >= 2).then(|| Self { mean, deviation: (squares / (count - 1.0)).sqrt() })
    }
}

impl ComparedRun {
    /// Reads a run folder. Returns the run with all of its settings.
    fn read(dir: &Path, registered: &Registered) -> Result<Self, Error> {
        let settings = read_settings(dir, registered)?;
        let records = match EpochRecord::read_all(dir) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            records => records?,
        };
        let summary = dir.join(Summary::FILE).is_file().then(|| Summary::read(dir)).transpose()?;
        let metric = records.iter().rev().find_map(|record| record.metric.clone());
        let run = Self::so_far(dir, settings, metric, records);
        Ok(match summary {
            None => run,
            Some(summary) => Self {
                finished: true,
                schedule: summary.schedule,
                epochs: summary.epochs,
                best_epoch: summary.best_epoch,
                val: summary.val,
                test: summary.test,
                seconds: summary.seconds.train,
                peak_rss_bytes: summary.peak_rss_bytes.into_iter().max(),
                bytes_sent: Some(summary.bytes_sent),
                model_sha256: summary.model_sha256,
                ..run
            },
        })
    }

    /// Returns the results of the epochs in `records`.
    fn so_far(dir: &Path, settings: Settings, metric: Option<String>, records: Vec<EpochRecord>) -> Self {
        let best = records.iter().rev().find(|record| record.best);
        let seconds: f64 = records.iter().map(|record| record.seconds).sum();
        let evaluation: f64 = records.iter().filter_map(|record| record.evaluate_seconds).sum();
        Self {
            run: dir.to_owned(),
            finished: false,
            settings,
            schedule: String::new(),
            epochs: records.last().map_or(0, |record| record.epoch),
            best_epoch: best.map(|record| record.epoch),
            metric,
            val: best.and_then(|record| record.val.clone()),
            test: best.and_then(|record| record.test.clone()),
            seconds_per_epoch: seconds / records.len().max(1) as f64,
            seconds: seconds + evaluation,
            peak_rss_bytes: None,
            bytes_sent: None,
            model_sha256: None,
            records,
        }
    }

    /// Returns the metric of this run on validation nodes or edges.
    pub fn val_score(&self) -> Option<f64> {
        self.val.as_ref()?.value(self.metric.as_ref()?)
    }

    /// Returns the metric of this run on test nodes or edges.
    pub fn test_score(&self) -> Option<f64> {
        self.test.as_ref()?.value(self.metric.as_ref()?)
    }
}

impl Comparison {
    /// Reads run folders. `registered` are the names of this program's own parts.
    ///
    /// # Errors
    /// [`Error::Input`] if a folder is not a run, or a file of it is damaged; [`Error::Io`] if one cannot be read.
    pub fn read(dirs: &[PathBuf], registered: &Registered) -> Result<Self, Error> {
        let runs = dirs.iter().map(|dir| ComparedRun::read(dir, registered)).collect::<Result<_, _>>()?;
        Ok(Self::of(runs))
    }

    /// Orders the runs by their validation metric, the best first, and those without one last. If the metrics of the runs differ, the
    /// order remains.
    #[must_use]
    pub fn best_first(mut self) -> Self {
        let Some(metric) = self.metric.as_deref() else { return self };
        let lower = Metric::is_lower_better(metric);
        let rank = |run: &ComparedRun| match run.val_score() {
            Some(score) if !score.is_nan() => {
                if lower {
                    score
                } else {
                    -score
                }
            }
            _ => f64::INFINITY,
        };
        self.runs.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        Self::of(self.runs)
    }

    fn of(mut runs: Vec<ComparedRun>) -> Self {
        let all: BTreeSet<String> = runs.iter().flat_map(|run| run.settings.keys()).cloned().collect();
        let differs = |key: &str| runs.windows(2).any(|pair| pair[0].settings.get(key) != pair[1].settings.get(key));
        let keys: Vec<String> = all.into_iter().filter(|key| key != NAME && differs(key)).collect();
        for run in &mut runs {
            run.settings.retain(|key, _| keys.contains(key));
        }
        let metrics: BTreeSet<&String> = runs.iter().filter_map(|run| run.metric.as_ref()).collect();
        let metric = metrics.first().filter(|_| metrics.len() == 1).map(|metric| (*metric).clone());
        Self { metric, over_seeds: over_seeds(&runs), same_models: same_models(&runs), keys, runs }
    }
}

/// Returns the groups of finished runs whose results differ only by `train.seed`. Of runs with the same seed, the first counts.
fn over_seeds(runs: &[ComparedRun]) -> Vec<OverSeeds> {
    let mut groups: Vec<OverSeeds> = Vec::new();
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    let compared: BTreeSet<String> =
        keys.into_iter().filter(|key| *key != SEED && defines_results(key)).cloned().collect();
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| run.finished) {
        let Some(seed) = run.settings.get(SEED) else { continue };
        let mut settings = run.settings.clone();
        settings.retain(|key, _| compared.contains(key));
        match groups.iter_mut().find(|group| group.settings == settings) {
            Some(group) if group.runs.iter().any(|&other| runs[other].settings.get(SEED) == Some(seed)) => {}
            Some(group) => group.runs.push(number),
            None => groups.push(OverSeeds { runs: vec![number], settings, val: None, test: None }),
        }
    }
    groups.retain(|group| group.runs.len() >= 2);
    for group in &mut groups {
        let mean = |score: fn(&ComparedRun) -> Option<f64>| {
            Mean::of(&group.runs.iter().map(|&run| score(&runs[run])).collect::<Option<Vec<f64>>>()?)
        };
        (group.val, group.test) = (mean(ComparedRun::val_score), mean(ComparedRun::test_score));
    }
    groups
}

fn same_models(runs: &[ComparedRun]) -> Vec<Vec<usize>> {
    let mut by_hash: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, run) in runs.iter().enumerate() {
        if let Some(hash) = &run.model_sha256 {
            by_hash.entry(hash).or_default().push(number);
        }
    }
    let mut groups: Vec<Vec<usize>> = by_hash.into_values().filter(|group| group.len() >= 2).collect();
    groups.sort();
    groups
}

#[cfg(test)]
impl Comparison {
    /// Runs with one layer width and one seed each, and their validation accuracy.
    pub(crate) fn example(runs: &[(u32, u32, f64)]) -> Self {
        let scores = |accuracy| Scores { nodes: 10, loss: 0.5, metrics: [("accuracy".to_owned(), accuracy)].into() };
        let run = |&(hidden, seed, accuracy): &(u32, u32, f64)| {
            let settings = [
                (NAME.to_owned(), format!("{hidden}-{seed}").into()),
                ("graph.nodes".to_owned(), "nodes.parquet".into()),
                ("model.hidden".to_owned(), hidden.into()),
                (SEED.to_owned(), seed.into()),
            ];
            let record = |epoch| EpochRecord {
                epoch,
                loss: 1.0 / epoch as f64,
                seconds: 0.5,
                val: Some(scores(accuracy)),
                test: Some(scores(accuracy / 2.0)),
                metric: Some("accuracy".into()),
                best: epoch == 2,
                ..EpochRecord::default()
            };
            let dir = PathBuf::from(format!("runs/hidden={hidden},seed={seed}"));
            let run =
                ComparedRun::so_far(&dir, settings.into(), Some("accuracy".into()), (1..=3).map(record).collect());
            ComparedRun { finished: true, model_sha256: Some(format!("{accuracy}")), ..run }
        };
        Self::of(runs.iter().map(run).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_differ_are_compared() {
        let compared = Comparison::example(&[(16, 1, 0.5), (32, 1, 0.75)]);
        assert_eq!(compared.keys, ["model.hidden"]);
        assert_eq!(compared.metric.as_deref(), Some("accuracy"));
        assert_eq!(compared.runs[1].settings, [("model.hidden".to_owned(), 32.into())].into());
        assert_eq!((compared.runs[0].best_epoch, compared.runs[0].epochs, compared.runs[0].seconds), (Some(2), 3, 1.5));
        assert!(compared.over_seeds.is_empty() && compared.same_models.is_empty());
    }

    #[test]
    fn runs_with_other_seeds_have_a_mean() {
        let all = [(16, 1, 0.5), (32, 1, 0.75), (16, 2, 0.7), (16, 2, 0.7), (32, 3, 0.75)];
        let compared = Comparison::example(&all);
        let [narrow, wide] = &compared.over_seeds[..] else { panic!("{compared:?}") };
        // The second run with seed 2 is no repetition.
        assert_eq!((&narrow.runs[..], &wide.runs[..]), (&[0, 2][..], &[1, 4][..]));
        let mean = narrow.val.unwrap();
        assert!((mean.mean - 0.6).abs() < 1e-12 && (mean.deviation - 0.02_f64.sqrt()).abs() < 1e-12, "{mean:?}");
        assert_eq!(wide.test, Some(Mean { mean: 0.375, deviation: 0.0 }));
        assert_eq!(compared.same_models, [vec![1, 4], vec![2, 3]]);
    }

    #[test]
    fn best_run_is_the_first() {
        let best = Comparison::example(&[(16, 1, 0.5), (32, 1, f64::NAN), (64, 1, 0.75)]).best_first();
        let order: Vec<_> = best.runs.iter().map(|run| run.settings["model.hidden"].as_u64().unwrap()).collect();
        assert_eq!(order, [64, 16, 32]);
    }
}
