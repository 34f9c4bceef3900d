//! The end of a run: exact inference with the best model, and all outputs.

use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use gnnflow_data::format::hex;
use gnnflow_data::process_memory::high_water_mark;

use super::{Run, StageTimes};
use crate::collectives::{self, Driver};
use crate::config;
use crate::context::WorkerContext;
use crate::engine::Staleness;
use crate::error::Error;
use crate::evaluate::node_predictions;
use crate::outputs;
use crate::outputs::summary::{CacheUse, EmbeddingUse, SCHEMA, Seconds, Summary, Value, WorkerUse};
use crate::runtime::records::TensorUse;

/// The counts of a worker.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WorkerReport {
    bytes: u64,
    messages: u64,
    peak_rss_bytes: u64,
    spent: StageTimes,
    cache_hits: u64,
    cache_misses: u64,
    /// Bytes of training steps.
    step_bytes: u64,
    step_messages: u64,
    stale: Staleness,
    rows_moved: u64,
    table_bytes: u64,
    edge_numbers: u64,
    embedding_bytes: u64,
    tensor: TensorUse,
}

impl collectives::Value for WorkerReport {}

impl Run<'_> {
    fn report(&self) -> WorkerReport {
        let WorkerContext { meter, other_meter, embeddings, .. } = &self.context;
        let cache = self.training.cached().map_or([0; 2], |counts| [counts.hits, counts.misses]);
        let [table_bytes, edge_numbers] = self.training.rows().unwrap_or_default();
        WorkerReport {
            bytes: meter.bytes() + other_meter.bytes(),
            messages: meter.messages() + other_meter.messages(),
            peak_rss_bytes: high_water_mark(),
            spent: self.spent,
            cache_hits: cache[0],
            cache_misses: cache[1],
            step_bytes: meter.bytes(),
            step_messages: meter.messages(),
            stale: self.training.staleness().unwrap_or_default(),
            rows_moved: embeddings.as_ref().map_or(0, |rows| rows.updated()),
            table_bytes,
            edge_numbers,
            embedding_bytes: embeddings.as_ref().map_or(0, |rows| rows.reserved()),
            tensor: self.training.tensor().unwrap_or_default(),
        }
    }

    /// Computes all nodes with the best model and writes all outputs.
    pub(super) fn finish(mut self, driver: &mut Driver<'_>) -> Result<Option<Summary>, Error> {
        let begin = Instant::now();
        if let Some(best) = self.best.clone() {
            self.compute_thread.call(move |compute| compute.set_params(best))?;
            if let Some(rows) = &self.context.embeddings {
                let busy = driver.runtime.busy("copying the best learned rows");
                rows.restore_best()?;
                drop(busy);
                // No worker requests rows before all have restored theirs.
                self.collectives.barrier(driver)?;
            }
        }
        let embeddings = self.job.config.infer.as_ref().is_some_and(|infer| infer.embeddings);
        let evaluation = self.evaluate(driver, embeddings)?;
        let (mut predictions_sha256, mut model_sha256) = (None, None);
        let manifest = self.job.dataset.manifest();
        if let Some(infer) = &self.job.config.infer {
            if infer.predictions {
                let (logits, path) = (self.inference.results().clone(), self.job.run_dir.join("predictions.parquet"));
                predictions_sha256 = Some(match &self.edges {
                    Some(edges) => edges.predictions(driver, self.job, &self.context, path)?,
                    None => {
                        let task = self.task.nodes()?;
                        node_predictions::predictions(
                            driver,
                            self.job,
                            &self.context,
                            &**task,
                            &logits,
                            infer.scores,
                            path,
                        )?
                    }
                });
            }
            if infer.embeddings {
                let carried = self.compute_thread.call(|compute| compute.model().carried_dim());
                let (rows, carried) = match self.edges {
                    Some(_) => (self.inference.results().clone(), 0), // the decoder reads the results
                    None => (self.inference.embeddings().clone(), carried),
                };
                let path = self.job.run_dir.join("embeddings.parquet");
                let (dim, rows) = (rows.width() - carried, rows.read()?);
                let rows = (dim, |node| &rows.row(node)[..dim]);
                outputs::embeddings(driver, &self.context, manifest, rows, path)?;
            }
        }
        let mut rows_sha256 = String::new();
        if let Some(rows) = &self.context.embeddings {
            let path = self.job.run_dir.join("node_embeddings.parquet");
            let (dim, rows) = (rows.dim(), rows.read()?);
            let rows = (dim, |node| rows.row(node));
            rows_sha256 = outputs::embeddings(driver, &self.context, manifest, rows, path)?;
        }
        if let Some(folder) = &self.folder {
            let params = self.compute_thread.call(|compute| compute.model().params().export())?;
            model_sha256 = Some(outputs::weights(&params, &folder.path("model.safetensors"))?);
        }
        let infer_seconds = begin.elapsed().as_secs_f64();
        let reports = self.collectives.all_gather(driver, &self.report())?;
        // The scratch files are unlinked already.
        let _ = std::fs::remove_dir(&self.context.scratch);
        let Some(folder) = &self.folder else { return Ok(None) };
        let sum = |of: fn(&WorkerReport) -> u64| reports.iter().map(of).sum::<u64>();
        let most = |of: fn(&WorkerReport) -> u64| reports.iter().map(of).max().unwrap_or(0);
        let steps = self.rounds.1.max(1) as f64;
        let slowest = |of: fn(&WorkerReport) -> u64| most(of) as f64 / 1e9;
        let stale_most = most(|worker| worker.stale.most);
        let stale_mean = sum(|worker| worker.stale.sum) as f64 / sum(|worker| worker.stale.batches).max(1) as f64;
        // The staleness of learned rows in batches is counted in steps, and is part of `node_embeddings`.
        let rows_are_stale = self.context.embeddings.is_some() && !self.train.is_full_graph();
        let stale = self.training.staleness().filter(|_| !rows_are_stale);
        let has_rows = self.training.rows().is_some();
        let of_worker = |worker: &WorkerReport| WorkerUse {
            bytes_per_step: worker.step_bytes as f64 / steps,
            table_bytes: has_rows.then_some(worker.table_bytes),
            edge_numbers: has_rows.then_some(worker.edge_numbers),
            embedding_bytes: self.context.embeddings.as_ref().map(|_| worker.embedding_bytes),
        };
        let tensor = self.training.tensor().map(|_| TensorUse {
            workers: sum(|worker| worker.tensor.workers),
            calls: sum(|worker| worker.tensor.calls),
            seconds: reports.iter().map(|worker| worker.tensor.seconds).sum(),
            again: sum(|worker| worker.tensor.again),
            lost: sum(|worker| worker.tensor.lost),
            tasks: sum(|worker| worker.tensor.tasks),
            relaunched: sum(|worker| worker.tensor.relaunched),
            row_bytes_max: most(|worker| worker.tensor.row_bytes_max),
        });
        let (trained, workers) = (self.trained.as_secs_f64(), self.context.placement.workers());
        let value = self.job.config.price.as_ref();
        let value = value.map(|price| Value::new(price, trained, workers, tensor.as_ref()));
        let summary = Summary {
            schema: SCHEMA,
            name: self.job.config.name.clone(),
            seed: self.train.seed,
            schedule: self.train.schedule.to_string(),
            auto_schedule: self.job.config.auto_schedule().cloned(),
            partitions: manifest.parts(),
            processes: workers,
            threads: self.job.threads,
            sampling_threads: self.split.sampling,
            compute_threads: self.split.compute,
            epochs: self.progress.epochs as usize,
            best_epoch: self.progress.best.map(|(epoch, _)| epoch as usize),
            train: evaluation.train,
            val: evaluation.val,
            test: evaluation.test,
            notes: notes(self.train),
            seconds: Seconds {
                prepare: self.job.prepare_seconds,
                train: trained,
                infer: infer_seconds,
                per_epoch: self.progress.seconds.clone(),
                sample: slowest(|worker| worker.spent.sample),
                fetch: slowest(|worker| worker.spent.fetch),
                forward: slowest(|worker| worker.spent.forward),
                backward: slowest(|worker| worker.spent.backward),
                reduce: slowest(|worker| worker.spent.reduce),
                step: slowest(|worker| worker.spent.step),
            },
            bytes_sent: sum(|worker| worker.bytes),
            messages_sent: sum(|worker| worker.messages),
            rounds_per_step: self.rounds.0 as f64 / steps,
            bytes_per_step: sum(|worker| worker.step_bytes) as f64 / steps,
            messages_per_step: sum(|worker| worker.step_messages) as f64 / steps,
            cache: self
                .training
                .cached()
                .map(|_| CacheUse::new(sum(|worker| worker.cache_hits), sum(|worker| worker.cache_misses))),
            staleness_max: stale.map(|_| stale_most),
            staleness_mean: stale.map(|_| stale_mean),
            tensor,
            value,
            node_embeddings: self.context.embeddings.as_ref().map(|rows| EmbeddingUse {
                dim: rows.dim(),
                rows_moved: sum(|worker| worker.rows_moved),
                staleness_max: if rows_are_stale { stale_most } else { 0 },
                staleness_mean: if rows_are_stale { stale_mean } else { 0.0 },
                sha256: rows_sha256,
            }),
            workers: reports.iter().map(of_worker).collect(),
            peak_rss_bytes: reports.iter().map(|worker| worker.peak_rss_bytes).collect(),
            model_sha256,
            predictions_sha256,
            blocks_sha256: self.train.hash_blocks.then(|| hex(&self.progress.blocks)),
            device: self.train.device.to_string(),
            versions: [("gnnflow".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
        };
        folder.summary(&summary)?;
        Ok(Some(summary))
    }
}

/// Returns remarks on results that may be unexpected.
fn notes(train: &config::Train) -> Vec<String> {
    let later_edges = "evaluation, predictions and embeddings read all edges, including edges later than a node's time; \
                       sampler = \"temporal\" leaves later edges out in training only";
    train.sampler.is_temporal().then(|| later_edges.to_owned()).into_iter().collect()
}
