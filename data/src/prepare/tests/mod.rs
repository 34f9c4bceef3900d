//! Prepared datasets against a naive program, bad input, real graphs.

mod bad_input;
mod oracle;
mod policies;
mod real;
mod whole_or_not;

use std::path::Path;

use super::*;
use crate::dataset::{Dataset, PartitionInfo};
use crate::progress::Silent;
use crate::source::Duplicates;
use crate::testing::Modulo;

/// What the tests' partitioners and dumps have in common.
fn settings(out: &Path, parts: u32) -> PrepareSettings {
    PrepareSettings {
        parts,
        out: out.to_path_buf(),
        memory: 64 << 20,
        seed: 1,
        balance: Targets::default(),
        halo_features: false,
    }
}

fn prepared(source: &GraphSource, out: &Path, parts: u32) -> Result<Dataset> {
    prepare(source, &Modulo, &settings(out, parts), &Silent)?;
    Dataset::open(out)
}
