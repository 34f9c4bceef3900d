//! `train.schedule = "auto"`: estimates the time that each schedule needs to learn the same, and chooses the fastest.
//!
//! The choice depends on the pipeline file, the dataset and the number of partitions, as results do, and not on the number of
//! processes: each partition counts as a process. A schedule must support the pipeline ([`rules`](crate::config)) and fit into
//! `train.memory`. [`super::schedule_cost`] estimates the seconds of its epochs, by `train.schedule.rates`.
//!
//! An epoch of batches updates the parameters once per step, and an epoch of the full graph once. [`epochs_like_one`] says how many epochs of
//! a schedule make the progress of one epoch of `mini-batch`; `benches/schedules.py` measures these numbers. The file counts epochs of
//! `mini-batch`; if it is not possible, of `partition-parallel`, or else of the full graph. If another schedule is chosen, all keys that count
//! epochs are multiplied accordingly, so that the run learns as much as the file asks for.

use gnnflow_data::prepare::Quality;

use super::Sizes;
use super::epochs;
use super::schedule_cost::{CostModel, Estimate};
use crate::config::schedule::{Auto, AutoCandidate, Rates};
use crate::config::{AutoSchedule, Candidate, Config, Schedule};
use crate::error::Error;
use gnnflow_data::format::bytes;

/// Returns how many epochs of a schedule make the progress of one epoch of `mini-batch`, which has so many `steps`.
///
/// A gradient of all training nodes has less noise than one of a batch, so that fewer updates are enough: 0.8 to 0.9 times as many for 3 and 7
/// steps, 0.5 for 19, 0.4 for 61. The exponent is the median of five graphs. Averaged parameters need 1 to 1.8 times as many epochs with 2 partitions, 2 to 3 with 16.
fn epochs_like_one(schedule: &AutoCandidate, steps: u64, parts: usize) -> f64 {
    match schedule {
        AutoCandidate::MiniBatch(_) => 1.0,
        AutoCandidate::PartitionParallel(_) => 1.0 + 0.4 * (parts.max(1) as f64).log2(),
        AutoCandidate::FullGraph(_) | AutoCandidate::TensorParallel(_) => (steps.max(1) as f64).powf(0.78),
    }
}

fn auto(config: &Config) -> Option<&Auto> {
    match &config.train.as_ref()?.schedule {
        Schedule::Auto(auto) => Some(auto),
        _ => None,
    }
}

impl AutoSchedule {
    /// Chooses the schedule of `config` for a graph of these sizes. `quality` is that of the prepared dataset.
    ///
    /// # Errors
    /// If no schedule supports the pipeline; other errors of [`Plan::new`](super::Plan::new).
    pub fn new(config: &Config, graph: &Sizes, quality: Option<&Quality>) -> Result<Self, Error> {
        let listed = auto(config).map(|auto| auto.candidates.clone()).unwrap_or_default();
        let rates = auto(config).map_or_else(Rates::default, |auto| auto.rates.clone());
        let model = CostModel { graph, rates, quality };
        let all = listed.iter().map(|schedule| model.estimate(config, schedule.clone().into()));
        let mut estimates = all.collect::<Result<Vec<Estimate>, _>>()?;
        let steps_per_epoch = count_epochs(&listed, &mut estimates, graph.parts.len());
        let candidates: Vec<Candidate> = estimates.into_iter().map(|estimate| estimate.candidate).collect();
        let usable = candidates.iter().filter(|candidate| candidate.refused.is_none());
        let Some(best) = usable.min_by(|a, b| a.seconds().total_cmp(&b.seconds())).cloned() else {
            let reasons: Vec<String> = candidates.iter().map(refusal).collect();
            let message = format!("no candidate supports this pipeline: {}", reasons.join("; "));
            return Err(config.problem("train.schedule", message));
        };
        let on_edges = config.train.as_ref().is_some_and(|train| train.learns_edges());
        let nodes = graph.nodes.max(1) as f64;
        let parts = graph.parts.len().max(1) as f64;
        let most_edges = graph.parts.iter().map(|part| part.edges).max().unwrap_or(0) as f64;
        let mut auto = Self {
            chosen: best.schedule.clone(),
            because: String::new(),
            train_share: (!on_edges).then(|| graph.train.map_or(1.0, |train| train as f64 / nodes)),
            replication_factor: 1.0 + graph.parts.iter().map(|part| part.halo).sum::<u64>() as f64 / nodes,
            edge_cut: quality.map(|quality| quality.edge_cut),
            edge_balance: most_edges * parts / graph.edges.max(1) as f64,
            epoch_factor: best.counts,
            steps_per_epoch,
            candidates,
        };
        auto.because = auto.reason(&best);
        Ok(auto)
    }

