// Attention over the edges of every destination, without a stored row per edge: GATv2's logits and their gradients, and the
// gradients of GAT's attention (edges.cu computes it).
#include "rows.cuh"

// sum += vectors · leaky(left + right) for the columns k to k + N.
template <typename A, int N>
__device__ __forceinline__ void add_logit(const A *left, const A *right, const A *vectors, u32 k, A slope, Pack<A, N> &sum) {
    Pack<A, N> l = load<A, N>(left + k), r = load<A, N>(right + k), vector = load<A, N>(vectors + k);
    for (int n = 0; n < N; n++) sum.at[n] += vector.at[n] * leaky(l.at[n] + r.at[n], slope);
}

// out[e, h] = vectors[h, :] · leaky(left[source of e, h, :] + right[destination of e, h, :]). As in `dot`, sixteen
// interleaved sums per product are added as a tree. A thread has N of them, and is a column of `Place`.
template <typename A, int N>
__device__ __forceinline__ void attention_logits(const u32 *sources, const u32 *destinations, const A *left, const A *right,
                                                 const A *vectors, A *out, u32 edges, u32 heads, u32 width, u32 shift,
                                                 A slope) {
    const u32 threads = DOT_LANES / N;
    Place p(shift, 1);
    bool mine = p.row < edges && p.column < heads * threads;
    // Threads past the end repeat the last product, since the whole warp must take part.
    u32 edge = min(p.row, edges - 1), head = min(p.column / threads, heads - 1);
    u32 first = p.column % threads * N, whole = width - width % DOT_LANES;
    size_t columns = (size_t)heads * width;
    left += sources[edge] * columns + head * width;
    right += destinations[edge] * columns + head * width;
    vectors += head * width;
    Pack<A, N> sum;
    for (int n = 0; n < N; n++) sum.at[n] = 0;
    if (first < width - whole) add_logit<A, N>(left, right, vectors, whole + first, slope, sum);
    for (u32 k = first; k < whole; k += DOT_LANES) add_logit<A, N>(left, right, vectors, k, slope, sum);
    for (u32 half = threads / 2; half; half >>= 1)
        for (int n = 0; n < N; n++) sum.at[n] += __shfl_down_sync(ALL_LANES, sum.at[n], half, threads);
    for (int half = N / 2; half; half >>= 1)
        for (int n = 0; n < half; n++) sum.at[n] += sum.at[n + half];
    if (mine && first == 0) out[(size_t)edge * heads + head] = sum.at[0];
}

// What an edge adds to the gradient of `own`, a row of `left` or `right`, at the columns of one head: the gradient of its
// logit times vectors · slope(own + x).
template <typename A, int N> struct OfLogit {
    EdgeWeight<A> gradient;
    Pack<A, N> own, vector;
    A slope;
    template <typename B> __device__ __forceinline__ B at(u32 e, u32 index) const { return gradient.template at<B>(e, index); }
    __device__ __forceinline__ A term(A value, A weight, int n) const {
        return weight * vector.at[n] * leaky_slope(value + own.at[n], slope);
    }
    __device__ __forceinline__ OfLogit(const u32 *edges, const A *gradient, const A *own, const A *vectors, u32 heads,
                                       u32 width, u32 row, u32 column, A slope)
        : gradient{gradient, edges, heads, column / width}, own(load<A, N>(own + (size_t)row * heads * width + column)),
          vector(load<A, N>(vectors + column)), slope(slope) {}
};

// Gradient of the logits with respect to `own`: `left`, whose rows sum over the edges by source and the rows x = right, or
// the other way round.
template <typename A, int N>
__device__ __forceinline__ void attention_rows(const u32 *indptr, const u32 *indices, const u32 *edges, const A *gradient,
                                               const A *x, const A *own, const A *vectors, A *out, u32 rows, u32 heads,
                                               u32 width, u32 shift, A slope) {
    Place p(shift, N);
    if (p.row >= rows || p.column >= heads * width) return;
    OfLogit<A, N> edge(edges, gradient, own, vectors, heads, width, p.row, p.column, slope);
    sum_rows<A, N>(indptr, indices, x, edge, false, out, p.row, p.column, heads * width);
}

