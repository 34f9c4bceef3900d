# shellcheck shell=bash
# Source this file in the project's root:   . tools/cuda/env.sh
#
# Sets up `cargo build --release --features cuda` on x86-64 Linux without a GPU, a driver or a CUDA toolkit:
#
# * nvcc, its headers and libdevice: NVIDIA's wheels from PyPI (about 270 MB);
# * stub libraries for the linker, which load the real ones on the first call (link_stubs.py), so that the binary starts
#   on any machine and reports missing libraries;
# * an nvcc without candle's quantized kernels, which gnnflow does not call (nvcc-slim).
#
# The files are created once in .cuda/ (ignored by git). Needs bash, python3 with pip, cc, ar, and cargo.
#
# Variables:
#   GNNFLOW_CUDA_DIR    the folder to use instead of .cuda
#   CUDA_COMPUTE_CAP    the GPU generation to compile for (default 80: Ampere; the driver compiles for newer ones)

gnnflow_cuda_env() {
    local tools dir toolkit stamp
    tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || return 1
    dir=${GNNFLOW_CUDA_DIR:-$PWD/.cuda}
    toolkit=$dir/wheels/nvidia/cu13

    # A driver compiles PTX of its CUDA version and older ones. 13.0 is the version of driver 580.
    local wheels=(
        nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    )
    stamp=$dir/wheels.txt
    if [ "$(cat "$stamp" 2>/dev/null)" != "${wheels[*]}" ]; then
        echo "fetching nvcc from PyPI into $dir" >&2
        rm -rf "$dir/wheels" "$stamp"
        mkdir -p "$dir" || return 1
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --no-compile \
            --target "$dir/wheels" "${wheels[@]}" || return 1
        chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/* || return 1
        echo "${wheels[*]}" >"$stamp"
    fi

    cargo fetch --quiet --locked || return 1
    python3 "$tools/link_stubs.py" "$dir/link" || return 1
    # candle-kernels links cudart, which the wheel contains as a static library.
    ln -sf "$toolkit/lib/libcudart_static.a" "$dir/link/lib64/libcudart.a" || return 1

    export GNNFLOW_NVCC=$toolkit/bin/nvcc
    export NVCC=$tools/nvcc-slim
    export CUDA_HOME=$dir/link
    export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
    # Otherwise cudarc takes the version of its declarations from an nvcc on the path.
    export CUDARC_CUDA_VERSION=13000
}

gnnflow_cuda_env
