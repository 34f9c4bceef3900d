//! Inference of some nodes: those of a list, or of a split.

use gnnflow_data::dump::NodeListTable;
use gnnflow_nn::Model;
use sha2::{Digest, Sha256};

use super::Run;
use super::finish::Inferred;
use super::refresh::MOST_ROWS;
use crate::collectives::Driver;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::evaluate::edge_evaluation::EdgeEvaluation;
use crate::neighborhood::{self, read::rows_read};
use crate::outputs::output_nodes::OutputNodes;
use crate::outputs::summary::Chosen;
use crate::runtime::job::{Scope, Work};

impl Run<'_> {
    /// Returns the own nodes whose results are asked for, by global ids, ascending; `None` for all nodes.
    ///
    /// # Errors
    /// If the list of nodes cannot be read, or differs between the processes.
    pub(super) fn chosen_nodes(&mut self, driver: &mut Driver<'_>) -> Result<Option<Vec<u32>>, Error> {
        let job = self.job;
        let Work::Infer { scope, .. } = &job.work else { return Ok(None) };
        let (context, rank) = (&self.context, self.context.worker);
        Ok(match scope {
            Scope::All | Scope::Changed(_) => None,
            Scope::Listed(file) => {
                let busy = job.runtime.busy("reading the list of nodes");
                let mut nodes = NodeListTable { files: vec![file.clone()] }.read(&job.dataset)?;
                drop(busy);
                let digest: [u8; 32] = Sha256::digest(bytemuck::cast_slice::<u32, u8>(&nodes)).into();
                let digests = self.collectives.all_gather(driver, &digest)?;
                if digests.iter().any(|other| *other != digest) {
                    let message =
                        format!("{}: the processes have different lists; copy one file to all hosts", file.display());
                    return Err(Error::Input(message));
                }
                nodes.retain(|&node| context.graph.hosts(node));
                Some(nodes)
            }
            Scope::Split(split) => {
                let of_part = |part: usize| {
                    let partition = context.parts.get(part);
                    let (first, splits) = (partition.range.start as u32, partition.nodes.split());
                    let own = splits.iter().zip(first..).filter(|(own, _)| usize::from(**own) == *split as usize);
                    own.map(|(_, node)| node).collect::<Vec<_>>()
                };
                Some(context.placement.parts_of(rank).flat_map(of_part).collect())
            }
        })
    }

    /// Whether edges are neither predicted nor evaluated: if a list names the sources of recommendations, or if links have no held-out edges.
    pub(super) fn predicts_nothing(&self) -> bool {
        let listed = matches!(&self.job.work, Work::Infer { scope: Scope::Listed(_), .. });
        match &self.edges {
            None => false,
            Some(EdgeEvaluation::Links(..)) => listed || self.job.holds_out_no_edges(),
            Some(EdgeEvaluation::Classification(_)) => listed,
        }
    }

    /// Computes the results of all nodes, which may be recommended, for the sources `own`.
    pub(super) fn infer_sources(&mut self, driver: &mut Driver<'_>, own: Vec<u32>) -> Result<Inferred, Error> {
        self.infer_all(driver)?;
        let nodes = OutputNodes::some(driver, &self.context, &mut self.collectives, own)?;
        Ok(Inferred { evaluation: Evaluation::default(), nodes, refreshed: None, writing: None, chosen: None })
    }

    /// Computes the results of the nodes `own` of all workers from the rows that they read.
    pub(super) fn infer_chosen(&mut self, driver: &mut Driver<'_>, own: Vec<u32>) -> Result<Inferred, Error> {
        let mut stages = self.compute_thread.call(|compute| compute.with_model(Model::stages));
        let uses_edges = self.job.config.model.as_ref().is_some_and(|model| model.uses_edges());
        stages.iter_mut().for_each(|stage| stage.edges &= uses_edges);
        let samples = self.inference.samples();
        let graph = &self.context.graph;
        let rows = rows_read(driver, &mut self.collectives, (graph, samples.as_deref()), &stages, &own)?;
        let layers = neighborhood::layers(&stages);
        let counts = [own.len(), layers.iter().map(|&stage| rows[stage].len()).sum()].map(|count| count as u64);
        let counts = self.collectives.all_reduce_counts(driver, &counts)?;
        if counts[0] == 0 && self.context.worker == 0 {
            driver.runtime.say("note: the list or split has no nodes, so the results are empty");
        }
        let all_rows = self.job.dataset.manifest().nodes * layers.len() as u64;
        // A pass over all nodes reads rows in order.
        let all = counts[1] as f64 > MOST_ROWS * all_rows as f64;
        if all {
            self.infer_all(driver)?;
        } else {
            self.inference.pass_over(driver, &rows)?;
        }
        let evaluation = match &self.job.work {
            Work::Infer { scope: Scope::Split(split), .. } => self.evaluate_results(driver)?.of_split(*split),
            _ => Evaluation::default(),
        };
        let nodes = OutputNodes::some(driver, &self.context, &mut self.collectives, own)?;
        let computed_rows = if all { all_rows } else { counts[1] };
        let chosen = Some(Chosen { nodes: counts[0], computed_rows, all_rows });
        Ok(Inferred { evaluation, nodes, refreshed: None, writing: None, chosen })
    }
}
