//! `pipeline.toml`, checked, planned and run.
