//! Prepared datasets against a naive program, bad input, real graphs.

mod bad_input;
mod cleaning;
mod oracle;
mod policies;
mod real;
mod spilled;
mod whole_or_not;

use std::path::Path;

use super::*;
use crate::dataset::{Dataset, PartitionInfo};
use crate::progress::Silent;
use crate::source::Duplicates;
use crate::testing::Modulo;

/// What the tests' partitioners and dumps have in common.
fn settings(out: &Path, parts: u32) -> PrepareSettings {
    PrepareSettings { memory: 64 << 20, ..PrepareSettings::new(out, parts) }
}

fn prepared(source: &GraphSource, out: &Path, parts: u32) -> Result<Dataset> {
    prepare(source, &Modulo, &settings(out, parts), &Silent)?;
    Dataset::open(out)
}
