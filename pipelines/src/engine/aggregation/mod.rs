//! Sums, maxima and attention over neighbor rows, shared by full-graph and tensor-parallel training.

pub(crate) mod attention;
pub(crate) mod edge_types;
pub(crate) mod max;
pub(crate) mod row_table;
pub(crate) mod rows;
pub(crate) mod scales;
pub(crate) mod sum;
pub(crate) mod transpose;
