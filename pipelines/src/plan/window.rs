//! The number of steps in flight that fit into `train.memory`.

use super::embedding;
use crate::config::{Bytes, Config, Schedule, Train};
use crate::error::Error;
use gnnflow_data::format::{bytes, plural};

/// Default maximum of steps in flight. It suffices to hide a round trip and a slow step.
const MOST_WINDOW: usize = 8;

/// Returns the number of steps in flight without a limit of memory.
pub(super) fn wanted(config: &Config) -> usize {
    let Some(train) = &config.train else { return 2 };
    // On a GPU, one step is sampled, one is copied to the GPU and one is computed at the same time.
    let default = if train.device.is_gpu() { 3 } else { 2 };
    // A staleness of s steps needs s + 1 steps in flight.
    let default = embedding::of(config).map_or(default, |embedding| (embedding.staleness() + 1).max(default));
    train.window.unwrap_or(default)
}

/// Returns the number of steps in flight. `needs` returns the bytes that a process needs for a number of steps. `on_gpu`: the whole graph is on a GPU.
pub(super) fn fitting(config: &Config, on_gpu: bool, needs: impl Fn(usize) -> u64) -> Result<usize, Error> {
    let Some(train) = &config.train else { return Ok(2) };
    let Some(memory) = train.memory else { return Ok(wanted(config)) };
    let fits = |window: &usize| needs(*window) <= memory.0;
    // More steps would take memory of the GPU, of which this limit says nothing.
    let unset = if train.device.is_gpu() { wanted(config) } else { MOST_WINDOW };
    let most = (1..=train.window.unwrap_or(unset)).rev().find(fits);
    match (most, train.window) {
        (Some(most), None) => Ok(most),
        (Some(most), Some(window)) if most == window => Ok(window),
        (most, window) => {
            let (window, cache) = (window.unwrap_or(1), train.cache().unwrap_or(0));
            let needed = needs(window);
            let spare = |needed: u64| Bytes(memory.0.saturating_sub(needed)).rounded_down();
            let hint = match most {
                Some(most) => format!("train.window = {most} fits"),
                None if cache > 0 && needs(1) - cache <= memory.0 => {
                    format!("train.schedule.cache = \"{}\" fits with a window of 1", spare(needs(1) - cache))
                }
                None if on_gpu => {
                    "use a smaller infer.batch, or train.schedule = \"mini-batch\", which holds no edges in memory"
                        .into()
                }
                None if train.is_full_graph() => full_graph(train).into(),
                None => "use smaller batches or fanouts, or more processes".into(),
            };
            let with = match train.is_full_graph() {
                true if on_gpu => ", because the edges of a graph on a GPU are also in memory".to_owned(),
                true => ", even with rows of all nodes in scratch files".to_owned(),
                false => format!(" with {} in flight", plural(window, "step")),
            };
            let message = format!(
                "train.memory is {memory}, but a process needs about {}{with}{}; {hint}",
                bytes(needed),
                if cache > 0 { format!(" and a cache of {}", bytes(cache)) } else { String::new() },
            );
            Err(Error::Usage(message))
        }
    }
}

/// Returns advice on how to save memory in full-graph training. Its rows are in files already.
fn full_graph(train: &Train) -> &'static str {
    match train.schedule {
        Schedule::TensorParallel(_) => {
            "use more train.schedule.intervals, a smaller train.schedule.chunk_memory, infer.batch or model.hidden, or more \
             partitions and processes"
        }
        _ => {
            "use more train.schedule.intervals, a smaller infer.batch or model.hidden, or more partitions and processes"
        }
    }
}
