// Rows of several heads: dot products with a vector per head, the mean over heads, their gradients.
#include "common.cuh"

// out[n, h] = x[n, h, :] · a[h, :], sixteen threads per product.
template <typename A>
__device__ __forceinline__ void head_dot(const A *x, const A *a, A *out, u32 rows, u32 heads, u32 width) {
    u64 item = first_item() / DOT_LANES, items = (u64)rows * heads;
    u32 lane = threadIdx.x % DOT_LANES;
    bool mine = item < items;
    // Threads past the end repeat the last product, since the whole warp must take part.
    if (!mine) item = items - 1;
    A sum = dot(x + item * width, a + (size_t)(item % heads) * width, width, lane);
    if (mine && lane == 0) out[item] = sum;
}

// out[n, h, f] = gradient[n, h] · a[h, f]
template <typename A>
__device__ __forceinline__ void head_dot_rows(const A *a, const A *gradient, A *out, u32 rows, u32 heads, u32 width,
                                              u32 shift) {
    Place p(shift, 1);
    u32 columns = heads * width;
    if (p.row < rows && p.column < columns)
        out[(size_t)p.row * columns + p.column] = gradient[(size_t)p.row * heads + p.column / width] * a[p.column];
}

// sums[p, h, f] = Σ gradient[n, h] · x[n, h, f] over the PANEL rows of panel p. Blocks follow along x over the panels.
template <typename A>
__device__ __forceinline__ void head_dot_vectors(const A *x, const A *gradient, A *sums, u32 rows, u32 heads, u32 width) {
    u32 columns = heads * width, column = blockIdx.y * blockDim.x + threadIdx.x;
    u32 first = blockIdx.x * PANEL, last = min(first + PANEL, rows);
    if (column >= columns) return;
    u32 head = column / width;
    A sum = 0;
#pragma unroll 8
    for (u32 row = first; row < last; row++)
        sum += gradient[(size_t)row * heads + head] * x[(size_t)row * columns + column];
    sums[(size_t)blockIdx.x * columns + column] = sum;
}

// out[n, f] = Σ x[n, h, f] / heads
template <typename A>
__device__ __forceinline__ void head_mean(const A *x, A *out, u32 rows, u32 heads, u32 width, u32 shift) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= width) return;
    A sum = 0, share = (A)1 / (A)heads;
    for (u32 head = 0; head < heads; head++) sum += x[((size_t)p.row * heads + head) * width + p.column];
    out[(size_t)p.row * width + p.column] = sum * share;
}

// out[n, h, f] = gradient[n, f] / heads
template <typename A>
__device__ __forceinline__ void head_mean_backward(const A *gradient, A *out, u32 rows, u32 heads, u32 width, u32 shift) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= width) return;
    A share = gradient[(size_t)p.row * width + p.column] * ((A)1 / (A)heads);
    for (u32 head = 0; head < heads; head++) out[((size_t)p.row * heads + head) * width + p.column] = share;
}

#define REAL(A, SUFFIX)                                                                                                        \
    extern "C" __global__ void head_dot_##SUFFIX(const A *x, const A *a, A *out, u32 rows, u32 heads, u32 width) {             \
        head_dot<A>(x, a, out, rows, heads, width);                                                                            \
    }                                                                                                                          \
    extern "C" __global__ void head_dot_rows_##SUFFIX(const A *a, const A *gradient, A *out, u32 rows, u32 heads, u32 width,   \
                                                      u32 shift) {                                                             \
        head_dot_rows<A>(a, gradient, out, rows, heads, width, shift);                                                         \
    }                                                                                                                          \
    extern "C" __global__ void head_dot_vectors_##SUFFIX(const A *x, const A *gradient, A *sums, u32 rows, u32 heads,          \
                                                         u32 width) {                                                          \
        head_dot_vectors<A>(x, gradient, sums, rows, heads, width);                                                            \
    }                                                                                                                          \
    extern "C" __global__ void head_mean_##SUFFIX(const A *x, A *out, u32 rows, u32 heads, u32 width, u32 shift) {             \
        head_mean<A>(x, out, rows, heads, width, shift);                                                                       \
    }                                                                                                                          \
    extern "C" __global__ void head_mean_backward_##SUFFIX(const A *gradient, A *out, u32 rows, u32 heads, u32 width,          \
                                                           u32 shift) {                                                        \
        head_mean_backward<A>(gradient, out, rows, heads, width, shift);                                                       \
    }

REAL(float, f32)
REAL(double, f64)
