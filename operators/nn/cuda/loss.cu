// Losses over rows of logits, their gradients, log-softmax. One warp per row (blocks are 32 × 8 threads); sums are
// double.
#include "common.cuh"

__device__ __forceinline__ u32 warp_row() { return blockIdx.x * blockDim.y + threadIdx.y; }

// The largest number of a row, and Σ e^(x − largest).
template <typename A> __device__ __forceinline__ A largest_of_row(const A *row, u32 columns, double *total) {
    A largest = negative_infinity<A>();
    for (u32 c = threadIdx.x; c < columns; c += 32) largest = row[c] > largest ? row[c] : largest;
    largest = largest_of_lanes(largest);
    double sum = 0;
    for (u32 c = threadIdx.x; c < columns; c += 32) sum += exponential(row[c] - largest);
    *total = sum_of_lanes(sum);
    return largest;
}

// each[r] = −log softmax(logits[r])[labels[r]]
template <typename A>
__device__ __forceinline__ void cross_entropy(const A *logits, const u32 *labels, double *each, u32 rows, u32 classes) {
    u32 r = warp_row();
    if (r >= rows) return;
    const A *row = logits + (size_t)r * classes;
    double total;
    A largest = largest_of_row(row, classes, &total);
    if (threadIdx.x == 0) each[r] = log(total) + (double)largest - (double)row[labels[r]];
}

// out[r] = scale · (softmax(logits[r]) − onehot(labels[r]))
template <typename A>
__device__ __forceinline__ void cross_entropy_backward(const A *logits, const u32 *labels, const double *scale, A *out,
                                                       u32 rows, u32 classes) {
    u32 r = warp_row();
    if (r >= rows) return;
    const A *row = logits + (size_t)r * classes;
    double total;
    A largest = largest_of_row(row, classes, &total), factor = (A)(*scale / total);
    for (u32 c = threadIdx.x; c < classes; c += 32) {
        A gradient = exponential(row[c] - largest) * factor;
        out[(size_t)r * classes + c] = c == labels[r] ? gradient - (A)*scale : gradient;
    }
}

