// Values on edges: sums and dot products of the values at both ends, softmax over the edges of every destination.
#include "common.cuh"

// out[e, h] = left[source of e, h] + right[destination of e, h]
template <typename A>
__device__ __forceinline__ void edge_add(const u32 *sources, const u32 *destinations, const A *left, const A *right, A *out,
                                         u32 edges, u32 heads, u32 shift) {
    Place p(shift, 1);
    if (p.row < edges && p.column < heads)
        out[(size_t)p.row * heads + p.column] =
            left[(size_t)sources[p.row] * heads + p.column] + right[(size_t)destinations[p.row] * heads + p.column];
}

// out[e, h] = gradient[destination of e, h, :] · x[source of e, h, :], sixteen threads per product.
template <typename T>
__device__ __forceinline__ void edge_dot(const u32 *sources, const u32 *destinations, const typename Sum<T>::Type *gradient,
                                         const T *x, typename Sum<T>::Type *out, u32 edges, u32 heads, u32 width) {
    u64 item = first_item() / DOT_LANES, items = (u64)edges * heads;
    u32 lane = threadIdx.x % DOT_LANES;
    bool mine = item < items;
    // Threads past the end repeat the last product, since the whole warp must take part.
    if (!mine) item = items - 1;
    u32 edge = (u32)(item / heads), head = (u32)(item % heads);
    size_t columns = (size_t)heads * width;
    typename Sum<T>::Type sum = dot(gradient + destinations[edge] * columns + head * width,
                                    x + sources[edge] * columns + head * width, width, lane);
    if (mine && lane == 0) out[item] = sum;
}

// A thread's place in a softmax: a warp has one row, 2^shift adjacent lanes have different heads, and the edges are
// divided among the 32 / 2^shift lanes of each head. Blocks are 32 × 8 threads.
struct Row {
    u32 row, head, first, step;
    __device__ __forceinline__ Row(u32 shift) {
        row = blockIdx.x * blockDim.y + threadIdx.y;
        head = (blockIdx.y << shift) + (threadIdx.x & ((1u << shift) - 1));
        first = threadIdx.x >> shift;
        step = 32u >> shift;
    }
};

// The logits of a softmax: stored ones, ...
template <typename A> struct StoredLogits {
    const A *logits;
    __device__ __forceinline__ A at(const Row &r, u32 e, u32 heads) const { return logits[(size_t)e * heads + r.head]; }
};

// ... or GAT's: leaky(left[source] + right[destination]).
template <typename A> struct LeakySums {
    const u32 *sources;
    const A *left, *right;
    A slope;
    __device__ __forceinline__ A at(const Row &r, u32 e, u32 heads) const {
        return leaky(left[(size_t)sources[e] * heads + r.head] + right[(size_t)r.row * heads + r.head], slope);
    }
};

// Numbers that a thread keeps in registers: rows of up to HELD edges for each of their lanes are read once.
const u32 HELD = 8;

template <typename A, typename Logits>
__device__ __forceinline__ void edge_softmax(const u32 *indptr, Logits logits, A *out, u32 rows, u32 heads, u32 shift) {
    Row r(shift);
    if (r.row >= rows) return; // the whole warp
    u32 begin = indptr[r.row], end = indptr[r.row + 1];
    bool is_short = end - begin <= HELD * r.step; // of the whole warp
    if (r.head >= heads) end = begin;
    A largest = negative_infinity<A>(), total = 0;
    if (is_short) {
        A held[HELD];
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            u32 e = begin + r.first + k * r.step;
            held[k] = e < end ? logits.at(r, e, heads) : negative_infinity<A>();
        }
#pragma unroll
        for (u32 k = 0; k < HELD; k++) largest = held[k] > largest ? held[k] : largest;
        largest = largest_of_lanes(largest, shift);
#pragma unroll
        for (u32 k = 0; k < HELD; k++)
            if (begin + r.first + k * r.step < end) total += held[k] = exponential(held[k] - largest);
        total = sum_of_lanes(total, shift);
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            u32 e = begin + r.first + k * r.step;
            if (e < end) out[(size_t)e * heads + r.head] = held[k] / total;
        }
        return;
    }
    for (u32 e = begin + r.first; e < end; e += r.step) {
        A z = logits.at(r, e, heads);
        largest = z > largest ? z : largest;
    }
    largest = largest_of_lanes(largest, shift);
    for (u32 e = begin + r.first; e < end; e += r.step) {
        A power = exponential(logits.at(r, e, heads) - largest);
        out[(size_t)e * heads + r.head] = power;
        total += power;
    }
    total = sum_of_lanes(total, shift);
    for (u32 e = begin + r.first; e < end; e += r.step) out[(size_t)e * heads + r.head] /= total;
}

