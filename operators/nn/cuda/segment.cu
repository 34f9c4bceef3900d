// Sums over the edges of every row, weighted or not; maxima. A row is a destination, or in backward passes a source.
#include "common.cuh"

// The weight of the row of x at the end of an edge: 1, ...
struct Unit {
    static const bool UNIT = true;
    template <typename A> __device__ __forceinline__ A at(u32, u32) const { return 1; }
};

// ... one over the degree of the row at the edge's other end, ...
struct InverseDegree {
    static const bool UNIT = false;
    const float *inverse;
    const u32 *indptr;
    template <typename A> __device__ __forceinline__ A at(u32, u32 index) const {
        // The inverses exist in single precision only.
        return sizeof(A) == sizeof(float) ? (A)inverse[index] : (A)1 / (A)(indptr[index + 1] - indptr[index]);
    }
};

// ... or the edge's own weight. `edges` holds the position of each edge's weight; null: the edge's own position.
template <typename W> struct EdgeWeight {
    static const bool UNIT = false;
    const W *weights;
    const u32 *edges;
    u32 heads, head;
    template <typename A> __device__ __forceinline__ A at(u32 e, u32) const {
        return weights[(size_t)(edges ? edges[e] : e) * heads + head];
    }
};

const u32 AHEAD = 4;
// Rows with at least LONG_ROW edges (graph_block.rs) are left to `sum_long_row`.
const u32 LONG_ROW = 512, LONG_AHEAD = 32;

// out[r, :] = scale · Σ weight(e) · x[indices[e], :] over the edges e of row r. If indices is null, edge e has row e.
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
            for (int n = 0; n < N; n++)
                sum.at[n] += Weight::UNIT ? widen(value[k].at[n]) : widen(value[k].at[n]) * w[k];
    }
    for (; e < end; e++) {
        u32 index = indices ? indices[e] : e;
        Pack<T, N> value = load<T, N>(x + (size_t)index * columns + column);
        A w = weight.template at<A>(e, index);
        for (int n = 0; n < N; n++) sum.at[n] += Weight::UNIT ? widen(value.at[n]) : widen(value.at[n]) * w;
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
        for (u32 k = 0; k < LONG_AHEAD; k++) sum += Weight::UNIT ? widen(value[k]) : widen(value[k]) * w[k];
    }
#pragma unroll
    for (u32 k = 0; k < LONG_AHEAD; k++)
        if (e + k < end) {
            A value = widen(x[(size_t)ahead[k] * columns + column]);
            sum += Weight::UNIT ? value : value * weight.template at<A>(e + k, ahead[k]);
        }
    if (mean) sum *= (A)1 / (A)(end - begin);
    out[(size_t)row * columns + column] = sum;
}

// The column of a long row that this thread sums: one block per row, and along y over the columns.
__device__ __forceinline__ u32 long_column() { return blockIdx.y * blockDim.x + threadIdx.x; }

template <typename T>
__device__ __forceinline__ void segment_sum_long(const u32 *long_rows, const u32 *indptr, const u32 *indices, const T *x,
                                                 typename Sum<T>::Type *out, u32 columns, u32 mean) {
    u32 column = long_column();
    if (column < columns)
        sum_long_row<T>(indptr, indices, x, Unit(), mean != 0, out, long_rows[blockIdx.x], column, columns);
}

template <typename A>
__device__ __forceinline__ void segment_mean_backward_long(const u32 *long_rows, const u32 *by_source, const u32 *destinations,
                                                           const A *gradient, const float *inverse, const u32 *indptr, A *out,
                                                           u32 columns) {
    u32 column = long_column();
    if (column < columns)
        sum_long_row<A>(by_source, destinations, gradient, InverseDegree{inverse, indptr}, false, out, long_rows[blockIdx.x],
                        column, columns);
}

template <typename T>
__device__ __forceinline__ void weighted_sum_long(const u32 *long_rows, const u32 *indptr, const u32 *indices, const u32 *edges,
                                                  const typename Sum<T>::Type *weights, const T *x,
                                                  typename Sum<T>::Type *out, u32 heads, u32 width) {
    u32 column = long_column();
    if (column < heads * width) {
        EdgeWeight<typename Sum<T>::Type> weight = {weights, edges, heads, column / width};
        sum_long_row<T>(indptr, indices, x, weight, false, out, long_rows[blockIdx.x], column, heads * width);
    }
}

