//! `gnnflow sweep`: runs a pipeline with all combinations of some values.

use super::compare::show;
use super::context::{Context, Pipeline};
use crate::compare::Comparison;
use crate::error::Error;
use crate::sweep::{SweptRun, Varied, check_keys, combinations, folder_name, sweep};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow sweep pipeline.toml --vary train.seed=1,2,3,4,5
  gnnflow sweep pipeline.toml --vary model.kind=sage,gat --vary train.fanouts=[10,5],[15,10]
  gnnflow sweep pipeline.toml --vary model.hidden=64,128 --set train.epochs=20 --out runs/widths";

/// Run a pipeline with all combinations of some values, and compare the runs, the best first.
///
/// The runs are executed one after the other, each in its own folder. If a sweep is started again, runs that have finished are not
/// repeated, and a run that was interrupted is resumed. To repeat a run, remove its folder.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Sweep {
    #[command(flatten)]
    pipeline: Pipeline,
    /// A key and its values; may be repeated. Values are as for `--set`; commas inside of brackets or quotes belong to a value.
    #[arg(long = "vary", value_name = "KEY=VALUE,...", required = true)]
    varied: Vec<String>,
    /// Number of processes of each run.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    processes: u16,
    /// Folder of the run folders [default: runs/NAME-sweep].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Sweep {
    pub(super) fn execute(&self, context: &Context) -> Result<u8, Error> {
        let varied = self.varied.iter().map(|text| Varied::parse(text)).collect::<Result<Vec<_>, _>>()?;
        check_keys(&varied, self.pipeline.sets())?;
        let all = combinations(&varied);
        let name = self.pipeline.load_with(&context.registry, &all[0])?.name;
        let folder = self.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("{name}-sweep")));
        // All pipelines are checked before the first run starts.
        let runs = all.into_iter().map(|settings| {
            let config = self.pipeline.load_with(&context.registry, &settings)?;
            let prepares = config.graph.dataset.is_none();
            if prepares {
                config.check_processes(usize::from(self.processes), config.parts())?;
            }
            let mut arguments = self.pipeline.arguments(&settings);
            arguments.push(format!("--processes={}", self.processes).into());
            if context.console.is_silent() {
                arguments.push("--quiet".into());
            }
            let dir = folder.join(folder_name(&settings));
            let dataset = prepares.then(|| (config.dataset_folder().to_owned(), config.dataset_hash()));
            let checkpoint_on_signal = config.train.as_ref().is_some_and(|train| train.checkpoint_on_signal);
            Ok(SweptRun { hash: config.hash(), dir, dataset, arguments, settings, checkpoint_on_signal })
        });
        let runs = runs.collect::<Result<Vec<_>, Error>>()?;
        let swept = sweep(&folder, &runs, &context.console)?;
        if !swept.finished.is_empty() && swept.code != 130 {
            let page = folder.join("compare.html");
            show(context, &Comparison::read(&swept.finished, &context.registry.names())?.best_first(), Some(&page))?;
            context.console.say(&format!("charts of all runs: {}", page.display()));
        }
        Ok(swept.code)
    }
}
