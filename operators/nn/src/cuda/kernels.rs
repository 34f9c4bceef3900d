//! All kernels, with their modules and number types.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use candle_core::{CudaDevice, Result};

/// One file of kernels, compiled by the build script.
#[derive(Debug)]
struct Module {
    name: &'static str,
    ptx: &'static str,
}

macro_rules! modules {
    ($($constant:ident = $name:literal),* $(,)?) => {
        $(static $constant: Module = Module { name: $name, ptx: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")) };)*
        #[cfg(test)]
        static MODULES: &[&Module] = &[$(&$constant),*];
    };
}

modules! {
    SEGMENT = "segment",
    GATHER = "gather",
    EDGES = "edges",
    ATTENTION = "attention",
    ELEMENTWISE = "elementwise",
    HEADS = "heads",
    LOSS = "loss",
    INTEGERS = "integers",
    SAMPLE = "sample",
}

/// A kernel, with one version per number type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    module: &'static Module,
    name: &'static str,
    /// The number types, which tests compare with the modules.
    #[cfg(test)]
    types: &'static [&'static str],
}

/// For every type that is stored.
#[cfg(test)]
const ELEMENT: &[&str] = &["_f32", "_f64", "_bf16", "_f16"];
/// For the types that sums are computed in.
#[cfg(test)]
const REAL: &[&str] = &["_f32", "_f64"];
/// For pieces of 16, 4 and 2 bytes.
#[cfg(test)]
const BYTES: &[&str] = &["_16", "_4", "_2"];
/// For no type.
#[cfg(test)]
const ONE: &[&str] = &[""];

