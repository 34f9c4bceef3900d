//! Collective operations between workers, and the loop that drives their dataflows.

pub(crate) mod agreement;
pub(crate) mod driver;
