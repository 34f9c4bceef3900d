//! What a process needs on its GPU, and whether that fits.

use gnnflow_data::format::bytes;
use gnnflow_nn::DeviceMemory;
use serde::Serialize;

use crate::error::LESS_GPU_MEMORY;

/// The memory of a process on its GPU, in bytes. Besides it, the CUDA context and its libraries take some hundred megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceNeeds {
    /// Parameters and their gradients.
    pub parameters: u64,
    /// Features: of all nodes of the graph, or with batches those that the process can read. Not all of them need to be there.
    pub features: u64,
    /// The key `train.schedule.device_cache`.
    #[serde(skip)]
    pub(super) features_limit: Option<u64>,
    /// Whether the process can read the features of all nodes.
    #[serde(skip)]
    pub(super) reads_all: bool,
    /// Edges: of the graph, or of the batches that are there.
    pub edges: u64,
    /// The edges of the whole graph from which batches are sampled on the GPU, a mark for each node, and the arrays of a hop.
    pub topology: u64,
    /// Input rows of a batch.
    pub batch_inputs: u64,
    /// Batches whose input rows are there at the same time, unless those of all nodes are.
    pub batches: u64,
    /// About the rows of layers that a pass or a task holds at the same time, with gradients.
    pub rows: u64,
    /// A chunk of exact inference.
    pub inference: u64,
    /// Memory without which training cannot begin, besides the parameters, which are there already: exact numbers only.
    #[serde(skip)]
    pub(super) least: u64,
}

impl DeviceNeeds {
    /// Returns the memory for features on a GPU with `free` bytes of free memory: `train.schedule.device_cache`, or at most half of it, and nothing that
    /// batches or inference need.
    pub(crate) fn room_for_features(&self, free: u64) -> u64 {
        let others =
            self.topology + (self.edges + (self.batches + 1) * self.batch_inputs + self.rows).max(self.inference);
        self.features_limit.unwrap_or_else(|| (free / 2).min(free.saturating_sub(others)))
    }

    /// Returns the features that are on a GPU with `free` bytes of free memory, which batches read there.
    pub fn held_features(&self, free: u64) -> u64 {
        match self.batches {
            0 => self.features,
            _ => self.features.min(self.room_for_features(free)),
        }
    }

    /// Returns the input rows of batches on a GPU with `free` bytes of free memory.
    pub fn inputs(&self, free: u64) -> u64 {
        let held = self.held_features(free);
        let batches = match held {
            0 => self.batches,
            _ if self.reads_all && held == self.features => self.batches.min(1),
            // A pass gathers its rows from those that are there and those that were copied.
            _ => self.batches + 1,
        };
        batches * self.batch_inputs
    }

    /// Returns all that is needed of a GPU with `free` bytes of free memory: for training or for inference, whichever takes more.
    pub fn total(&self, free: u64) -> u64 {
        let in_turn = (self.edges + self.inputs(free) + self.rows).max(self.inference);
        self.parameters + self.held_features(free) + self.topology + in_turn
    }

    /// Compares the needs with the memory of the GPU, which `processes` processes share. Its parameters are there already.
    pub(crate) fn compare(&self, found: DeviceMemory, processes: usize) -> Fit {
        let DeviceMemory { free, total, .. } = found;
        let by = if processes > 1 { format!(" for the {processes} processes that share it") } else { String::new() };
        // Others that share it may have begun already, and then free memory says nothing.
        let (there, kind) = if processes > 1 { (total, "memory") } else { (free, "free memory") };
        let least = self.least.saturating_mul(processes as u64);
        if least > there {
            let (what, instead) = match self.topology {
                0 => (
                    "features and edges of the graph take",
                    "use train.schedule = \"mini-batch\", or train.device = \"cpu\"",
                ),
                _ => ("edges of the graph, from which it samples, take", "remove train.schedule.device_sampling"),
            };
            return Fit::No(format!(
                "the GPU has {} of {kind}, and the {what} {}{by}; {instead}",
                bytes(there),
                bytes(least)
            ));
        }
        let needed = self.total(free / processes.max(1) as u64).saturating_mul(processes as u64);
        let there = if processes == 1 { free.saturating_add(self.parameters / 2) } else { total };
        if needed <= there {
            return Fit::Yes;
        }
        Fit::Perhaps(format!(
            "the GPU has {} of memory for this run, which needs about {}{by}; if memory runs out, {LESS_GPU_MEMORY}",
            bytes(there),
            bytes(needed)
        ))
    }
}

/// Whether a run fits into the memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It does.
    Yes,
    /// Estimates say no. The reason.
    Perhaps(String),
    /// It does not, by exact numbers. The reason.
    No(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_cannot_fit_are_refused_and_estimates_warn() {
        let needs = DeviceNeeds { rows: 3 << 30, least: 1 << 30, ..DeviceNeeds::default() };
        let fit = |free: u64, processes| needs.compare(DeviceMemory { free, total: 4 << 30, peak: None }, processes);
        assert_eq!(fit(3 << 30, 1), Fit::Yes);
        assert!(matches!(fit((3 << 30) - 1, 1), Fit::Perhaps(_)), "other programs have taken the rest");
        let Fit::Perhaps(reason) = fit(4 << 30, 2) else { panic!("two of them do not fit") };
        assert!(
            reason.starts_with(
                "the GPU has 4.0 GiB of memory for this run, which needs about 6.0 GiB for the 2 processes"
            ),
            "{reason}"
        );
        let Fit::No(reason) = fit((1 << 30) - 1, 1) else { panic!("it does not fit") };
        assert!(reason.contains("take 1.0 GiB; use train.schedule"), "{reason}");
        let needs = DeviceNeeds { topology: 2 << 30, least: 1 << 30, ..DeviceNeeds::default() };
        let memory = DeviceMemory { free: 3 << 30, total: 3 << 30, peak: None };
        assert_eq!(needs.compare(memory, 1), Fit::Yes);
        let Fit::No(reason) = needs.compare(memory, 4) else { panic!("four of them do not fit") };
        let end = "it samples, take 4.0 GiB for the 4 processes that share it; remove train.schedule.device_sampling";
        assert!(reason.starts_with("the GPU has 3.0 GiB of memory, and") && reason.ends_with(end), "{reason}");
    }
}
