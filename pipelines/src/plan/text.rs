//! The text of the plan.

use super::auto_schedule::{factor, seconds};
use super::{DeviceNeeds, LearnedRows, Memory, Plan, Process, RankingCost, RecommendationCost, RowsInMemory, Training};
use crate::config::{AutoParts, AutoSchedule, Task};
use gnnflow_data::format::{bytes, count, counted, plural};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan        {}", self.name)?;
        writeln!(f, "stages      {}", self.stages.join(" → "))?;
        self.fmt_graph(f)?;
        self.fmt_model(f)?;
        if let Some(training) = &self.training {
            fmt_training(training, self.bound(), f)?;
        }
        if let Some(RankingCost { edges, exact, among, scores, recommendations }) = &self.ranking {
            let at_most = if *exact { "" } else { "at most about " };
            let [edges, among, scores] = [edges, among, scores].map(|&number| count(number));
            writeln!(f, "evaluation  {at_most}{edges} edges, both ends ranked among {among} nodes: {scores} scores")?;
            if let Some(RecommendationCost { scores, bytes: size }) = recommendations {
                let scores = count(*scores);
                writeln!(
                    f,
                    "lists       at most {scores} scores for recommendations to all nodes, {} in memory",
                    bytes(*size)
                )?;
            }
        }
        for process in &self.processes {
            self.fmt_process(process, f)?;
            if self.training.is_some() {
                self.fmt_memory(&process.memory, f)?;
                if let Some(device) = &process.device {
                    fmt_device(device, f)?;
                }
            }
        }
        if let Some(size) = self.tensor_worker_bytes {
            writeln!(f, "tensor      about {} for each tensor worker", bytes(size))?;
        }
        Ok(())
    }
}

