#!/usr/bin/env bash
# Builds FOLDER/libcuda.so.1, libcublas.so.13 and libcurand.so.10, which run gnnflow's kernels on a CPU thread (driver.cpp):
#
#   tools/cuda/emulator/build.sh FOLDER && GNNFLOW_CUDA_LIB_DIR=FOLDER gnnflow check-device
#
# The binary must be built with tools/cuda/env.sh. Needs a C++ compiler, but no CUDA and no GPU.
set -euo pipefail

folder=${1:?usage: build.sh FOLDER}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernels=$here/../../../operators/nn/cuda

mkdir -p "$folder"
flags=(-O2 -g -fPIC -std=c++17 -ffp-contract=off -Wall -Wno-unknown-pragmas)
objects=()
for source in "$kernels"/*.cu; do
    object=$folder/$(basename "$source" .cu).o
    c++ "${flags[@]}" -include "$here/device.h" -x c++ -c -o "$object" "$source"
    objects+=("$object")
done
c++ "${flags[@]}" -shared -o "$folder/libcuda.so.1" "$here/driver.cpp" "${objects[@]}" -ldl
for library in libcublas.so.13 libcublasLt.so.13 libcurand.so.10; do
    ln -sf libcuda.so.1 "$folder/$library"
done
