//! gnnflow, the library entry.

pub mod cluster;