template <typename A>
__device__ __forceinline__ void edge_softmax_backward(const u32 *indptr, const A *alpha, const A *gradient, A *out, u32 rows,
                                                      u32 heads, u32 shift) {
    Row r(shift);
    if (r.row >= rows) return; // the whole warp
    u32 begin = indptr[r.row], end = indptr[r.row + 1];
    bool is_short = end - begin <= HELD * r.step; // of the whole warp
    if (r.head >= heads) end = begin;
    A total = 0;
    if (is_short) {
        A share[HELD], change[HELD];
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            u32 e = begin + r.first + k * r.step;
            share[k] = e < end ? alpha[(size_t)e * heads + r.head] : 0;
            change[k] = e < end ? gradient[(size_t)e * heads + r.head] : 0;
        }
#pragma unroll
        for (u32 k = 0; k < HELD; k++)
            if (begin + r.first + k * r.step < end) total += share[k] * change[k];
        total = sum_of_lanes(total, shift);
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            u32 e = begin + r.first + k * r.step;
            if (e < end) out[(size_t)e * heads + r.head] = share[k] * (change[k] - total);
        }
        return;
    }
    for (u32 e = begin + r.first; e < end; e += r.step)
        total += alpha[(size_t)e * heads + r.head] * gradient[(size_t)e * heads + r.head];
    total = sum_of_lanes(total, shift);
    for (u32 e = begin + r.first; e < end; e += r.step) {
        size_t i = (size_t)e * heads + r.head;
        out[i] = alpha[i] * (gradient[i] - total);
    }
}

#define ELEMENT(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void edge_dot_##SUFFIX(const u32 *sources, const u32 *destinations, const Sum<T>::Type *gradient,    \
                                                 const T *x, Sum<T>::Type *out, u32 edges, u32 heads, u32 width) {             \
        edge_dot<T>(sources, destinations, gradient, x, out, edges, heads, width);                                             \
    }

#define REAL(A, SUFFIX)                                                                                                        \
    extern "C" __global__ void edge_add_##SUFFIX(const u32 *sources, const u32 *destinations, const A *left, const A *right,   \
                                                 A *out, u32 edges, u32 heads, u32 shift) {                                    \
        edge_add<A>(sources, destinations, left, right, out, edges, heads, shift);                                             \
    }                                                                                                                          \
    extern "C" __global__ void edge_softmax_##SUFFIX(const u32 *indptr, const A *logits, A *out, u32 rows, u32 heads,          \
                                                     u32 shift) {                                                              \
        edge_softmax<A>(indptr, StoredLogits<A>{logits}, out, rows, heads, shift);                                             \
    }                                                                                                                          \
    extern "C" __global__ void attention_softmax_##SUFFIX(const u32 *indptr, const u32 *sources, const A *left,                \
                                                          const A *right, A *out, u32 rows, u32 heads, u32 shift,              \
                                                          double slope) {                                                      \
        edge_softmax<A>(indptr, LeakySums<A>{sources, left, right, (A)slope}, out, rows, heads, shift);                        \
    }                                                                                                                          \
    extern "C" __global__ void edge_softmax_backward_##SUFFIX(const u32 *indptr, const A *alpha, const A *gradient, A *out,    \
                                                              u32 rows, u32 heads, u32 shift) {                                \
        edge_softmax_backward<A>(indptr, alpha, gradient, out, rows, heads, shift);                                            \
    }

ELEMENT(float, f32)
ELEMENT(double, f64)
ELEMENT(bf16, bf16)
ELEMENT(f16, f16)
REAL(float, f32)
REAL(double, f64)