macro_rules! kernels {
    ($($constant:ident = $module:ident, $name:literal, $types:ident;)*) => {
        $(pub(super) const $constant: Kernel = Kernel { module: &$module, name: $name, #[cfg(test)] types: $types };)*
        #[cfg(test)]
        const KERNELS: &[Kernel] = &[$($constant),*];
    };
}

kernels! {
    SEGMENT_SUM = SEGMENT, "segment_sum", ELEMENT;
    SEGMENT_SUM_X4 = SEGMENT, "segment_sum_x4", ELEMENT;
    SEGMENT_SUM_LONG = SEGMENT, "segment_sum_long", ELEMENT;
    WEIGHTED_SUM_LONG = SEGMENT, "weighted_sum_long", ELEMENT;
    WEIGHTED_SUM = SEGMENT, "weighted_sum", ELEMENT;
    WEIGHTED_SUM_X4 = SEGMENT, "weighted_sum_x4", ELEMENT;
    SEGMENT_ARGMAX = SEGMENT, "segment_argmax", ELEMENT;
    SEGMENT_PICK = SEGMENT, "segment_pick", ELEMENT;
    SEGMENT_MEAN_BACKWARD = SEGMENT, "segment_mean_backward", REAL;
    SEGMENT_MEAN_BACKWARD_X4 = SEGMENT, "segment_mean_backward_x4", REAL;
    SEGMENT_MEAN_BACKWARD_LONG = SEGMENT, "segment_mean_backward_long", REAL;
    SEGMENT_PICK_BACKWARD = SEGMENT, "segment_pick_backward", REAL;
    GATHER_ROWS = GATHER, "gather_rows", BYTES;
    PUT_ROWS = GATHER, "put_rows", BYTES;
    EDGE_DOT = EDGES, "edge_dot", ELEMENT;
    EDGE_ADD = EDGES, "edge_add", REAL;
    EDGE_SOFTMAX = EDGES, "edge_softmax", REAL;
    EDGE_SOFTMAX_BACKWARD = EDGES, "edge_softmax_backward", REAL;
    ATTENTION_SOFTMAX = EDGES, "attention_softmax", REAL;
    ATTENTION_LOGITS = ATTENTION, "attention_logits", REAL;
    ATTENTION_LOGITS_X4 = ATTENTION, "attention_logits_x4", REAL;
    ATTENTION_ROWS = ATTENTION, "attention_rows", REAL;
    ATTENTION_ROWS_X4 = ATTENTION, "attention_rows_x4", REAL;
    ATTENTION_ROWS_LONG = ATTENTION, "attention_rows_long", REAL;
    ATTENTION_VECTORS = ATTENTION, "attention_vectors", REAL;
    ATTENTION_VECTORS_X4 = ATTENTION, "attention_vectors_x4", REAL;
    ATTENTION_SCORES = ATTENTION, "attention_scores", REAL;
    ATTENTION_SCORES_LONG = ATTENTION, "attention_scores_long", REAL;
    ACTIVATE = ELEMENTWISE, "activate", ELEMENT;
    ACTIVATE_BACKWARD = ELEMENTWISE, "activate_backward", REAL;
    ADD_BIAS = ELEMENTWISE, "add_bias", REAL;
    FILL_ROWS = ELEMENTWISE, "fill_rows", REAL;
    COLUMN_SUM = ELEMENTWISE, "column_sum", REAL;
    SUM_PANELS = ELEMENTWISE, "sum_panels", REAL;
    HEAD_DOT = HEADS, "head_dot", REAL;
    HEAD_DOT_ROWS = HEADS, "head_dot_rows", REAL;
    HEAD_DOT_VECTORS = HEADS, "head_dot_vectors", REAL;
    HEAD_MEAN = HEADS, "head_mean", REAL;
    HEAD_MEAN_BACKWARD = HEADS, "head_mean_backward", REAL;
    CROSS_ENTROPY = LOSS, "cross_entropy", REAL;
    CROSS_ENTROPY_BACKWARD = LOSS, "cross_entropy_backward", REAL;
    BINARY_CROSS_ENTROPY = LOSS, "binary_cross_entropy", REAL;
    BINARY_CROSS_ENTROPY_BACKWARD = LOSS, "binary_cross_entropy_backward", REAL;
    SIGMOID_FOCAL_LOSS = LOSS, "sigmoid_focal_loss", REAL;
    SIGMOID_FOCAL_LOSS_BACKWARD = LOSS, "sigmoid_focal_loss_backward", REAL;
    SUM_OF_EACH = LOSS, "sum_of_each", ONE;
    LOG_SOFTMAX = LOSS, "log_softmax", REAL;
    LOG_SOFTMAX_BACKWARD = LOSS, "log_softmax_backward", REAL;
    FILL_INTEGERS = INTEGERS, "fill_integers", ONE;
    PICK_INTEGERS = INTEGERS, "pick_integers", ONE;
    SUM_PIECES = INTEGERS, "sum_pieces", ONE;
    SCAN_PIECES = INTEGERS, "scan_pieces", ONE;
    SCAN = INTEGERS, "scan", ONE;
    LIST_MARKED = INTEGERS, "list_marked", ONE;
    COUNT_DIGITS = INTEGERS, "count_digits", ONE;
    MOVE_BY_DIGIT = INTEGERS, "move_by_digit", ONE;
    ROW_STARTS = INTEGERS, "row_starts", ONE;
    ROWS_OF_EDGES = INTEGERS, "rows_of_edges", ONE;
    INVERSE_DEGREES = INTEGERS, "inverse_degrees", ONE;
    MARK_LONG_ROWS = INTEGERS, "mark_long_rows", ONE;
    COUNT_WITH_LOOPS = INTEGERS, "count_with_loops", ONE;
    ADD_LOOPS = INTEGERS, "add_loops", ONE;
    COUNT_SAMPLES = SAMPLE, "count_samples", ONE;
    DRAW_SAMPLES = SAMPLE, "draw_samples", ONE;
    TAKE_ALL = SAMPLE, "take_all", ONE;
    MARK_LISTED = SAMPLE, "mark_listed", ONE;
    UNMARK = SAMPLE, "unmark", ONE;
    MARK_FOUND = SAMPLE, "mark_found", ONE;
    FIND_FIRST = SAMPLE, "find_first", ONE;
    LIST_FOUND = SAMPLE, "list_found", ONE;
    TO_POSITIONS = SAMPLE, "to_positions", ONE;
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// An address on the device.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F64(f64),
}

/// A null pointer: no array.
pub(super) const NULL: Argument = Argument::Pointer(0);

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<f64> for Argument {
    fn from(value: f64) -> Self {
        Self::F64(value)
    }
}

impl Kernel {
    /// Enqueues the kernel for the number type of `suffix`. Does nothing if there are no threads.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in number, order and type. Addresses must belong to the device
    /// and be valid for all accesses of the kernel. Their memory may only be freed on the device's stream.
    pub(super) unsafe fn launch(
        &self,
        device: &CudaDevice,
        suffix: &str,
        threads: LaunchConfig,
        arguments: &[Argument],
    ) -> Result<()> {
        let (x, y, z) = threads.grid_dim;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        let function = self.load(device, suffix)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        for argument in arguments {
            match argument {
                Argument::Pointer(value) | Argument::U64(value) => launch.arg(value),
                Argument::U32(value) => launch.arg(value),
                Argument::F64(value) => launch.arg(value),
            };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { launch.launch(threads) }.w()?;
        Ok(())
    }

    /// Loads the module on first use of one of its kernels. The driver then compiles it and caches the result on disk.
    fn load(&self, device: &CudaDevice, suffix: &str) -> Result<CudaFunction> {
        let Module { name, ptx } = self.module;
        let function =
            device.get_or_load_custom_func(&format!("{}{suffix}", self.name), &format!("gnnflow-{name}"), ptx)?;
        Ok(function.into_cuda_function())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn modules_contain_exactly_the_listed_kernels() {
        for module in MODULES {
            let entries = module.ptx.lines().filter_map(|line| line.split_once(".entry ")).map(|(_, name)| name);
            let found: BTreeSet<String> = entries.map(|name| name.trim_end_matches(['(', ' ']).to_owned()).collect();
            let here = KERNELS.iter().filter(|kernel| kernel.module.name == module.name);
            let wanted: BTreeSet<String> =
                here.flat_map(|kernel| kernel.types.iter().map(move |t| format!("{}{t}", kernel.name))).collect();
            assert_eq!(found, wanted, "module {}", module.name);
        }
    }

    #[test]
    fn modules_contain_no_fused_multiply_add_and_atomics_only_of_integers() {
        for module in MODULES {
            // The toolkit's exponentials in double precision use fused operations.
            assert!(!module.ptx.contains("fma.rn.f32"), "module {}", module.name);
            // Sums and minima of integers do not depend on the order of threads.
            let atomic = |line: &&str| ["atom.", "red."].iter().any(|it| line.trim_start().starts_with(it));
            let depends_on_order = |line: &str| ![".min.u32", ".add.u32"].iter().any(|it| line.contains(it));
            let mut atomics = module.ptx.lines().filter(atomic);
            assert!(!atomics.any(depends_on_order), "module {}", module.name);
        }
    }
}
