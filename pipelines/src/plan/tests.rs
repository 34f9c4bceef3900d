use super::*;
use crate::config::Registered;
use std::path::Path;

fn plan(text: &str, processes: usize) -> Result<Plan, Error> {
    let config = Config::parse(text, Path::new("/nowhere/p.toml"), &[], &Registered::default())?;
    Plan::new(&config, processes, processes)
}

const PLANTED: &str = "[graph]\ngenerate = { nodes = 2000000, edges = 30000000, features = 100, classes = 10 }\n\
    [partition]\nparts = 4\n[model]\nlayers = 3\nhidden = 256\n[train]\nfanouts = [15, 10, 5]\nthreads = 1";

#[test]
fn sizes_before_preparation_are_those_of_the_generator() {
    let plan = plan(PLANTED, 2).unwrap();
    assert_eq!((plan.graph.nodes, plan.graph.edges, plan.graph.features), (2_000_000, 60_000_000, 100));
    assert_eq!(plan.stages, ["generate (planted)", "prepare", "train (mini-batch)"]);
    assert_eq!(plan.processes.iter().map(|process| process.parts.clone()).collect::<Vec<_>>(), [0..2, 2..4]);
    assert_eq!(plan.processes.iter().map(|process| process.nodes).sum::<u64>(), 2_000_000);
    let training = plan.training.as_ref().unwrap();
    assert_eq!(training.batch_nodes, [1000, 16_000, 176_000, 1_056_000]);
    assert_eq!(training.batch_edges, [15_000, 160_000, 880_000]);
    assert_eq!(training.steps_per_epoch, 50);
    let drawn =
        self::plan(&PLANTED.replace("[partition]", "split_fractions = [0.01, 0.01, 0.98]\n[partition]"), 2).unwrap();
    assert_eq!(drawn.training.unwrap().steps_per_epoch, 5);
    // 2(L - 1) rounds of sampling and 2 of fetching.
    assert_eq!(training.rounds_per_step, 6);
    assert_eq!(plan.parameters, Some(2 * 100 * 256 + 256 + 2 * 256 * 256 + 256 + 2 * 256 * 10 + 10));
}

#[test]
fn one_process_sends_nothing_and_replicated_topology_needs_fetches_only() {
    let alone = plan(PLANTED, 1).unwrap().training.unwrap();
    assert_eq!((alone.rounds_per_step, alone.messages_per_step, alone.bytes_per_step), (0, 0, 0));
    let text = PLANTED.replace("parts = 4", "parts = 4\ntopology = \"replicated\"");
    let replicated = plan(&text, 2).unwrap();
    assert_eq!(replicated.training.as_ref().unwrap().rounds_per_step, 2);
    let whole: u64 = replicated.graph.parts.iter().map(|part| part.topology_bytes).sum();
    assert!(replicated.processes.iter().all(|process| process.memory.topology == whole));
}

#[test]
fn jobs_at_the_same_time_depend_on_threads_partitions_and_memory() {
    let text = PLANTED.replace("threads = 1", "threads = 3");
    let with = |keys: &str, processes| plan(&format!("{text}\n{keys}"), processes).unwrap();
    // As many as threads, or as the process has partitions.
    assert_eq!([1, 2, 4].map(|processes| with("memory = '1TiB'", processes).jobs), [3, 2, 1]);
    let heap = |plan: &Plan| plan.processes.iter().map(|process| process.memory.heap()).max().unwrap();
    let all = with("memory = '1TiB'\nwindow = 2", 1);
    let memory = |bytes: u64| with(&format!("memory = '{bytes}B'"), 1);
    let (fits, below) = (memory(heap(&all)), memory(heap(&all) - 1));
    assert_eq!([(fits.jobs, fits.window), (below.jobs, below.window.min(2))], [(3, 2), (2, 2)]);
    assert!(heap(&below) < heap(&all) && all.to_string().contains(", up to 3 jobs at the same time"), "{all}");
    let whole = |schedule: &str| {
        let text = text.replace("\nfanouts = [15, 10, 5]", &format!("\nmemory = '1TiB'\nschedule = {schedule}"));
        plan(&text, 4).unwrap().jobs
    };
    // One partition of 500,000 nodes has 16 intervals, unless the pipeline says otherwise.
    assert_eq!([whole("'full-graph'"), whole("'tensor-parallel'")], [3, 3]);
    assert_eq!(whole("{ kind = 'full-graph', intervals = 2 }"), 2);
    assert_eq!(whole("{ kind = 'full-graph', mode = 'async' }"), 1, "rows would be stale without need");
    assert_eq!(with("schedule = 'partition-parallel'", 1).jobs, 1, "one partition after another");
}

