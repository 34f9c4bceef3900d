//! `partition.parts = "auto"`: SDT-GNN's rule (Section III-C) for the number of partitions.

use crate::config::{AutoParts, Config, Parts};
use crate::context::machine;
use crate::error::Error;
use crate::plan::Sizes;

impl Config {
    /// Replaces `parts = "auto"` by a number.
    ///
    /// # Errors
    /// If the size of the input cannot be read, the reserve is all memory, or a dataset cannot have the number of partitions.
    pub fn resolve_parts(&mut self) -> Result<(), Error> {
        if self.partition.parts != Parts::Auto || self.graph.dataset.is_some() {
            return Ok(());
        }
        let sizes = Sizes::of(self, 1)?;
        let graph_bytes = sizes.parts.iter().map(|part| part.topology_bytes + part.feature_bytes).sum();
        let memory = self.partition.worker_memory.map_or_else(machine::memory, |bytes| bytes.0);
        let reserve = self.partition.reserve.map_or(memory / 3 * 2, |bytes| bytes.0);
        if reserve >= memory {
            let message = format!(
                "leaves nothing of a worker's {memory} bytes (partition.worker_memory) for the graph; lower it"
            );
            return Err(self.problem("partition.reserve", message));
        }
        let auto = AutoParts::new(graph_bytes, memory, reserve, self.partition.workers as u64);
        if auto.parts > u64::from(gnnflow_data::partitioner::MAX_PARTS) {
            let message =
                format!("`auto` gives {} partitions, which are too many; raise partition.worker_memory", auto.parts);
            return Err(self.problem("partition.parts", message));
        }
        self.partition.parts = Parts::Count(auto.parts as usize);
        self.source.auto = Some(auto);
        Ok(())
    }

    /// Returns how `parts = "auto"` was resolved.
    pub(crate) fn auto_parts(&self) -> Option<AutoParts> {
        self.source.auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Registered;
    use std::path::Path;

    fn config(partition: &str) -> Config {
        let text = format!(
            "[graph.generate]\nkind = 'planted'\nnodes = 100000\nedges = 1000000\nfeatures = 64\nclasses = 4\n[partition]\n{partition}"
        );
        Config::parse(&text, Path::new("p.toml"), &[], &Registered::default()).unwrap()
    }

    #[test]
    fn auto_parts_are_computed_from_the_size_of_the_graph() {
        let mut config = config("parts = 'auto'\nworker_memory = '9MB'");
        config.resolve_parts().unwrap();
        let auto = config.auto_parts().unwrap();
        // 25.6 MB of features, 8 MB of edges (both directions), 0.8 MB of offsets; each worker has 3 MB for them.
        assert_eq!((auto.graph_bytes, auto.reserve, auto.parts), (25_600_000 + 8_000_000 + 800_008, 6_000_000, 12));
        assert_eq!(config.parts(), 12);
        let before = config.clone();
        config.resolve_parts().unwrap();
        assert_eq!(config, before, "a number is not replaced");
    }

    #[test]
    fn reserve_of_all_memory_is_refused() {
        let error = config("parts = 'auto'\nworker_memory = '1GB'\nreserve = '1GB'").resolve_parts().unwrap_err();
        assert!(error.to_string().contains("partition.reserve: leaves nothing"), "{error}");
    }
}
