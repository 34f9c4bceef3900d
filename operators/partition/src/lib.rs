//! Partition methods, one file each. Every method implements [`Partitioner`](gnnflow_data::Partitioner).

mod balance;
mod builtin;
mod clusters;
mod counters;
mod dbh;
mod degrees;
mod fennel;
mod file;
mod graph;
mod greedy;
mod hdrf;
mod inside;
mod kway;
mod ldg;
mod loads;
mod metis;
mod multilevel;
mod node_stream;
mod random;
mod range;
mod refine;
mod refined;
mod replicas;
mod schedule;
mod spring;
#[cfg(test)]
mod tests;
mod two_ps_l;
mod vertex_cut;

pub use builtin::{Settings, builtin};
pub use dbh::Dbh;
pub use degrees::Degrees;
pub use fennel::Fennel;
pub use file::File;
pub use greedy::Greedy;
pub use hdrf::Hdrf;
pub use inside::clusters_inside;
pub use ldg::Ldg;
pub use metis::Metis;
pub use multilevel::Multilevel;
pub use random::Random;
pub use range::Range;
pub use refined::Refined;
pub use spring::Spring;
pub use two_ps_l::TwoPsL;
pub use vertex_cut::VertexCut;
