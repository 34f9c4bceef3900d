// Shared by all kernels: number types, random draws, thread layouts over rows and columns, e^x, leaky ReLU.
//
// Kernels repeat the CPU's arithmetic in the CPU's order wherever one thread, or one half-warp, computes a sum (for
// this, the build disables fused multiply-add). The order of other sums depends on the sizes only. No kernel adds floats
// with atomics, so equal inputs give equal bits.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- Numbers ----

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

// The type that sums of numbers of type T are computed in.
template <typename T> struct Sum {
    typedef T Type;
};
template <> struct Sum<bf16> {
    typedef float Type;
};
template <> struct Sum<f16> {
    typedef float Type;
};

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float widen(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

// N numbers that are read or written in one access. Their address must be a multiple of their size, or of 16.
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};

template <typename T, int N> __device__ __forceinline__ Pack<T, N> load(const T *p) {
    return *reinterpret_cast<const Pack<T, N> *>(p);
}

template <typename A> __device__ __forceinline__ A negative_infinity();
template <> __device__ __forceinline__ float negative_infinity<float>() { return __int_as_float(0xff800000); }
template <> __device__ __forceinline__ double negative_infinity<double>() { return __longlong_as_double(0xfff0000000000000ll); }

// e^x exactly as on the CPU (`Real::exp`): range reduction to ±ln 2 / 2 and a polynomial of degree 6.
__device__ __forceinline__ float exponential(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.7f ? 88.7f : x;
    const float round = 12582912.0f; // 1.5 · 2^23: adding and subtracting it rounds to the nearest integer
    float k = (x * 1.44269504088896340736f + round) - round;
    float r = (x - k * 0.6933594f) + k * 2.121944400e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    float y = p * (r * r) + r + 1.0f;
    int whole = (int)k, half = whole >> 1;
    return y * __int_as_float((half + 127) << 23) * __int_as_float((whole - half + 127) << 23);
}
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// Leaky ReLU and its slope at x.
template <typename A> __device__ __forceinline__ A leaky(A x, A slope) { return x > 0 ? x : slope * x; }
template <typename A> __device__ __forceinline__ A leaky_slope(A x, A slope) { return x > 0 ? 1 : slope; }

// ---- Random draws, equal to those of `gnnflow_data::rng::Key` ----

__device__ __forceinline__ u64 mixed(u64 x) {
    const u64 multiplier = 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * multiplier;
    x = (x ^ (x >> 32)) * multiplier;
    return x ^ (x >> 32);
}
const u64 GOLDEN = 0x9e3779b97f4a7c15ull;

// Draw i under a key: 64 uniform bits.
__device__ __forceinline__ u64 draw(u64 key, u64 i) { return mixed(key + i * GOLDEN); }
// The key of a part of the work, `Key::fold`.
__device__ __forceinline__ u64 fold(u64 key, u64 word) { return mixed((key << 17 | key >> 47) ^ mixed(word + GOLDEN)); }
// Draw i as a number below n: the upper half of a product of 96 bits.
__device__ __forceinline__ u32 draw_below(u64 key, u64 i, u32 n) {
    u64 bits = draw(key, i), low = (bits & 0xffffffffu) * n;
    return (u32)(((bits >> 32) * n + (low >> 32)) >> 32);
}

// ---- Threads over rows and columns ----

const u32 THREADS = 256;

// Blocks of THREADS threads: 2^shift of them (at most a warp) are side by side on a row, N columns each, so that
// neighboring threads access neighboring columns. Blocks follow along x over the rows and along y over the columns.
struct Place {
    u32 row, column;
    __device__ __forceinline__ Place(u32 shift, u32 n) {
        u32 lane = threadIdx.x & ((1u << shift) - 1);
        row = blockIdx.x * (THREADS >> shift) + (threadIdx.x >> shift);
        column = ((blockIdx.y << shift) + lane) * n;
    }
};

// Rows that one thread of `gather_rows` copies.
const u32 GATHERED = 4;

// The number of this thread and the number of all threads, for loops over n numbers.
__device__ __forceinline__ u64 first_item() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 all_threads() { return (u64)gridDim.x * blockDim.x; }

const u32 ALL_LANES = 0xffffffffu;

// Every lane gets the sum, or the largest, of the lanes whose numbers differ from its own in bits `from` and up.
template <typename A> __device__ __forceinline__ A sum_of_lanes(A x, u32 from = 0) {
    for (u32 distance = 16; distance >> from; distance >>= 1) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}
template <typename A> __device__ __forceinline__ A largest_of_lanes(A x, u32 from = 0) {
    for (u32 distance = 16; distance >> from; distance >>= 1) {
        A other = __shfl_xor_sync(ALL_LANES, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

// Every lane gets the sum of the lanes up to its own.
template <typename A> __device__ __forceinline__ A sum_through_lane(A x) {
    for (u32 distance = 1; distance < 32; distance <<= 1) {
        A other = __shfl_up_sync(ALL_LANES, x, distance);
        if (threadIdx.x >= distance) x += other;
    }
    return x;
}

// Σ a[k] · b[k] by sixteen threads, of which this is number `lane`: sixteen interleaved sums, added as a tree, as on
// the CPU. All threads of the warp must call it; the first of the sixteen gets the sum.
const u32 DOT_LANES = 16;
template <typename A, typename T> __device__ __forceinline__ A dot(const A *a, const T *b, u32 width, u32 lane) {
    u32 whole = width - width % DOT_LANES;
    A sum = 0;
    if (lane < width - whole) sum += a[whole + lane] * widen(b[whole + lane]);
    for (u32 k = lane; k < whole; k += DOT_LANES) sum += a[k] * widen(b[k]);
    for (u32 half = DOT_LANES / 2; half; half >>= 1) sum += __shfl_down_sync(ALL_LANES, sum, half, DOT_LANES);
    return sum;
}

// Rows that one thread sums before panels are added up in double precision.
const u32 PANEL = 512;
