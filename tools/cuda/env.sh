# shellcheck shell=bash
# Source this from the project's root:   . tools/cuda/env.sh
#
# Gives an x86-64 Linux machine without a GPU, a driver or a CUDA toolkit what `cargo build --release --features cuda` needs:
#
# * nvcc, its headers and libdevice: NVIDIA's own wheels from PyPI (about 270 MB);
# * libraries to link against: stand-ins that load the real ones when first called (link_stubs.py), so that the binary
#   starts anywhere and says what is missing;
# * an nvcc that skips candle's quantised kernels, which gnnflow never calls (nvcc-slim).
#
# All of it is kept in .cuda/ (ignored by git) and made once. Needs bash, python3 with pip, cc, ar, and cargo.
#
# Variables that it honours:
#   GNNFLOW_CUDA_DIR    where to keep all this, instead of .cuda
#   CUDA_COMPUTE_CAP    GPU generation to compile for (default 80: Ampere and everything newer, which the driver compiles for)

gnnflow_cuda_env() {
    local tools dir toolkit stamp
    tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || return 1
    dir=${GNNFLOW_CUDA_DIR:-$PWD/.cuda}
    toolkit=$dir/wheels/nvidia/cu13

    # 13.0 on purpose: a driver compiles the PTX of its own CUDA version and older; 13.0 is what driver 580 came with.
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
    # candle-kernels asks for cudart; the wheel has it as a static library.
    ln -sf "$toolkit/lib/libcudart_static.a" "$dir/link/lib64/libcudart.a" || return 1

    export GNNFLOW_NVCC=$toolkit/bin/nvcc
    export NVCC=$tools/nvcc-slim
    export CUDA_HOME=$dir/link
    export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
    # cudarc would ask an nvcc on the path for the version of its declarations.
    export CUDARC_CUDA_VERSION=13000
}

gnnflow_cuda_env
