//! Tests on the emulator of a GPU, each in a process of its own: the memory of the emulator is that of its process.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use candle_core::Device;

/// Set in the process of one test.
const IN_PROCESS: &str = "GNNFLOW_NN_EMULATED";

/// The folder of the emulator's libraries, or why there are none.
static LIBRARIES: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/cuda/emulator/build.sh");
    let folder = PathBuf::from(concat!(env!("OUT_DIR"), "/emulator"));
    match Command::new(build).arg(&folder).output() {
        Ok(built) if built.status.success() => Ok(folder),
        Ok(built) => panic!("{build}: {}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => Err(format!("{build} cannot be run: {error}")),
    }
});

/// Runs the test with this path again in another process. Returns its GPU there, and `None` here, after the test has passed there.
pub(crate) fn gpu(test: &str) -> Option<Device> {
    if std::env::var_os(IN_PROCESS).is_some() {
        return Some(crate::device("cuda").unwrap());
    }
    let libraries = match &*LIBRARIES {
        Ok(folder) => folder,
        Err(reason) => {
            println!("skipped: {reason}");
            return None;
        }
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(IN_PROCESS, "1").env("GNNFLOW_CUDA_LIB_DIR", libraries);
    let ended = command.output().unwrap();
    let output = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.contains("there is no NVIDIA driver") {
        println!("skipped: this program was linked against an installed toolkit, not with tools/cuda/env.sh");
        return None;
    }
    assert!(ended.status.success() && output.contains("1 passed"), "{output}");
    None
}
