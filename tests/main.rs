//! Black-box tests, one module per feature. `cluster` and `panics` are separate test programs.

mod common;

mod auto_schedule;
mod bad_input;
mod bad_input_training;
mod check_device;
mod classes;
mod cli;
mod damage;
mod decoupled_gat;
mod defaults;
mod determinism;
mod edge_classification;
mod edge_features;
mod embeddings;
mod embeddings_full_graph;
mod examples;
mod feature_store;
mod full_graph;
mod hosts;
mod import;
mod init;
mod limits;
mod link_prediction;
mod link_prediction_full_graph;
mod logging;
mod memory;
mod memory_bounds;
mod object_stores;
mod pipelines;
mod prepare;
mod readme;
mod recovery;
mod regression;
mod relations;
mod report;
mod run_folder;
mod sampling;
mod schedules;
mod stalls;
mod tables_by_type;
mod tensor_parallel;
#[cfg(feature = "tensor-workers")]
mod tensor_workers;
mod training;
mod update;