#[test]
fn memory_limits_the_window_and_plans_that_do_not_fit_are_refused() {
    let with = |keys: &str| plan(&format!("{PLANTED}\n{keys}"), 2);
    let needs = |window: usize| {
        let processes = with(&format!("window = {window}")).unwrap().processes;
        processes.iter().map(|process| process.memory.heap()).max().unwrap()
    };
    assert_eq!(with("").unwrap().window, 2);
    for (bytes, window) in [(needs(5), 5), (needs(5) - 1, 4), (needs(1), 1), (1 << 40, 8)] {
        assert_eq!(with(&format!("memory = '{bytes}B'")).unwrap().window, window);
    }
    let error = with(&format!("memory = '{}B'\nwindow = 4", needs(3))).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().ends_with("; train.window = 3 fits"), "{error}");
    let error = with(&format!("memory = '{}B'\nschedule.cache = '1GiB'", needs(1) + (1 << 20))).unwrap_err();
    assert!(error.to_string().ends_with("; train.schedule.cache = \"1MiB\" fits with a window of 1"), "{error}");
    let error = with("memory = '1MiB'").unwrap_err();
    assert!(error.to_string().contains("smaller batches"), "{error}");
    // The size in the message is rounded down to a whole unit.
    let error = with(&format!("memory = '{}B'\nschedule.cache = '1GiB'", needs(1) + 36_616_884)).unwrap_err();
    assert!(error.to_string().ends_with("; train.schedule.cache = \"34MiB\" fits with a window of 1"), "{error}");
    for (schedule, key) in
        [("full-graph", "train.schedule.intervals"), ("tensor-parallel", "train.schedule.chunk_memory")]
    {
        let text = PLANTED.replace("fanouts = [15, 10, 5]", &format!("schedule = '{schedule}'\nmemory = '100MiB'"));
        let error = plan(&text, 2).unwrap_err().to_string();
        assert!(error.contains(key) && !error.contains("batches") && !error.contains("steps in flight"), "{error}");
    }
    let cached = with("schedule.cache = '1GiB'").unwrap();
    assert_eq!(cached.processes[1].memory.cache, 1 << 30);
    assert!(cached.to_string().contains("1.0 GiB cached features"), "{cached}");
}

#[test]
fn plan_counts_learned_rows() {
    let with = |embedding: &str| {
        let text = PLANTED.replace("features = 100", "features = 0");
        plan(&text.replace("hidden = 256", &format!("hidden = 256\nembedding = {{ {embedding} }}")), 2).unwrap()
    };
    let adam = with("dim = 64");
    // Rows, two vectors of Adam, rows of the best epoch; and a count.
    assert_eq!(adam.processes[1].memory.embeddings, 1_000_000 * (4 * 64 * 4 + 4));
    assert_eq!(adam.embedding.as_ref().unwrap().bytes, 2_000_000 * (4 * 64 * 4 + 4));
    assert_eq!(adam.parameters, Some(2 * 64 * 256 + 256 + 2 * 256 * 256 + 256 + 2 * 256 * 10 + 10));
    assert_eq!(
        adam.processes[1].memory.mapped() - with("dim = 64, optimizer = { kind = 'sgd' }").processes[1].memory.mapped(),
        1_000_000 * (2 * 64 * 4 + 4)
    );
    let text = adam.to_string();
    for line in
        ["embeddings  64 numbers for each node, learned by adam, sync; 1.9 GiB", "model       64 → 256", "learned rows"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // Each fetched row has a gradient.
    let plain = plan(PLANTED, 2).unwrap().training.unwrap().bytes_per_step;
    assert!(with("dim = 100").training.unwrap().bytes_per_step > plain * 3 / 2);
    assert_eq!((with("dim = 8, mode = 'async', staleness = 5").window, adam.window), (6, 2));
}

#[test]
fn plan_counts_rows_of_bases() {
    let with = |model: &str| {
        let text =
            PLANTED.replace("layers = 3\nhidden = 256", &format!("kind = 'rgcn'\nlayers = 2\nhidden = 64{model}"));
        let plan = plan(&text.replace("fanouts = [15, 10, 5]", "fanouts = [15, 10]"), 2).unwrap();
        (plan.processes[0].memory.activations, plan.training.unwrap().batch_nodes)
    };
    let ((plain, nodes), (mixed, _)) = (with(""), with("\nnum_bases = 5"));
    // The first layer reads 100 columns and writes the list after one hop, the second 64 and writes the seeds.
    assert_eq!(mixed - plain, 3 * 4 * 5 * (nodes[1] * 100 + nodes[0] * 64));
}

#[test]
fn more_processes_than_partitions_are_refused() {
    let error = plan(PLANTED, 5).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("more processes (5) than partitions (4)"), "{error}");
}

#[test]
fn missing_input_is_an_input_error() {
    let error = plan("[graph]\nnodes = 'nope.parquet'\nedges = 'e.parquet'", 1).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("/nowhere/nope.parquet"), "{error}");
}

#[test]
fn text_and_json_have_equal_numbers() {
    let plan = plan(PLANTED, 2).unwrap();
    let text = plan.to_string();
    for line in
        ["graph       2,000,000 nodes, at most 60,000,000 edges, 100 features, 10 classes", "step        6 rounds"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["graph"]["nodes"], 2_000_000);
    assert_eq!(json["processes"][1]["parts"]["start"], 2);
}

#[test]
fn sizes_of_parquet_files_are_read_from_footers() {
    let data =
        std::env::var("GNNFLOW_TEST_DATA").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data").into());
    if !Path::new(&data).join("cora").exists() {
        return println!("skipped: no graphs in {data}");
    }
    let text = format!(
        "[graph]\nnodes = '{data}/cora/nodes.parquet'\nedges = '{data}/cora/edges.parquet'\nundirected = true\n[partition]\nparts = 2\n\
         [model]\nkind = 'gcn'\n[train]"
    );
    let plan = plan(&text, 1).unwrap();
    assert_eq!((plan.graph.nodes, plan.graph.features, plan.graph.prepared), (2708, 1433, false));
    assert!(plan.graph.edges >= 10_556, "{}", plan.graph.edges);
}

#[test]
fn tensor_parallel_accepts_few_or_unknown_classes() {
    let text = "[graph]\ngenerate = { nodes = 2000, edges = 3000, classes = 3 }\nundirected = true\n[partition]\nparts = 4\n\
        [model]\nkind = 'gcn'\n[train]\nschedule = 'tensor-parallel'";
    let config = Config::parse(text, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
    let known = Sizes::of(&config, 1).unwrap();
    Plan::of(&config, known.clone(), 4, 4).unwrap();
    Plan::of(&config, Sizes { classes: None, ..known }, 4, 4).unwrap();
}
