//! `[debug]`: keys for measurements of gnnflow itself. The reference page leaves them out.

use super::section::section;

section! {
    /// Keys for measurements of gnnflow itself.
    #[schemars(extend("x-hidden" = true))]
    pub struct Debug {
        /// Whether sampling and compaction are one loop if all edges are in this process (FastSample).
        #[schemars(extend("x-results" = false))]
        pub fused_sampling: bool = true,
        /// Whether graph and features stay on the device also if this is the CPU, as on a GPU.
        pub graph_on_device: bool = false,
    }
}