    /// Returns the reason of the choice, in one line.
    fn reason(&self, best: &Candidate) -> String {
        let others = self.candidates.iter().filter(|other| other.schedule != best.schedule);
        let mut text = vec![format!("about {} per epoch", seconds(best.compute + best.moving))];
        if self.epoch_factor != 1.0 {
            text.push(format!("keys that count epochs are multiplied by {}", factor(self.epoch_factor)));
        }
        for other in others {
            text.push(match &other.refused {
                Some(_) => refusal(other),
                None => self.disadvantage(best, other),
            });
        }
        text.join("; ")
    }

    /// Returns the share of training nodes after a `word`; nothing for tasks on edges.
    fn share(&self, word: &str) -> String {
        self.train_share.map_or_else(String::new, |share| format!("{word} {:.0} % train nodes", 100.0 * share))
    }

    /// Returns the main reason why `other` is slower than `best`.
    fn disadvantage(&self, best: &Candidate, other: &Candidate) -> String {
        let [compute, moving] = [|c: &Candidate| c.compute, |c: &Candidate| c.moving]
            .map(|of| of(other) * other.counts - of(best) * best.counts);
        let what = match (other.schedule.as_str(), moving > compute) {
            (_, true) => {
                let quality = format!("a replication factor of {:.2}", self.replication_factor);
                format!("it sends {} in {} rounds, with {quality}", bytes(other.bytes), other.rounds)
            }
            ("mini-batch", false) => format!("batches recompute overlapping neighborhoods{}", self.share(", with")),
            ("partition-parallel", false) => "averaged partitions need more epochs".to_owned(),
            ("full-graph", false) if self.edge_balance > 1.1 => {
                format!("the partition with most edges has {:.2} times the mean", self.edge_balance)
            }
            _ => format!("it computes all nodes{}", self.share(" for")),
        };
        let epochs = match other.counts / best.counts {
            1.0 => String::new(),
            times => format!(" and {} times the epochs", factor(times)),
        };
        format!("\"{}\" {}{epochs}: {what}", other.schedule, seconds(other.compute + other.moving))
    }
}

/// Sets the numbers of epochs that make the progress of one epoch of the first possible schedule: `mini-batch`, `partition-parallel`, one of
/// the full graph. Returns the steps in an epoch of batches, if a schedule with batches is possible.
fn count_epochs(listed: &[AutoCandidate], estimates: &mut [Estimate], parts: usize) -> Option<u64> {
    let find = |wanted: fn(&AutoCandidate) -> bool| {
        let mut all = listed.iter().zip(&*estimates);
        all.find(|(schedule, estimate)| wanted(schedule) && estimate.candidate.refused.is_none())
    };
    let of_batches = find(|schedule| matches!(schedule, AutoCandidate::MiniBatch(_)))
        .or_else(|| find(|schedule| matches!(schedule, AutoCandidate::PartitionParallel(_))));
    let (reference, steps) = of_batches.map(|(schedule, estimate)| (schedule, estimate.steps_per_epoch))?;
    let one = epochs_like_one(reference, steps, parts);
    for (schedule, Estimate { candidate, .. }) in listed.iter().zip(estimates) {
        if candidate.refused.is_none() {
            candidate.counts = epochs_like_one(schedule, steps, parts) / one;
        }
    }
    Some(steps)
}

fn refusal(candidate: &Candidate) -> String {
    format!("not \"{}\": {}", candidate.schedule, candidate.refused.as_deref().unwrap_or_default())
}

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 0.1 => format!("{s:.1} s"),
        s => format!("{:.2} ms", 1e3 * s),
    }
}

