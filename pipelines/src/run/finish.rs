//! What is left when training has ended: every node by the best model, and all results.

use std::time::Instant;

use timely::worker::Worker;

use super::Run;
use crate::config;
use crate::error::Error;
use crate::outputs;
use crate::outputs::hex;
use crate::outputs::summary::{CacheUse, EmbeddingUse, SCHEMA, Seconds, Summary, Value, WorkerUse};
use crate::runtime::records::TensorUse;

impl Run<'_> {
    /// Computes every node with the best model and writes all results.
    pub(super) fn finish(mut self, worker: &mut Worker) -> Result<Option<Summary>, Error> {
        let begin = Instant::now();
        if let Some(best) = self.best.clone() {
            self.compute_thread.call(move |trainer| trainer.set_params(best))?;
            if let Some(rows) = &self.context.embeddings {
                let busy = self.job.runtime.busy("taking up the best learned rows");
                // SAFETY: nothing is under way.
                unsafe { rows.take_best() };
                drop(busy);
                // Nobody asks for rows that are not those yet.
                self.agreement.by_worker(worker, &*self.job.runtime, &[0])?;
            }
        }
        let embeddings = self.job.config.infer.as_ref().is_some_and(|infer| infer.embeddings);
        let evaluation = self.evaluate(worker, embeddings)?;
        let (mut predictions_sha256, mut model_sha256) = (None, None);
        let (manifest, runtime) = (self.job.dataset.manifest(), &*self.job.runtime);
        if let Some(infer) = &self.job.config.infer {
            if infer.predictions {
                let (logits, path) = (self.inference.results().clone(), self.job.run_dir.join("predictions.parquet"));
                predictions_sha256 = Some(match &self.edges {
                    Some(edges) => edges.predictions(worker, self.job, &self.context, path)?,
                    None => {
                        outputs::predictions(worker, runtime, &self.context, manifest, &logits, infer.scores, path)?
                    }
                });
            }
            if infer.embeddings {
                let carried = self.compute_thread.call(|trainer| trainer.model().carried_dim());
                let (rows, carried) = match self.edges {
                    Some(_) => (self.inference.results().clone(), 0), // they are what is said of edges by
                    None => (self.inference.embeddings().clone(), carried),
                };
                let path = self.job.run_dir.join("embeddings.parquet");
                let dim = rows.dim() - carried;
                let rows = (dim, |node| &rows.row_f32(node)[..dim]);
                outputs::embeddings(worker, runtime, &self.context, manifest, rows, path)?;
            }
        }
        let mut rows_sha256 = String::new();
        if let Some(rows) = &self.context.embeddings {
            let path = self.job.run_dir.join("node_embeddings.parquet");
            let rows = (rows.dim(), |node| rows.row(node));
            rows_sha256 = outputs::embeddings(worker, runtime, &self.context, manifest, rows, path)?;
        }
        if let Some(folder) = &self.folder {
            let params = self.compute_thread.call(|trainer| trainer.model().params().export())?;
            model_sha256 = Some(outputs::weights(&params, &folder.path("model.safetensors"))?);
        }
        let infer_seconds = begin.elapsed().as_secs_f64();
        let meters = [&self.context.meter, &self.context.other_meter];
        let bytes = meters.iter().map(|meter| meter.bytes()).sum();
        let messages = meters.iter().map(|meter| meter.messages()).sum();
        let tensor = self.training.tensor().unwrap_or_default();
        let own: Vec<u64> = [bytes, messages, peak_rss_bytes()]
            .into_iter()
            .chain(self.spent.0.iter().map(|time| time.as_nanos() as u64))
            .chain(self.training.cached().map_or([0; 2], |counts| [counts.hits, counts.misses]))
            .chain([self.context.meter.bytes(), self.context.meter.messages()])
            .chain(self.training.staleness().map_or([0; 3], |stale| [stale.most, stale.sum, stale.batches]))
            .chain([self.context.embeddings.as_ref().map_or(0, |rows| rows.moved())])
            .chain(self.training.rows().unwrap_or_default())
            .chain([self.context.embeddings.as_ref().map_or(0, |rows| rows.reserved())])
            .chain([tensor.workers, tensor.calls, (tensor.seconds * 1e9) as u64, tensor.again, tensor.lost])
            .chain([tensor.tasks, tensor.relaunched, tensor.row_bytes_max])
            .collect();
        let told = self.agreement.by_worker(worker, runtime, &own)?;
        // The files of the layers are unlinked; only the folder is left.
        let _ = std::fs::remove_dir(&self.context.scratch);
        let Some(folder) = &self.folder else { return Ok(None) };
        let sum = |i: usize| told.iter().map(|words| words[i]).sum::<u64>();
        let steps = self.rounds.1.max(1) as f64;
        let slowest = |i: usize| told.iter().map(|words| words[i]).max().unwrap_or(0) as f64 / 1e9;
        let (stale_most, stale_mean) =
            (told.iter().map(|words| words[13]).max().unwrap_or(0), sum(14) as f64 / sum(15).max(1) as f64);
        // That of rows that batches ask for is counted in steps, and stands with them.
        let rows_are_stale = self.context.embeddings.is_some() && !self.train.is_whole_graph();
        let stale = self.training.staleness().filter(|_| !rows_are_stale);
        let has_rows = self.training.rows().is_some();
        let of_worker = |words: &Vec<u64>| WorkerUse {
            bytes_per_step: words[11] as f64 / steps,
            table_bytes: has_rows.then(|| words[17]),
            edge_numbers: has_rows.then(|| words[18]),
            embedding_bytes: self.context.embeddings.as_ref().map(|_| words[19]),
        };
        let tensor = self.training.tensor().map(|_| TensorUse {
            workers: sum(20),
            calls: sum(21),
            seconds: sum(22) as f64 / 1e9,
            again: sum(23),
            lost: sum(24),
            tasks: sum(25),
            relaunched: sum(26),
            row_bytes_max: told.iter().map(|words| words[27]).max().unwrap_or(0),
        });
        let trained = self.trained.as_secs_f64();
        let value = self.job.config.price.as_ref();
        let value = value.map(|price| Value::new(price, trained, worker.peers(), tensor.as_ref()));
        let summary = Summary {
            schema: SCHEMA,
            name: self.job.config.name.clone(),
            seed: self.train.seed,
            schedule: self.train.schedule.to_string(),
            auto_schedule: self.job.config.auto_schedule().cloned(),
            partitions: manifest.parts(),
            processes: worker.peers(),
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
                sample: slowest(3),
                fetch: slowest(4),
                forward: slowest(5),
                backward: slowest(6),
                reduce: slowest(7),
                step: slowest(8),
            },
            bytes_sent: sum(0),
            messages_sent: sum(1),
            rounds_per_step: self.rounds.0 as f64 / steps,
            bytes_per_step: sum(11) as f64 / steps,
            messages_per_step: sum(12) as f64 / steps,
            cache: self.training.cached().map(|_| CacheUse::new(sum(9), sum(10))),
            staleness_max: stale.map(|_| stale_most),
            staleness_mean: stale.map(|_| stale_mean),
            tensor,
            value,
            node_embeddings: self.context.embeddings.as_ref().map(|rows| EmbeddingUse {
                dim: rows.dim(),
                rows_moved: sum(16),
                staleness_max: if rows_are_stale { stale_most } else { 0 },
                staleness_mean: if rows_are_stale { stale_mean } else { 0.0 },
                sha256: rows_sha256,
            }),
            workers: told.iter().map(of_worker).collect(),
            peak_rss_bytes: told.iter().map(|words| words[2]).collect(),
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

/// What the results do not do that a reader would expect of the pipeline.
fn notes(train: &config::Train) -> Vec<String> {
    let later_edges = "evaluation, predictions and embeddings read all edges, also edges that are later than a node's time; \
                       with sampler = \"temporal\" only training leaves later edges out";
    train.sampler.is_temporal().then(|| later_edges.to_owned()).into_iter().collect()
}

/// The most memory that this process has had, in bytes, as the system counts it.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