template <typename A>
__device__ __forceinline__ void attention_rows_long(const u32 *long_rows, const u32 *indptr, const u32 *indices,
                                                    const u32 *edges, const A *gradient, const A *x, const A *own,
                                                    const A *vectors, A *out, u32 heads, u32 width, A slope) {
    u32 row = long_rows[blockIdx.x], column = long_column();
    if (column >= heads * width) return;
    OfLogit<A, 1> edge(edges, gradient, own, vectors, heads, width, row, column, slope);
    sum_long_row<A>(indptr, indices, x, edge, false, out, row, column, heads * width);
}

// sums[p, h, f] = Σ gradient[e, h] · leaky(left[source of e, h, f] + right[destination of e, h, f]) over the edges of panel
// p, `panel` of them.
template <typename A, int N>
__device__ __forceinline__ void attention_vectors(const u32 *sources, const u32 *destinations, const A *gradient,
                                                  const A *left, const A *right, A *sums, u32 edges, u32 panel, u32 heads,
                                                  u32 width, u32 shift, A slope) {
    Place p(shift, N);
    u32 columns = heads * width, head = p.column / width;
    u64 first = (u64)p.row * panel, last = min(first + panel, (u64)edges);
    if (first >= edges || p.column >= columns) return;
    Pack<A, N> sum;
    for (int n = 0; n < N; n++) sum.at[n] = 0;
#pragma unroll 4
    for (u32 e = (u32)first; e < (u32)last; e++) {
        Pack<A, N> l = load<A, N>(left + (size_t)sources[e] * columns + p.column);
        Pack<A, N> r = load<A, N>(right + (size_t)destinations[e] * columns + p.column);
        A g = gradient[(size_t)e * heads + head];
        for (int n = 0; n < N; n++) sum.at[n] += g * leaky(l.at[n] + r.at[n], slope);
    }
    *reinterpret_cast<Pack<A, N> *>(sums + (size_t)p.row * columns + p.column) = sum;
}

// What an edge adds to the gradient of `own`, a number of `left` or `right` of GAT's attention: the gradient of its logit,
// alpha · (gradient − total), times slope(own + x). `totals` has Σ alpha · gradient over the edges of each destination.
template <typename A> struct OfAttention {
    EdgeWeight<A> alpha, gradient;
    const A *totals;
    u32 row;
    A own, slope;
    template <typename B> __device__ __forceinline__ B at(u32 e, u32 index) const {
        // Without positions, edges are by destination, which then is the row itself.
        A total = totals[(size_t)(alpha.edges ? index : row) * alpha.heads + alpha.head];
        return alpha.template at<B>(e, index) * (gradient.template at<B>(e, index) - total);
    }
    __device__ __forceinline__ A term(A value, A weight, int) const { return weight * leaky_slope(value + own, slope); }
    __device__ __forceinline__ OfAttention(const u32 *edges, const A *alpha, const A *gradient, const A *totals, const A *own,
                                           u32 heads, u32 row, u32 head, A slope)
        : alpha{alpha, edges, heads, head}, gradient{gradient, edges, heads, head}, totals(totals), row(row),
          own(own[(size_t)row * heads + head]), slope(slope) {}
};

// Gradient of GAT's attention with respect to `own`: `left`, whose rows sum over the edges by source and x = right, or the
// other way round.
template <typename A>
__device__ __forceinline__ void attention_scores(const u32 *indptr, const u32 *indices, const u32 *edges, const A *alpha,
                                                 const A *gradient, const A *totals, const A *x, const A *own, A *out, u32 rows,
                                                 u32 heads, u32 shift, A slope) {
    Place p(shift, 1);
    if (p.row >= rows || p.column >= heads) return;
    OfAttention<A> edge(edges, alpha, gradient, totals, own, heads, p.row, p.column, slope);
    sum_rows<A, 1>(indptr, indices, x, edge, false, out, p.row, p.column, heads);
}