// Σ over this block's threads, returned to the first thread; blocks of THREADS threads.
__device__ __forceinline__ double sum_of_block(double x) {
    __shared__ double sums[THREADS / 32];
    x = sum_of_lanes(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    double all = 0;
    if (threadIdx.x == 0)
        for (u32 warp = 0; warp < THREADS / 32; warp++) all += sums[warp];
    return all;
}

// Numbers that one block sums.
const u32 PIECE = 4096;

// each[b] = Σ max(x, 0) − x·y + log(1 + e^−|x|) over the PIECE numbers of block b
template <typename A>
__device__ __forceinline__ void binary_cross_entropy(const A *logits, const A *targets, double *each, u64 n) {
    u64 first = (u64)blockIdx.x * PIECE, last = first + PIECE < n ? first + PIECE : n;
    double sum = 0;
    for (u64 i = first + threadIdx.x; i < last; i += THREADS) {
        double x = logits[i], y = targets[i];
        sum += (x > 0 ? x : 0) - x * y + log1p(exp(-fabs(x)));
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) each[blockIdx.x] = sum;
}

// out = scale · (sigmoid(x) − y)
template <typename A>
__device__ __forceinline__ void binary_cross_entropy_backward(const A *logits, const A *targets, const double *scale, A *out,
                                                              u64 n) {
    A factor = (A)*scale;
    for (u64 i = first_item(); i < n; i += all_threads())
        out[i] = factor * (1 / (1 + exponential(-logits[i])) - targets[i]);
}

// log(1 − p) in *missed, and −log p, where p = sigmoid(z)
__device__ __forceinline__ double logarithms(double z, double *missed) {
    double rest = log1p(exp(-fabs(z)));
    *missed = -(z > 0 ? z : 0) - rest;
    return (z > 0 ? 0 : -z) + rest;
}

// each[b] = Σ |w| · (1 − p)^gamma · −log p over the PIECE numbers of block b; p is sigmoid(x), or sigmoid(−x) where w is
// negative
template <typename A>
__device__ __forceinline__ void sigmoid_focal_loss(const A *logits, const A *weights, double *each, u64 n, double gamma) {
    u64 first = (u64)blockIdx.x * PIECE, last = first + PIECE < n ? first + PIECE : n;
    double sum = 0;
    for (u64 i = first + threadIdx.x; i < last; i += THREADS) {
        double x = logits[i], w = weights[i], missed;
        double loss = logarithms(w > 0 ? x : -x, &missed);
        sum += fabs(w) * exp(gamma * missed) * loss;
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) each[blockIdx.x] = sum;
}

// out = −scale · w · (1 − p)^gamma · (1 − p − gamma · p · log p)
template <typename A>
__device__ __forceinline__ void sigmoid_focal_loss_backward(const A *logits, const A *weights, const double *scale, A *out,
                                                            u64 n, double gamma) {
    for (u64 i = first_item(); i < n; i += all_threads()) {
        double x = logits[i], w = weights[i], missed;
        double loss = logarithms(w > 0 ? x : -x, &missed);
        out[i] = (A)(-*scale * w * exp(gamma * missed) * (exp(missed) + gamma * exp(-loss) * loss));
    }
}

// *out = Σ each, by one block.
extern "C" __global__ void sum_of_each(const double *each, double *out, u64 n) {
    double sum = 0;
    for (u64 i = threadIdx.x; i < n; i += THREADS) sum += each[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *out = sum;
}

template <typename A> __device__ __forceinline__ void log_softmax(const A *x, A *out, u32 rows, u32 classes) {
    u32 r = warp_row();
    if (r >= rows) return;
    const A *row = x + (size_t)r * classes;
    double total;
    A largest = largest_of_row(row, classes, &total), logarithm = (A)log(total);
    for (u32 c = threadIdx.x; c < classes; c += 32) out[(size_t)r * classes + c] = row[c] - largest - logarithm;
}

template <typename A>
__device__ __forceinline__ void log_softmax_backward(const A *result, const A *gradient, A *out, u32 rows, u32 classes) {
    u32 r = warp_row();
    if (r >= rows) return;
    size_t first = (size_t)r * classes;
    double sum = 0;
    for (u32 c = threadIdx.x; c < classes; c += 32) sum += gradient[first + c];
    A total = (A)sum_of_lanes(sum);
    for (u32 c = threadIdx.x; c < classes; c += 32) out[first + c] = gradient[first + c] - exponential(result[first + c]) * total;
}

#define REAL(A, SUFFIX)                                                                                                        \
    extern "C" __global__ void cross_entropy_##SUFFIX(const A *logits, const u32 *labels, double *each, u32 rows,              \
                                                      u32 classes) {                                                           \
        cross_entropy<A>(logits, labels, each, rows, classes);                                                                 \
    }                                                                                                                          \
    extern "C" __global__ void cross_entropy_backward_##SUFFIX(const A *logits, const u32 *labels, const double *scale,        \
                                                               A *out, u32 rows, u32 classes) {                                \
        cross_entropy_backward<A>(logits, labels, scale, out, rows, classes);                                                  \
    }                                                                                                                          \
    extern "C" __global__ void binary_cross_entropy_##SUFFIX(const A *logits, const A *targets, double *each, u64 n) {         \
        binary_cross_entropy<A>(logits, targets, each, n);                                                                     \
    }                                                                                                                          \
    extern "C" __global__ void binary_cross_entropy_backward_##SUFFIX(const A *logits, const A *targets, const double *scale,  \
                                                                      A *out, u64 n) {                                         \
        binary_cross_entropy_backward<A>(logits, targets, scale, out, n);                                                      \
    }                                                                                                                          \
    extern "C" __global__ void sigmoid_focal_loss_##SUFFIX(const A *logits, const A *weights, double *each, u64 n,             \
                                                           double gamma) {                                                     \
        sigmoid_focal_loss<A>(logits, weights, each, n, gamma);                                                                \
    }                                                                                                                          \
    extern "C" __global__ void sigmoid_focal_loss_backward_##SUFFIX(const A *logits, const A *weights, const double *scale,    \
                                                                    A *out, u64 n, double gamma) {                             \
        sigmoid_focal_loss_backward<A>(logits, weights, scale, out, n, gamma);                                                 \
    }                                                                                                                          \
    extern "C" __global__ void log_softmax_##SUFFIX(const A *x, A *out, u32 rows, u32 classes) {                               \
        log_softmax<A>(x, out, rows, classes);                                                                                 \
    }                                                                                                                          \
    extern "C" __global__ void log_softmax_backward_##SUFFIX(const A *result, const A *gradient, A *out, u32 rows,             \
                                                             u32 classes) {                                                    \
        log_softmax_backward<A>(result, gradient, out, rows, classes);                                                         \
    }

REAL(float, f32)
REAL(double, f64)