impl Plan {
    /// Returns the prefix of a size that preparing the dataset may lower.
    fn at_most(&self) -> &'static str {
        if self.graph.prepared { "" } else { "at most " }
    }

    /// Returns why the numbers of steps and examples are upper bounds.
    fn bound(&self) -> &'static str {
        match &self.training {
            Some(training) if training.exact => "",
            _ if self.task.is_some_and(Task::learns_edges) => "; target edges are counted only in a prepared dataset",
            _ => "; training nodes are counted only in a prepared dataset",
        }
    }

    /// Returns the number of classes, if the task has classes of nodes or edges.
    fn classes(&self) -> String {
        let unknown = if self.graph.prepared { String::new() } else { ", classes unknown yet".into() };
        let known = |classes: Option<u64>| classes.map(|classes| format!(", {}", counted(classes, "class")));
        match self.task {
            Some(Task::LinkPrediction | Task::NodeRegression) => String::new(),
            Some(Task::EdgeClassification) => known(self.graph.edge_classes).unwrap_or(unknown),
            _ => known(self.graph.classes).unwrap_or(unknown),
        }
    }

    /// Prints the graph, the dataset, and the choices of `auto` for them.
    fn fmt_graph(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (graph, at_most) = (&self.graph, self.at_most());
        let not_yet = if graph.prepared { "" } else { ", not written yet" };
        let classes = self.classes();
        let (nodes, edges) = (counted(graph.nodes, "node"), counted(graph.edges, "edge"));
        writeln!(f, "graph       {nodes}, {at_most}{edges}, {}{classes}", plural(graph.features, "feature"))?;
        let (folder, disk) = (self.dataset.display(), bytes(graph.disk_bytes));
        writeln!(f, "dataset     {folder}, {at_most}{disk}{not_yet}")?;
        let method = if graph.prepared { String::new() } else { format!(" by \"{}\"", self.method) };
        writeln!(f, "partitions  {}{method}, topology {}", graph.parts.len(), self.topology)?;
        if let Some(AutoParts { graph_bytes, worker_memory, reserve, workers, .. }) = self.auto_parts {
            let [graph, memory, reserve] = [graph_bytes, worker_memory, reserve].map(bytes);
            let workers = counted(workers, "worker");
            writeln!(
                f,
                "            chosen for a graph of {graph} and {workers} of {memory}; training needs {reserve} of each"
            )?;
        }
        if let Some(auto) = &self.auto_schedule {
            write!(f, "{auto}")?;
        }
        if graph.prepare_bytes > 0 {
            writeln!(f, "prepare     at most {} of memory", bytes(graph.prepare_bytes))?;
        }
        Ok(())
    }

    /// Prints the layers of the model and its learned rows.
    fn fmt_model(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.layers.is_empty() {
            let widths: Vec<String> = self.layers.iter().map(|layer| layer.output.to_string()).collect();
            let unknown = if self.graph.prepared { "(registered layer)" } else { "until the dataset is prepared" };
            let parameters = self
                .parameters
                .map_or_else(|| format!("parameters unknown {unknown}"), |n| format!("{} parameters", count(n)));
            let output = if self.layers.last().is_some_and(|layer| layer.output > 0) {
                widths.join(" → ")
            } else {
                [&widths[..widths.len() - 1], &["?".into()]].concat().join(" → ")
            };
            let input = self.embedding.as_ref().map_or(self.graph.features, |rows| rows.dim);
            writeln!(f, "model       {input} → {output}, {parameters}")?;
        }
        if let Some(LearnedRows { dim, optimizer, mode, staleness, bytes: size }) = &self.embedding {
            let size = bytes(*size);
            let how = match staleness {
                0 => mode.clone(),
                steps => format!("{mode}, rows up to {steps} steps behind: results differ from run to run"),
            };
            writeln!(
                f,
                "embeddings  {dim} numbers for each node, learned by {optimizer}, {how}; {size} of scratch files"
            )?;
        }
        Ok(())
    }

    /// Prints the partitions of a process.
    fn fmt_process(&self, process: &Process, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = if process.parts.len() == 1 {
            format!("partition {}", process.parts.start)
        } else {
            format!("partitions {} to {}", process.parts.start, process.parts.end - 1)
        };
        let (nodes, edges, threads) = (counted(process.nodes, "node"), counted(process.edges, "edge"), process.threads);
        let at_most = self.at_most();
        writeln!(f, "process {:<3} {parts}: {nodes}, {at_most}{edges}; compute threads: {threads}", process.rank)
    }

    /// Prints the memory of a process that trains.
    fn fmt_memory(&self, memory: &Memory, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features = format!("{} features", bytes(memory.features));
        let layers = format!("{} layers of inference", bytes(memory.layers));
        let others = [
            (memory.halo, "halo features"),
            (memory.embeddings, "learned rows"),
            (memory.scratch, "other scratch files"),
        ];
        let others = others.into_iter().filter(|&(size, _)| size > 0);
        let others: String = others.map(|(size, what)| format!(", {} {what}", bytes(size))).collect();
        let topology = bytes(memory.topology);
        match self.rows_in_memory {
            RowsInMemory::None => writeln!(f, "  mapped    {topology} structure, {features}, {layers}{others}")?,
            RowsInMemory::Features => {
                writeln!(f, "  mapped    {topology} structure, {layers}{others}")?;
                writeln!(f, "  rows      {features}, in memory")?;
            }
            RowsInMemory::All => {
                writeln!(f, "  mapped    {topology} structure{others}")?;
                writeln!(f, "  rows      {features}, {layers}, in memory")?;
            }
        }
        let [batches, activations, inference] = [memory.batches, memory.activations, memory.inference].map(bytes);
        let program = bytes(memory.program);
        let parameters = self.parameters.map_or_else(|| "unknown".into(), |_| bytes(memory.parameters));
        let (steps, cache) = (plural(self.window, "step"), memory.cache);
        let jobs = if self.jobs > 1 { format!(", up to {} jobs at the same time", self.jobs) } else { String::new() };
        let cache = if cache > 0 { format!(", {} cached features", bytes(cache)) } else { String::new() };
        let sampler = if memory.sampler > 0 { format!(", {} sampler", bytes(memory.sampler)) } else { String::new() };
        writeln!(
            f,
            "  train     {batches} batches ({steps} in flight{jobs}), {activations} activations, {parameters} parameters{cache}{sampler}"
        )?;
        if self.tables_mapped {
            writeln!(f, "  tables    rows of all nodes in scratch files, because they do not fit into train.memory")?;
        }
        if memory.tables > 0 {
            writeln!(f, "  tables    {} rows of all nodes", bytes(memory.tables))?;
        }
        if memory.edges > 0 {
            writeln!(f, "  edges     {}, which are also on the GPU", bytes(memory.edges))?;
        }
        if memory.tensor_rows > 0 {
            let rows = bytes(memory.tensor_rows);
            match self.tensor_worker_bytes {
                Some(_) => writeln!(f, "  tensor    {rows} rows of tasks with tensor workers or in flight")?,
                None => writeln!(f, "  tasks     {rows} rows of node tasks at the same time and in flight")?,
            }
        }
        writeln!(f, "  infer     {inference} chunks; program {program}")?;
        let mapped = memory.mapped() + memory.mapped_rows(self.rows_in_memory);
        writeln!(f, "  together  about {}, {} of it mapped", bytes(memory.total()), bytes(mapped))
    }
}

