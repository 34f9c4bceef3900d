// Sums over the edges of every row, weighted or not; maxima. A row is a destination, or in backward passes a source.
#include "rows.cuh"

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