template <typename A>
__device__ __forceinline__ void attention_scores_long(const u32 *long_rows, const u32 *indptr, const u32 *indices,
                                                      const u32 *edges, const A *alpha, const A *gradient, const A *totals,
                                                      const A *x, const A *own, A *out, u32 heads, A slope) {
    u32 row = long_rows[blockIdx.x], head = long_column();
    if (head >= heads) return;
    OfAttention<A> edge(edges, alpha, gradient, totals, own, heads, row, head, slope);
    sum_long_row<A>(indptr, indices, x, edge, false, out, row, head, heads);
}

#define VECTOR(A, N, SUFFIX)                                                                                                   \
    extern "C" __global__ void attention_logits_##SUFFIX(const u32 *sources, const u32 *destinations, const A *left,           \
                                                         const A *right, const A *vectors, A *out, u32 edges, u32 heads,       \
                                                         u32 width, u32 shift, double slope) {                                 \
        attention_logits<A, N>(sources, destinations, left, right, vectors, out, edges, heads, width, shift, slope);           \
    }                                                                                                                          \
    extern "C" __global__ void attention_rows_##SUFFIX(const u32 *indptr, const u32 *indices, const u32 *edges,                \
                                                       const A *gradient, const A *x, const A *own, const A *vectors, A *out,  \
                                                       u32 rows, u32 heads, u32 width, u32 shift, double slope) {              \
        attention_rows<A, N>(indptr, indices, edges, gradient, x, own, vectors, out, rows, heads, width, shift, slope);        \
    }                                                                                                                          \
    extern "C" __global__ void attention_vectors_##SUFFIX(const u32 *sources, const u32 *destinations, const A *gradient,      \
                                                          const A *left, const A *right, A *sums, u32 edges, u32 panel,        \
                                                          u32 heads, u32 width, u32 shift, double slope) {                     \
        attention_vectors<A, N>(sources, destinations, gradient, left, right, sums, edges, panel, heads, width, shift, slope); \
    }

#define REAL(A, SUFFIX)                                                                                                        \
    VECTOR(A, 1, SUFFIX)                                                                                                       \
    VECTOR(A, 4, x4_##SUFFIX)                                                                                                  \
    extern "C" __global__ void attention_rows_long_##SUFFIX(const u32 *long_rows, const u32 *indptr, const u32 *indices,       \
                                                            const u32 *edges, const A *gradient, const A *x, const A *own,     \
                                                            const A *vectors, A *out, u32 heads, u32 width, double slope) {    \
        attention_rows_long<A>(long_rows, indptr, indices, edges, gradient, x, own, vectors, out, heads, width, slope);        \
    }                                                                                                                          \
    extern "C" __global__ void attention_scores_##SUFFIX(const u32 *indptr, const u32 *indices, const u32 *edges,              \
                                                         const A *alpha, const A *gradient, const A *totals, const A *x,       \
                                                         const A *own, A *out, u32 rows, u32 heads, u32 shift, double slope) { \
        attention_scores<A>(indptr, indices, edges, alpha, gradient, totals, x, own, out, rows, heads, shift, slope);          \
    }                                                                                                                          \
    extern "C" __global__ void attention_scores_long_##SUFFIX(const u32 *long_rows, const u32 *indptr, const u32 *indices,     \
                                                              const u32 *edges, const A *alpha, const A *gradient,             \
                                                              const A *totals, const A *x, const A *own, A *out, u32 heads,    \
                                                              double slope) {                                                  \
        attention_scores_long<A>(long_rows, indptr, indices, edges, alpha, gradient, totals, x, own, out, heads, slope);       \
    }

REAL(float, f32)
REAL(double, f64)