/// Prints the memory of a process on its GPU.
fn fmt_device(needs: &DeviceNeeds, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let DeviceNeeds { parameters, edges, topology, rows, inference, .. } = *needs;
    // Batches need not find their features there.
    let some = needs.batches > 0 && needs.held_features(0) < needs.held_features(u64::MAX);
    let all = [
        (parameters, "parameters"),
        (needs.held_features(u64::MAX), if some { "features or fewer" } else { "features" }),
        (needs.inputs(u64::MAX), "input rows of batches"),
        (topology, "edges to sample from"),
        (edges, if topology > 0 { "edges of batches" } else { "edges" }),
        (rows, "rows of layers"),
    ];
    let listed: Vec<String> =
        all.iter().filter(|(size, _)| *size > 0).map(|(size, what)| format!("{} {what}", bytes(*size))).collect();
    writeln!(f, "  GPU       {}; {} for a chunk of inference", listed.join(", "), bytes(inference))?;
    let fewest = if some { format!(" ({} without features)", bytes(needs.total(0))) } else { String::new() };
    writeln!(f, "            together about {}{fewest}, without the CUDA context", bytes(needs.total(u64::MAX)))
}

/// Prints the steps of an epoch, their batches and messages.
fn fmt_training(training: &Training, bound: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let about = if training.exact { "" } else { "at most " };
    let [steps, seeds] =
        [(training.steps_per_epoch, "step"), (training.seeds, "seed")].map(|(n, word)| counted(n, word));
    writeln!(f, "training    {} of {about}{steps} of {about}{seeds}{bound}", plural(training.epochs, "epoch"))?;
    let list = |numbers: &[u64]| numbers.iter().map(|&n| count(n)).collect::<Vec<_>>().join(", ");
    let (nodes, edges) = (list(&training.batch_nodes), list(&training.batch_edges));
    let (which, by) = match training.subgraph {
        true => ("seeds, then all", "between them, read by all layers"),
        false => ("seeds, then after each hop", "by hop"),
    };
    if training.batch_nodes.is_empty() {
        writeln!(f, "batch       all nodes")?;
    } else {
        writeln!(f, "batch       about {nodes} nodes ({which}); {edges} edges {by}")?;
    }
    let (rounds, messages) = (training.rounds_per_step, training.messages_per_step);
    let [rounds, messages] = [(rounds, "round"), (messages, "message")].map(|(n, word)| counted(n, word));
    let moved = bytes(training.bytes_per_step);
    writeln!(f, "step        {rounds}, about {messages} and {moved} between processes")?;
    if training.steps_per_epoch > 1 {
        let epoch = bytes(training.bytes_per_step * training.steps_per_epoch);
        writeln!(f, "epoch       {epoch} between processes")?;
    }
    Ok(())
}

impl fmt::Display for AutoSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule    \"{}\": {}", self.chosen, self.because)?;
        let cut = self.edge_cut.map_or_else(String::new, |cut| format!(", {:.0} % of edges cut", 100.0 * cut));
        let share = self.train_share.map_or_else(String::new, |share| format!("{:.0} % train nodes, ", 100.0 * share));
        let (copies, balance) = (self.replication_factor, self.edge_balance);
        writeln!(
            f,
            "            {share}replication factor {copies:.2}{cut}, edges of a partition at most {balance:.2} times the mean"
        )?;
        writeln!(
            f,
            "            {:<20}{:>11}{:>15}{:>8}{:>12}{:>12}{:>9}",
            "schedule", "memory", "sent per epoch", "rounds", "computing", "waiting", "factor"
        )?;
        for candidate in &self.candidates {
            let name = &candidate.schedule;
            if let Some(why) = &candidate.refused {
                writeln!(f, "            {name:<20}not possible: {why}")?;
                continue;
            }
            let [memory, moved] = [candidate.memory, candidate.bytes].map(bytes);
            let [compute, moving] = [candidate.compute, candidate.moving].map(seconds);
            let (rounds, counts) = (count(candidate.rounds), factor(candidate.counts));
            writeln!(
                f,
                "            {name:<20}{memory:>11}{moved:>15}{rounds:>8}{compute:>12}{moving:>12}{counts:>9}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_bytes_are_formatted_with_units() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 300 << 20, 5 << 40].map(bytes), ["0 B", "1023 B", "1.5 KiB", "300 MiB", "5.0 TiB"]);
    }
}
