//! `[price]`: what machines cost.

use super::section::section;

section! {
    /// What machines cost, in whatever currency: the report then says what the run did, and its value, 1 / (time × cost).
    pub struct Price {
        /// An hour of one process.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub graph_worker_hour: f64 = 0.0,
        /// A call of a tensor worker.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub tensor_call: f64 = 0.0,
        /// A second of a tensor worker's calls.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub tensor_second: f64 = 0.0,
    }
}
