// Definitions of CUDA's keywords and functions, so that a C++ compiler compiles operators/nn/cuda/*.cu for a CPU thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static

struct Dim3 {
    unsigned x, y, z;
};
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

template <typename To, typename From> inline To bits_as(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline double __longlong_as_double(long long x) { return bits_as<double>(x); }

inline float half_as_float(unsigned short half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    float magnitude = exponent == 0    ? std::ldexp((float)fraction, -24)
                      : exponent == 31 ? (fraction ? NAN : INFINITY)
                                       : std::ldexp((float)(1024 + fraction), exponent - 25);
    return half >> 15 ? -magnitude : magnitude;
}
// Replaces the only line of assembly, in `widen(f16)`.
#define asm(...) wide = half_as_float(x.bits)

// Shuffle: offers a value to the warp, and returns the value of lane `from_lane`. All lanes take part.
uint64_t exchange(uint64_t offered, unsigned from_lane);
unsigned lane_of_warp();
void __syncthreads();
void __syncwarp();

// Threads run one after another.
inline unsigned atomicAdd(unsigned *at, unsigned x) {
    unsigned old = *at;
    *at += x;
    return old;
}
inline unsigned atomicMin(unsigned *at, unsigned x) {
    unsigned old = *at;
    *at = min(old, x);
    return old;
}

template <typename T> inline T take_from(T x, unsigned lane) {
    uint64_t offered = 0;
    memcpy(&offered, &x, sizeof x);
    uint64_t received = exchange(offered, lane);
    memcpy(&x, &received, sizeof x);
    return x;
}
template <typename T> inline T __shfl_xor_sync(unsigned, T x, unsigned mask) { return take_from(x, lane_of_warp() ^ mask); }
template <typename T> inline T __shfl_sync(unsigned, T x, unsigned lane) { return take_from(x, lane); }
template <typename T> inline T __shfl_up_sync(unsigned, T x, unsigned by) {
    unsigned lane = lane_of_warp();
    return take_from(x, lane >= by ? lane - by : lane);
}
template <typename T> inline T __shfl_down_sync(unsigned, T x, unsigned by, unsigned width) {
    unsigned lane = lane_of_warp();
    return take_from(x, lane % width + by < width ? lane + by : lane);
}
