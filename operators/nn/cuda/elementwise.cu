// Activations fused with dropout, biases, sums of columns.
#include "common.cuh"

// Numbers as in src/cuda/elementwise.rs.
enum Activation { IDENTITY, RELU, LEAKY_RELU, ELU, TANH, GELU };

template <typename A> __device__ __forceinline__ A tangent(A x) { return 1 - 2 / (exponential(x + x) + 1); }

// tanh(√(2/π) · (x + 0.044715·x³)), for GELU.
template <typename A> __device__ __forceinline__ A gelu_bend(A x) {
    return tangent((A)0.7978845608028654 * (x + (A)0.044715 * (x * x * x)));
}

template <typename A> __device__ __forceinline__ A tangent_slope(A x) {
    A t = tangent(x);
    return 1 - t * t;
}

template <typename A> __device__ __forceinline__ A gelu_slope(A x) {
    A t = gelu_bend(x), inner = (A)0.7978845608028654 * (1 + (A)0.134145 * (x * x));
    return (A)0.5 * (1 + t) + (A)0.5 * x * (1 - t * t) * inner;
}

template <typename A> __device__ __forceinline__ A value_at(u32 activation, A slope, A x) {
    switch (activation) {
    case RELU: return x < 0 ? 0 : x;
    case LEAKY_RELU: return leaky(x, slope);
    case ELU: return x > 0 ? x : exponential(x) - 1;
    case TANH: return tangent(x);
    case GELU: return (A)0.5 * x * (1 + gelu_bend(x));
    default: return x;
    }
}

template <typename A> __device__ __forceinline__ A slope_at(u32 activation, A slope, A x) {
    switch (activation) {
    case RELU: return x > 0 ? 1 : 0;
    case LEAKY_RELU: return leaky_slope(x, slope);
    case ELU: return x > 0 ? 1 : exponential(x);
    case TANH: return tangent_slope(x);
    case GELU: return gelu_slope(x);
    default: return 1;
    }
}

// A dropout mask: numbers whose 32-bit draw is below cut are dropped, the others are multiplied by scale; 0 is no mask.
struct Dropout {
    u64 key;
    u32 cut;
    double scale;
    template <typename A> __device__ __forceinline__ A apply(u64 i, A x) const {
        if (scale == 0) return x;
        return (u32)(draw(key, i) >> 32) >= cut ? x * (A)scale : 0;
    }
};

template <typename T>
__device__ __forceinline__ void activate(const T *x, typename Sum<T>::Type *out, u64 n, u32 activation, double slope,
                                         Dropout dropout) {
    for (u64 i = first_item(); i < n; i += all_threads())
        out[i] = dropout.apply(i, value_at<typename Sum<T>::Type>(activation, slope, widen(x[i])));
}

template <typename A>
__device__ __forceinline__ void activate_backward(const A *x, const A *gradient, A *out, u64 n, u32 activation, double slope,
                                                  Dropout dropout) {
    for (u64 i = first_item(); i < n; i += all_threads())
        out[i] = dropout.apply(i, gradient[i] * slope_at<A>(activation, slope, x[i]));
}

// out[r, c] = x[r, c] + bias[c]
template <typename A>
__device__ __forceinline__ void add_bias(const A *x, const A *bias, A *out, u32 rows, u32 columns, u32 shift) {
    Place p(shift, 1);
    size_t here = (size_t)p.row * columns + p.column;
    if (p.row < rows && p.column < columns) out[here] = x[here] + bias[p.column];
}

// out[r, c] = bias[c]
template <typename A> __device__ __forceinline__ void fill_rows(const A *bias, A *out, u32 rows, u32 columns, u32 shift) {
    Place p(shift, 1);
    if (p.row < rows && p.column < columns) out[(size_t)p.row * columns + p.column] = bias[p.column];
}

// sums[p, c] = Σ x[r, c] over the PANEL rows of panel p. Blocks follow along x over the panels.
template <typename A> __device__ __forceinline__ void column_sum(const A *x, A *sums, u32 rows, u32 columns) {
    u32 first = blockIdx.x * PANEL, last = min(first + PANEL, rows), column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    A sum = 0;
#pragma unroll 8
    for (u32 row = first; row < last; row++) sum += x[(size_t)row * columns + column];
    sums[(size_t)blockIdx.x * columns + column] = sum;
}

// out[c] = Σ sums[p, c], in double precision and in order.
template <typename A> __device__ __forceinline__ void sum_panels(const A *sums, A *out, u32 panels, u32 columns) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    double sum = 0;
#pragma unroll 8
    for (u32 panel = 0; panel < panels; panel++) sum += sums[(size_t)panel * columns + column];
    out[column] = (A)sum;
}

#define ELEMENT(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void activate_##SUFFIX(const T *x, Sum<T>::Type *out, u64 n, u32 activation, double slope, u64 key,  \
                                                 u32 cut, double scale) {                                                      \
        activate<T>(x, out, n, activation, slope, Dropout{key, cut, scale});                                                   \
    }

#define REAL(A, SUFFIX)                                                                                                        \
    extern "C" __global__ void activate_backward_##SUFFIX(const A *x, const A *gradient, A *out, u64 n, u32 activation,        \
                                                          double slope, u64 key, u32 cut, double scale) {                      \
        activate_backward<A>(x, gradient, out, n, activation, slope, Dropout{key, cut, scale});                                \
    }                                                                                                                          \
    extern "C" __global__ void add_bias_##SUFFIX(const A *x, const A *bias, A *out, u32 rows, u32 columns, u32 shift) {        \
        add_bias<A>(x, bias, out, rows, columns, shift);                                                                       \
    }                                                                                                                          \
    extern "C" __global__ void fill_rows_##SUFFIX(const A *bias, A *out, u32 rows, u32 columns, u32 shift) {                   \
        fill_rows<A>(bias, out, rows, columns, shift);                                                                         \
    }                                                                                                                          \
    extern "C" __global__ void column_sum_##SUFFIX(const A *x, A *sums, u32 rows, u32 columns) {                               \
        column_sum<A>(x, sums, rows, columns);                                                                                 \
    }                                                                                                                          \
    extern "C" __global__ void sum_panels_##SUFFIX(const A *sums, A *out, u32 panels, u32 columns) {                           \
        sum_panels<A>(sums, out, panels, columns);                                                                             \
    }

ELEMENT(float, f32)
ELEMENT(double, f64)
ELEMENT(bf16, bf16)
ELEMENT(f16, f16)
REAL(float, f32)
REAL(double, f64)
