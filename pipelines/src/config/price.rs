//! `[price]`: prices of machines.

use super::section::section;

section! {
    /// Prices of machines, in any currency. The report then has the cost of the run, and its value, 1 / (time × cost).
    pub struct Price {
        /// Price of an hour of one process.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub graph_worker_hour: f64 = 0.0,
        /// Price of a call of a tensor worker.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub tensor_call: f64 = 0.0,
        /// Price of a second of a tensor worker's calls.
        #[schemars(range(min = 0.0), extend("x-results" = false))]
        pub tensor_second: f64 = 0.0,
    }
}
