// Sums over the edges of every row, for several files of kernels. A row is a destination, or in backward passes a source.
#pragma once
#include "common.cuh"

// What an edge adds to its row: `term` of its weight and number n of the row of x at its end. Here that number itself, ...
struct Unit {
    template <typename A> __device__ __forceinline__ A at(u32, u32) const { return 1; }
    template <typename A> __device__ __forceinline__ A term(A value, A, int) const { return value; }
};

// ... times one over the degree of the row at the edge's other end, ...
struct InverseDegree {
    const float *inverse;
    const u32 *indptr;
    template <typename A> __device__ __forceinline__ A at(u32, u32 index) const {
        // The inverses exist in single precision only.
        return sizeof(A) == sizeof(float) ? (A)inverse[index] : (A)1 / (A)(indptr[index + 1] - indptr[index]);
    }
    template <typename A> __device__ __forceinline__ A term(A value, A weight, int) const { return value * weight; }
};

// ... or times the edge's own weight. `edges` holds the position of each edge's weight; null: the edge's own position.
template <typename W> struct EdgeWeight {
    const W *weights;
    const u32 *edges;
    u32 heads, head;
    template <typename A> __device__ __forceinline__ A at(u32 e, u32) const {
        return weights[(size_t)(edges ? edges[e] : e) * heads + head];
    }
    template <typename A> __device__ __forceinline__ A term(A value, A weight, int) const { return value * weight; }
};

const u32 AHEAD = 4;
// Rows with at least LONG_ROW edges (device_block.rs) are left to `sum_long_row`.
const u32 LONG_ROW = 512, LONG_AHEAD = 32;

// out[r, :] = scale · Σ term(e, x[indices[e], :]) over the edges e of row r. If indices is null, edge e has row e.
// AHEAD rows are loaded together to hide memory latency, and added in order to keep the bits.
template <typename T, int N, typename Weight>
__device__ __forceinline__ void sum_rows(const u32 *indptr, const u32 *indices, const T *x, Weight weight, bool mean,
                                         typename Sum<T>::Type *out, u32 row, u32 column, u32 columns) {
    typedef typename Sum<T>::Type A;
    Pack<A, N> sum;
    for (int n = 0; n < N; n++) sum.at[n] = 0;
    u32 begin = indptr[row], end = indptr[row + 1], e = begin;
    if (end - begin >= LONG_ROW) return;
    for (; end - e >= AHEAD; e += AHEAD) {
        Pack<T, N> value[AHEAD];
        A w[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            u32 index = indices ? indices[e + k] : e + k;
            value[k] = load<T, N>(x + (size_t)index * columns + column);
            w[k] = weight.template at<A>(e + k, index);
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++)
            for (int n = 0; n < N; n++) sum.at[n] += weight.term(widen(value[k].at[n]), w[k], n);
    }
    for (; e < end; e++) {
        u32 index = indices ? indices[e] : e;
        Pack<T, N> value = load<T, N>(x + (size_t)index * columns + column);
        A w = weight.template at<A>(e, index);
        for (int n = 0; n < N; n++) sum.at[n] += weight.term(widen(value.at[n]), w, n);
    }
    if (mean && end > begin) {
        A share = (A)1 / (A)(end - begin);
        for (int n = 0; n < N; n++) sum.at[n] *= share;
    }
    *reinterpret_cast<Pack<A, N> *>(out + (size_t)row * columns + column) = sum;
}

// As sum_rows, for one column of a long row. Indices are read a step before their rows.
template <typename T, typename Weight>
__device__ __forceinline__ void sum_long_row(const u32 *indptr, const u32 *indices, const T *x, Weight weight, bool mean,
                                             typename Sum<T>::Type *out, u32 row, u32 column, u32 columns) {
    typedef typename Sum<T>::Type A;
    u32 begin = indptr[row], end = indptr[row + 1], e = begin;
    u32 ahead[LONG_AHEAD];
#pragma unroll
    for (u32 k = 0; k < LONG_AHEAD; k++) ahead[k] = indices ? indices[e + k] : e + k;
    A sum = 0;
    while (end - e >= LONG_AHEAD) {
        T value[LONG_AHEAD];
        A w[LONG_AHEAD];
#pragma unroll
        for (u32 k = 0; k < LONG_AHEAD; k++) {
            value[k] = x[(size_t)ahead[k] * columns + column];
            w[k] = weight.template at<A>(e + k, ahead[k]);
        }
        e += LONG_AHEAD;
#pragma unroll
        for (u32 k = 0; k < LONG_AHEAD; k++)
            if (e + k < end) ahead[k] = indices ? indices[e + k] : e + k;
#pragma unroll
        for (u32 k = 0; k < LONG_AHEAD; k++) sum += weight.term(widen(value[k]), w[k], 0);
    }
#pragma unroll
    for (u32 k = 0; k < LONG_AHEAD; k++)
        if (e + k < end) {
            A value = widen(x[(size_t)ahead[k] * columns + column]);
            sum += weight.term(value, weight.template at<A>(e + k, ahead[k]), 0);
        }
    if (mean) sum *= (A)1 / (A)(end - begin);
    out[(size_t)row * columns + column] = sum;
}

// The column of a long row that this thread sums: one block per row, and along y over the columns.
__device__ __forceinline__ u32 long_column() { return blockIdx.y * blockDim.x + threadIdx.x; }
