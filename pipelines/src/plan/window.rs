//! How many steps may be under way in the memory that there is.

use super::embedding;
use crate::config::{Bytes, Config, Schedule, Train};
use crate::error::Error;
use gnnflow_data::format::bytes;

/// Most steps that are under way when nobody has said how many: more than hide a round trip and a slow step.
const MOST_WINDOW: usize = 8;

/// How many steps may be under way, by what each number of them needs.
pub(super) fn window(config: &Config, needs: impl Fn(usize) -> u64) -> Result<usize, Error> {
    let Some(train) = &config.train else { return Ok(2) };
    // Rows may be so far behind only if so many steps are under way.
    let usual = embedding::of(config).map_or(2, |embedding| (embedding.staleness() + 1).max(2));
    let Some(memory) = train.memory else { return Ok(train.window.unwrap_or(usual)) };
    let fits = |window: &usize| needs(*window) <= memory.0;
    let most = (1..=train.window.unwrap_or(MOST_WINDOW)).rev().find(fits);
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
                None if train.is_whole_graph() => whole_graph(train).into(),
                None => "smaller batches or fanouts, or more processes, take less".into(),
            };
            let under_way = match train.is_whole_graph() {
                true => ", though rows of the whole graph may lie in files".to_owned(),
                false => format!(" with {window} steps under way"),
            };
            let message = format!(
                "train.memory is {memory}, but a process would need about {}{under_way}{}; {hint}",
                bytes(needed),
                if cache > 0 { format!(" and a cache of {}", bytes(cache)) } else { String::new() },
            );
            Err(Error::Usage(message))
        }
    }
}

/// What takes less where every step is over the whole graph: its rows are in files already.
fn whole_graph(train: &Train) -> &'static str {
    match train.schedule {
        Schedule::TensorParallel(_) => {
            "more train.schedule.intervals, a smaller train.schedule.chunk_memory or infer.batch, a narrower model (model.hidden), or more \
             partitions and processes take less"
        }
        _ => {
            "more train.schedule.intervals, a smaller infer.batch, a narrower model (model.hidden), or more partitions and processes \
             take less"
        }
    }
}