/// Formats a factor with two digits.
pub(super) fn factor(factor: f64) -> String {
    match factor {
        f if f >= 9.95 => format!("{f:.0}"),
        f if f >= 0.995 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

impl Config {
    /// Replaces `train.schedule = "auto"` by a schedule.
    ///
    /// Processes choose equally if they have the same prepared dataset. Before preparation the choice may differ.
    ///
    /// # Errors
    /// If no schedule supports the pipeline, or the size of the input cannot be read.
    pub fn resolve_schedule(&mut self) -> Result<(), Error> {
        if self.train.as_ref().is_none_or(|train| !matches!(train.schedule, Schedule::Auto(_))) {
            return Ok(());
        }
        let graph = Sizes::of(self, 1)?;
        // A dataset of an older version may have no report.
        let reported = graph.prepared && self.dataset_folder().join(Quality::FILE).exists();
        let quality = reported.then(|| Quality::read(self.dataset_folder())).transpose()?;
        let auto = AutoSchedule::new(self, &graph, quality.as_ref())?;
        let listed = self::auto(self).map(|auto| auto.candidates.clone()).unwrap_or_default();
        if let Some(chosen) = listed.into_iter().find(|known| known.word() == auto.chosen) {
            *self = self.with_schedule(chosen.into());
        }
        if let Some(train) = &mut self.train
            && let Some(steps) = auto.steps_per_epoch.filter(|_| auto.epoch_factor != 1.0)
        {
            train.epochs.get_or_insert_with(|| epochs::epochs(steps));
            train.scale_epochs(auto.epoch_factor);
        }
        self.source.auto_schedule = Some(auto);
        Ok(())
    }

    /// Returns how `train.schedule = "auto"` was resolved.
    pub fn auto_schedule(&self) -> Option<&AutoSchedule> {
        self.source.auto_schedule.as_ref()
    }

    /// Returns the pipeline with another schedule and the same model: `tensor-parallel` does not decouple a `gcn` here.
    pub(crate) fn with_schedule(&self, schedule: Schedule) -> Self {
        let mut config = self.clone();
        if let (Some(train), Some(model)) = (&mut config.train, &mut config.model) {
            train.schedule = schedule;
            if train.is_full_graph() {
                train.fanouts = None;
            }
            if train.schedule.is_tensor_parallel() && model.kind == "gcn" && model.decoupled.is_none() {
                model.decoupled = Some(false);
            }
        }
        config
    }

    /// Returns why a schedule does not support the pipeline, if so.
    pub(super) fn refusal(&self, schedule: &str) -> Option<&str> {
        self.source.refusals.iter().find(|(refused, _)| refused == schedule).map(|(_, why)| why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Registered;
    use crate::config::schedule::TensorParallel;
    use crate::plan::PartSize;

    /// A prepared graph of 4 partitions with 250,000 nodes each.
    fn graph(train: u64, halo: u64, edges: [u64; 4]) -> Sizes {
        graph_of(250_000, train, halo, edges)
    }

    /// A prepared graph of 4 partitions with `nodes` nodes each.
    fn graph_of(nodes: u64, train: u64, halo: u64, edges: [u64; 4]) -> Sizes {
        let part = |edges| PartSize { nodes, edges, train: train / 4, halo, ..PartSize::default() };
        Sizes { features: 128, classes: Some(16), train: Some(train), ..Sizes::of_parts(edges.map(part).to_vec()) }
    }

    fn config(model: &str, train: &str) -> Result<Config, Error> {
        let text = format!(
            "[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\nundirected = true\n[partition]\nparts = 4\n\
             [model]\n{model}\n[train]\nschedule.kind = 'auto'\n{train}"
        );
        Config::parse(&text, Path::new("/nowhere/p.toml"), &[], &Registered::default())
    }

    fn chosen(model: &str, train: &str, graph: &Sizes) -> AutoSchedule {
        AutoSchedule::new(&config(model, train).unwrap(), graph, None).unwrap()
    }

    const SAGE: &str = "kind = 'sage'\nlayers = 3\nhidden = 128";

    #[test]
    fn each_schedule_is_chosen_for_some_graph() {
        let even = [5_000_000; 4];
        // Few train nodes: batches read a small part of the graph.
        let few = chosen(SAGE, "", &graph(4_000, 20_000, even));
        assert_eq!(few.chosen, "mini-batch", "{few:#?}");
        assert!(few.because.contains("0 % train nodes"), "{}", few.because);
        // Many train nodes, and few edges between partitions. A batch reads most of the graph.
        let local = chosen(SAGE, "", &graph_of(25_000, 70_000, 2_000, [500_000; 4]));
        assert_eq!(local.chosen, "full-graph", "{local:#?}");
        assert!((local.replication_factor, local.edge_balance) == (1.08, 1.0));
        // Many train nodes, many edges between partitions, and one partition with most edges.
        let skewed = chosen(SAGE, "", &graph_of(25_000, 70_000, 70_000, [200_000, 200_000, 200_000, 1_400_000]));
        assert_eq!(skewed.chosen, "tensor-parallel", "{skewed:#?}");
        assert!(skewed.because.contains("\"full-graph\""), "{}", skewed.because);
        for auto in [few, local, skewed] {
            let best = auto.candidates.iter().find(|candidate| candidate.schedule == auto.chosen).unwrap();
            assert!(auto.candidates.iter().all(|other| other.seconds() >= best.seconds()), "{auto:#?}");
        }
    }

    #[test]
    fn the_only_possible_schedule_is_chosen() {
        let graph = graph(700_000, 20_000, [5_000_000; 4]);
        // Without a cut of its partitions, training them alone is not faster.
        for (model, train, only, others) in [
            (SAGE, "fanouts = [5, 5, 5]", "mini-batch", 2),
            (SAGE, "sampler = 'labor'", "mini-batch", 2),
            ("kind = 'gine'", "", "mini-batch", 2),
            (SAGE, "task = 'link-prediction'", "mini-batch", 3),
        ] {
            let auto = chosen(model, train, &graph);
            assert_eq!(auto.chosen, only, "{model} {train}: {auto:#?}");
            let refused = auto.candidates.iter().filter(|candidate| candidate.refused.is_some()).count();
            assert_eq!(refused, others, "{auto:#?}");
            assert_eq!(auto.because.matches("not \"").count(), others, "{}", auto.because);
        }
        for (options, only) in [
            ("{ kind = 'full-graph', mode = 'async', staleness = 1 }", "full-graph"),
            ("{ kind = 'tensor-parallel', chunk_memory = '1MiB' }", "tensor-parallel"),
        ] {
            let auto = chosen(SAGE, &format!("evaluate_every = 0\nschedule.candidates = [{options}]"), &graph);
            assert_eq!((auto.chosen.as_str(), auto.candidates.len()), (only, 1), "{auto:#?}");
        }
        let candidates = "schedule.candidates = ['tensor-parallel', { kind = 'full-graph', mode = 'async' }]\n";
        let error = config(SAGE, &format!("{candidates}fanouts = [5, 5, 5]")).unwrap_err().to_string();
        assert!(error.contains("train.fanouts") && error.contains("samples nothing"), "{error}");
        let error =
            config(SAGE, "schedule.candidates = ['full-graph', { kind = 'full-graph', intervals = 2 }]").unwrap_err();
        assert!(error.to_string().contains("train.schedule.candidates[1]: `full-graph` is listed twice"), "{error}");
        let error = config(SAGE, "sampler = 'nope'").unwrap_err().to_string();
        assert!(error.contains("train.sampler: expected one of"), "{error}");
    }

    #[test]
    fn schedules_that_do_not_fit_into_memory_are_not_chosen() {
        // Full-graph tables may be in files; batches must be in memory.
        let sizes = graph(4_000, 20_000, [5_000_000; 4]);
        let free = chosen(SAGE, "", &sizes);
        let needs = free.candidates[0].memory;
        let fits = chosen(SAGE, &format!("memory = '{}B'", needs * 2), &sizes);
        assert_eq!(fits.chosen, "mini-batch", "{fits:#?}");
        let scarce = chosen(SAGE, &format!("memory = '{}B'\n", needs / 2), &sizes);
        assert!(scarce.candidates[0].refused.as_ref().is_some_and(|why| why.contains("train.memory")), "{scarce:#?}");
        assert_ne!(scarce.chosen, "mini-batch");
    }

    #[test]
    fn with_schedule_keeps_the_model_and_resolves_to_a_valid_pipeline() {
        let config = config("kind = 'gcn'", "").unwrap();
        let column_parallel = config.with_schedule(Schedule::TensorParallel(TensorParallel::default()));
        assert_eq!(column_parallel.model.as_ref().and_then(|model| model.decoupled), Some(false));
        for schedule in auto(&config).unwrap().candidates.iter().cloned().map(Schedule::from) {
            let resolved = config.with_schedule(schedule.clone()).resolved_toml();
            let again = Config::parse(&resolved, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
            assert_eq!(again.train.as_ref().map(|train| &train.schedule), Some(&schedule), "{resolved}");
            assert_eq!(again.resolved_toml(), resolved);
        }
    }
}
