//! Compiles `cuda/*.cu` to PTX if the feature `cuda` is on; does nothing otherwise.
//!
//! Environment: `NVCC` is the compiler (default: `nvcc` on the path). `GNNFLOW_CUDA_ARCH` is the virtual architecture
//! (default: `compute_80`). The driver compiles the PTX for its GPU, Ampere or newer, on first load.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Each is one PTX module. `src/cuda/kernels.rs` lists the same names.
const MODULES: [&str; 9] =
    ["segment", "gather", "edges", "attention", "elementwise", "heads", "loss", "integers", "sample"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cuda");
    println!("cargo:rerun-if-env-changed=NVCC");
    println!("cargo:rerun-if-env-changed=GNNFLOW_CUDA_ARCH");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let nvcc = std::env::var("NVCC").unwrap_or_else(|_| "nvcc".to_owned());
    let arch = std::env::var("GNNFLOW_CUDA_ARCH").unwrap_or_else(|_| "compute_80".to_owned());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_else(|| fail("OUT_DIR is not set; cargo sets it")));
    for module in MODULES {
        compile(
            &nvcc,
            &arch,
            &Path::new("cuda").join(module).with_extension("cu"),
            &out.join(module).with_extension("ptx"),
        );
    }
}

fn compile(nvcc: &str, arch: &str, source: &Path, ptx: &Path) {
    // Without fused multiply-add, kernels round like the CPU's.
    let flags = ["--ptx", "-O3", "-std=c++17", "--fmad=false", "-Werror", "all-warnings"];
    let output = Command::new(nvcc).args(flags).arg(format!("-arch={arch}")).arg("-o").arg(ptx).arg(source).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            fail(&format!("{nvcc} does not compile {} ({}):\n{stderr}", source.display(), output.status))
        }
        Err(error) => fail(&format!(
            "the feature `cuda` needs nvcc, but {nvcc:?} cannot be run: {error}; put nvcc on the path, set NVCC, or run \
             `. tools/cuda/env.sh` (docs/book/src/gpu.md)"
        )),
    }
}

fn fail(why: &str) -> ! {
    eprintln!("error: {why}");
    exit(1)
}