template <typename T, int N>
__device__ __forceinline__ void segment_sum(const u32 *indptr, const u32 *indices, const T *x, typename Sum<T>::Type *out,
                                            u32 rows, u32 columns, u32 shift, u32 mean) {
    Place p(shift, N);
    if (p.row < rows && p.column < columns)
        sum_rows<T, N>(indptr, indices, x, Unit(), mean != 0, out, p.row, p.column, columns);
}

template <typename A, int N>
__device__ __forceinline__ void segment_mean_backward(const u32 *by_source, const u32 *destinations, const A *gradient,
                                                      const float *inverse, const u32 *indptr, A *out, u32 rows, u32 columns,
                                                      u32 shift) {
    Place p(shift, N);
    if (p.row < rows && p.column < columns)
        sum_rows<A, N>(by_source, destinations, gradient, InverseDegree{inverse, indptr}, false, out, p.row, p.column, columns);
}

template <typename T, int N>
__device__ __forceinline__ void weighted_sum(const u32 *indptr, const u32 *indices, const u32 *edges,
                                             const typename Sum<T>::Type *weights, const T *x, typename Sum<T>::Type *out,
                                             u32 rows, u32 heads, u32 width, u32 shift) {
    Place p(shift, N);
    u32 columns = heads * width;
    if (p.row < rows && p.column < columns) {
        EdgeWeight<typename Sum<T>::Type> weight = {weights, edges, heads, p.column / width};
        sum_rows<T, N>(indptr, indices, x, weight, false, out, p.row, p.column, columns);
    }
}

const u32 NO_EDGE = 0xffffffffu;

template <typename T>
__device__ __forceinline__ void segment_argmax(const u32 *indptr, const u32 *indices, const T *x, u32 *out, u32 rows,
                                               u32 columns, u32 shift) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= columns) return;
    typename Sum<T>::Type best = 0;
    u32 arg = NO_EDGE, begin = indptr[p.row], end = indptr[p.row + 1];
    for (u32 e = begin; e < end; e++) {
        typename Sum<T>::Type value = widen(x[(size_t)indices[e] * columns + p.column]);
        if (e == begin || value > best) {
            best = value;
            arg = e;
        }
    }
    out[(size_t)p.row * columns + p.column] = arg;
}

template <typename T>
__device__ __forceinline__ void segment_pick(const u32 *indices, const u32 *arg, const T *x, typename Sum<T>::Type *out,
                                             u32 rows, u32 columns, u32 shift) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= columns) return;
    size_t here = (size_t)p.row * columns + p.column;
    u32 edge = arg[here];
    typename Sum<T>::Type value = 0;
    if (edge != NO_EDGE) value = widen(x[(size_t)indices[edge] * columns + p.column]);
    out[here] = value;
}

template <typename A>
__device__ __forceinline__ void segment_pick_backward(const u32 *by_source, const u32 *destinations, const u32 *edges,
                                                      const u32 *arg, const A *gradient, A *out, u32 rows, u32 columns,
                                                      u32 shift) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= columns) return;
    A sum = 0;
    for (u32 i = by_source[p.row]; i < by_source[p.row + 1]; i++) {
        size_t there = (size_t)destinations[i] * columns + p.column;
        if (arg[there] == edges[i]) sum += gradient[there];
    }
    out[(size_t)p.row * columns + p.column] = sum;
}

