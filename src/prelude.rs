//! Imports for a dataflow of your own: `use gnnflow::prelude::*;`. See `examples/custom_operator.rs`.

pub use gnnflow_dataflow::prelude::*;
