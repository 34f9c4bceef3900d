//! Compares prepared datasets with a naive program, and tests bad input, crashes and real graphs.

mod bad_input;
mod cleaning;
mod copies;
mod crash_safety;
mod encode_like;
mod oracle;
mod policies;
mod real;
mod spilled;

use std::path::Path;

use super::*;
use crate::dataset::{Dataset, PartitionInfo};
use crate::progress::Silent;
use crate::source::Duplicates;
use crate::testing::Modulo;

/// Returns settings for tests.
fn settings(out: &Path, parts: u32) -> PrepareSettings {
    PrepareSettings { memory: 64 << 20, ..PrepareSettings::new(out, parts) }
}

fn prepared(source: &GraphSource, out: &Path, parts: u32) -> Result<Dataset> {
    prepare(source, &Modulo, &settings(out, parts), &Silent)?;
    Dataset::open(out)
}