#define ELEMENT(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void segment_sum_##SUFFIX(const u32 *indptr, const u32 *indices, const T *x, Sum<T>::Type *out,      \
                                                    u32 rows, u32 columns, u32 shift, u32 mean) {                              \
        segment_sum<T, 1>(indptr, indices, x, out, rows, columns, shift, mean);                                                \
    }                                                                                                                          \
    extern "C" __global__ void segment_sum_x4_##SUFFIX(const u32 *indptr, const u32 *indices, const T *x, Sum<T>::Type *out,   \
                                                       u32 rows, u32 columns, u32 shift, u32 mean) {                           \
        segment_sum<T, 4>(indptr, indices, x, out, rows, columns, shift, mean);                                                \
    }                                                                                                                          \
    extern "C" __global__ void segment_sum_long_##SUFFIX(const u32 *long_rows, const u32 *indptr, const u32 *indices,          \
                                                         const T *x, Sum<T>::Type *out, u32 columns, u32 mean) {               \
        segment_sum_long<T>(long_rows, indptr, indices, x, out, columns, mean);                                                \
    }                                                                                                                          \
    extern "C" __global__ void weighted_sum_long_##SUFFIX(const u32 *long_rows, const u32 *indptr, const u32 *indices,         \
                                                          const u32 *edges, const Sum<T>::Type *weights, const T *x,           \
                                                          Sum<T>::Type *out, u32 heads, u32 width) {                           \
        weighted_sum_long<T>(long_rows, indptr, indices, edges, weights, x, out, heads, width);                                \
    }                                                                                                                          \
    extern "C" __global__ void weighted_sum_##SUFFIX(const u32 *indptr, const u32 *indices, const u32 *edges,                  \
                                                     const Sum<T>::Type *weights, const T *x, Sum<T>::Type *out, u32 rows,     \
                                                     u32 heads, u32 width, u32 shift) {                                        \
        weighted_sum<T, 1>(indptr, indices, edges, weights, x, out, rows, heads, width, shift);                                \
    }                                                                                                                          \
    extern "C" __global__ void weighted_sum_x4_##SUFFIX(const u32 *indptr, const u32 *indices, const u32 *edges,               \
                                                        const Sum<T>::Type *weights, const T *x, Sum<T>::Type *out, u32 rows,  \
                                                        u32 heads, u32 width, u32 shift) {                                     \
        weighted_sum<T, 4>(indptr, indices, edges, weights, x, out, rows, heads, width, shift);                                \
    }                                                                                                                          \
    extern "C" __global__ void segment_argmax_##SUFFIX(const u32 *indptr, const u32 *indices, const T *x, u32 *out, u32 rows,  \
                                                       u32 columns, u32 shift) {                                               \
        segment_argmax<T>(indptr, indices, x, out, rows, columns, shift);                                                      \
    }                                                                                                                          \
    extern "C" __global__ void segment_pick_##SUFFIX(const u32 *indices, const u32 *arg, const T *x, Sum<T>::Type *out,        \
                                                     u32 rows, u32 columns, u32 shift) {                                       \
        segment_pick<T>(indices, arg, x, out, rows, columns, shift);                                                           \
    }

#define REAL(A, SUFFIX)                                                                                                        \
    extern "C" __global__ void segment_mean_backward_##SUFFIX(const u32 *by_source, const u32 *destinations,                   \
                                                              const A *gradient, const float *inverse, const u32 *indptr,      \
                                                              A *out, u32 rows, u32 columns, u32 shift) {                      \
        segment_mean_backward<A, 1>(by_source, destinations, gradient, inverse, indptr, out, rows, columns, shift);            \
    }                                                                                                                          \
    extern "C" __global__ void segment_mean_backward_x4_##SUFFIX(const u32 *by_source, const u32 *destinations,                \
                                                                 const A *gradient, const float *inverse, const u32 *indptr,   \
                                                                 A *out, u32 rows, u32 columns, u32 shift) {                   \
        segment_mean_backward<A, 4>(by_source, destinations, gradient, inverse, indptr, out, rows, columns, shift);            \
    }                                                                                                                          \
    extern "C" __global__ void segment_mean_backward_long_##SUFFIX(const u32 *long_rows, const u32 *by_source,                 \
                                                                   const u32 *destinations, const A *gradient,                 \
                                                                   const float *inverse, const u32 *indptr, A *out,            \
                                                                   u32 columns) {                                              \
        segment_mean_backward_long<A>(long_rows, by_source, destinations, gradient, inverse, indptr, out, columns);            \
    }                                                                                                                          \
    extern "C" __global__ void segment_pick_backward_##SUFFIX(const u32 *by_source, const u32 *destinations, const u32 *edges, \
                                                              const u32 *arg, const A *gradient, A *out, u32 rows,             \
                                                              u32 columns, u32 shift) {                                        \
        segment_pick_backward<A>(by_source, destinations, edges, arg, gradient, out, rows, columns, shift);                    \
    }

ELEMENT(float, f32)
ELEMENT(double, f64)
ELEMENT(bf16, bf16)
ELEMENT(f16, f16)
REAL(float, f32)
REAL(double, f64)
