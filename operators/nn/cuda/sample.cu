// Samples in-neighbors of a batch's nodes from a graph that is on the device, with the CPU's bits (`gnnflow_kernels::sample`).
//
// `marks` has a number for each node of the graph: its position in the batch's list, NONE, or in between the first edge that has found it. The smallest of
// integers does not depend on the order of threads, so equal inputs give equal bits.
#include "common.cuh"

const u32 NONE = 0xffffffffu, FOUND = 0x80000000u;

// Numbers as in src/cuda/sample.rs.
enum Kind { ALL, UNIFORM, WITH_REPLACEMENT };

__device__ __forceinline__ u32 degree_of(const u64 *indptr, u32 node) { return (u32)(indptr[node + 1] - indptr[node]); }

// counts[i] = edges that are drawn for node i
extern "C" __global__ void count_samples(const u32 *nodes, u32 n, const u64 *indptr, u32 kind, u32 k, u32 *counts) {
    for (u64 i = first_item(); i < n; i += all_threads()) {
        u32 degree = degree_of(indptr, nodes[i]);
        counts[i] = kind == WITH_REPLACEMENT ? (degree ? k : 0) : kind == UNIFORM && degree > k ? k : degree;
    }
}

// Draws edges of each node: their sources to out[starts[i]]… Without replacement by Floyd's algorithm, with k² / 2 comparisons.
extern "C" __global__ void draw_samples(const u32 *nodes, u32 n, const u64 *indptr, const u32 *indices, u32 kind, u32 k, u64 key,
                                        const u32 *starts, u32 *out) {
    for (u64 i = first_item(); i < n; i += all_threads()) {
        u32 node = nodes[i], degree = degree_of(indptr, node), *to = out + starts[i];
        const u32 *row = indices + indptr[node];
        u64 own = fold(key, node);
        if (kind == WITH_REPLACEMENT) {
            if (degree > 0)
                for (u32 j = 0; j < k; j++) to[j] = row[draw_below(own, j, degree)];
        } else if (degree <= k) {
            for (u32 j = 0; j < degree; j++) to[j] = row[j];
        } else {
            for (u32 j = 0; j < k; j++) {
                u32 last = degree - k + j, drawn = draw_below(own, j, last + 1);
                bool picked = false;
                for (u32 earlier = 0; earlier < j; earlier++) picked |= to[earlier] == drawn;
                to[j] = picked ? last : drawn;
            }
            for (u32 j = 0; j < k; j++) to[j] = row[to[j]];
        }
    }
}

// Takes all edges of each node. One warp for each: blocks of 32 × 8 threads.
extern "C" __global__ void take_all(const u32 *nodes, u32 n, const u64 *indptr, const u32 *indices, const u32 *starts, u32 *out) {
    u32 i = blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= n) return;
    u32 degree = degree_of(indptr, nodes[i]), *to = out + starts[i];
    const u32 *row = indices + indptr[nodes[i]];
    for (u32 j = threadIdx.x; j < degree; j += 32) to[j] = row[j];
}

// Lists nodes from position 0 on, or removes them again.
extern "C" __global__ void mark_listed(const u32 *list, u32 n, u32 *marks) {
    for (u64 i = first_item(); i < n; i += all_threads()) marks[list[i]] = (u32)i;
}
extern "C" __global__ void unmark(const u32 *list, u32 n, u32 *marks) {
    for (u64 i = first_item(); i < n; i += all_threads()) marks[list[i]] = NONE;
}

// Marks each source that is not listed with its first edge.
extern "C" __global__ void mark_found(const u32 *sources, u32 n, u32 *marks) {
    for (u64 e = first_item(); e < n; e += all_threads()) atomicMin(&marks[sources[e]], FOUND | (u32)e);
}
// first[e] = 1 if edge e is the first one of a source that is not listed, else 0
extern "C" __global__ void find_first(const u32 *sources, u32 n, const u32 *marks, u32 *first) {
    for (u64 e = first_item(); e < n; e += all_threads()) first[e] = marks[sources[e]] == (FOUND | (u32)e);
}
// Lists these sources from position `listed` on. places[e] is the number of earlier ones.
extern "C" __global__ void list_found(const u32 *sources, const u32 *places, u32 n, u32 listed, u32 *list, u32 *marks) {
    for (u64 e = first_item(); e < n; e += all_threads()) {
        if (places[e + 1] == places[e]) continue;
        u32 position = listed + places[e];
        list[position] = sources[e];
        marks[sources[e]] = position;
    }
}
// Replaces sources by their positions.
extern "C" __global__ void to_positions(u32 *sources, u32 n, const u32 *marks) {
    for (u64 e = first_item(); e < n; e += all_threads()) sources[e] = marks[sources[e]];
}
