// Arrays of integers on the device: sums of all earlier numbers, a stable sort, and the arrays that are derived from edges.
//
// A kernel loops over numbers, or has one warp for each row or piece: blocks of 32 × 8 threads.
#include "common.cuh"

// The row of this thread's warp.
__device__ __forceinline__ u32 warp_row() { return blockIdx.x * blockDim.y + threadIdx.y; }

extern "C" __global__ void fill_integers(u32 *out, u64 n, u32 value) {
    for (u64 i = first_item(); i < n; i += all_threads()) out[i] = value;
}

// out[i] = x[numbers[i]]
extern "C" __global__ void pick_integers(const u32 *x, const u32 *numbers, u32 n, u32 *out) {
    for (u64 i = first_item(); i < n; i += all_threads()) out[i] = x[numbers[i]];
}

// ---- Sums of all earlier numbers ----

// Numbers of a piece, which one warp adds up: `PIECE` of src/cuda/integers.rs.
const u32 PIECE = 1024;

// sums[p] = the sum of piece p
extern "C" __global__ void sum_pieces(const u32 *x, u32 n, u64 *sums) {
    u64 begin = (u64)warp_row() * PIECE, sum = 0;
    for (u32 k = threadIdx.x; k < PIECE && begin + k < n; k += 32) sum += x[begin + k];
    sum = sum_of_lanes(sum);
    if (begin < n && threadIdx.x == 0) sums[warp_row()] = sum;
}

// sums[p] becomes the sum of all pieces before p, for p of 0..=pieces. One warp.
extern "C" __global__ void scan_pieces(u64 *sums, u32 pieces) {
    u64 before = 0;
    for (u32 first = 0; first < pieces; first += 32) {
        u32 at = first + threadIdx.x;
        u64 own = at < pieces ? sums[at] : 0, through = sum_through_lane(own);
        if (at < pieces) sums[at] = before + through - own;
        before += __shfl_sync(ALL_LANES, through, 31);
    }
    if (threadIdx.x == 0) sums[pieces] = before;
}

// out[i] = x[0] + … + x[i - 1], for i of 0..=n. The sum of all must be below 2^32.
extern "C" __global__ void scan(const u32 *x, u32 n, const u64 *sums, u32 *out) {
    u64 begin = (u64)warp_row() * PIECE;
    u32 before = begin < n ? (u32)sums[warp_row()] : 0;
    for (u32 k = 0; k < PIECE && begin + k < n; k += 32) {
        u64 at = begin + k + threadIdx.x;
        u32 through = sum_through_lane(at < n ? x[at] : 0);
        if (at < n) out[at + 1] = before + through;
        before += __shfl_sync(ALL_LANES, through, 31);
    }
    if (warp_row() == 0 && threadIdx.x == 0) out[0] = 0;
}

// out[places[i]] = i where places[i + 1] is larger than places[i]
extern "C" __global__ void list_marked(const u32 *places, u32 n, u32 *out) {
    for (u64 i = first_item(); i < n; i += all_threads())
        if (places[i + 1] != places[i]) out[places[i]] = (u32)i;
}

// ---- A stable sort, digit by digit from the lowest one ----

const u32 DIGITS = 256;

// counts[d · pieces + p] = number of keys in piece p whose digit is d. All are 0 before.
extern "C" __global__ void count_digits(const u32 *keys, u32 n, u32 shift, u32 pieces, u32 *counts) {
    for (u64 i = first_item(); i < n; i += all_threads()) {
        u32 digit = keys[i] >> shift & (DIGITS - 1);
        atomicAdd(&counts[(u64)digit * pieces + i / PIECE], 1u);
    }
}

// Moves keys and their numbers to places, in stable order. places[d · pieces + p] is that of the first key of piece p with digit d; it is counted up. If
// numbers is null, key i has number i.
extern "C" __global__ void move_by_digit(const u32 *keys, const u32 *numbers, u32 n, u32 shift, u32 pieces, u32 *places, u32 *keys_out,
                                         u32 *numbers_out) {
    u32 piece = warp_row(), lane = threadIdx.x;
    u64 begin = (u64)piece * PIECE;
    for (u32 k = 0; k < PIECE && begin + k < n; k += 32) {
        u64 at = begin + k + lane;
        bool there = at < n;
        u32 key = there ? keys[at] : 0, digit = there ? key >> shift & (DIGITS - 1) : DIGITS;
        // Lanes with the same digit before and after this one.
        u32 before = 0, after = 0;
        for (u32 other = 0; other < 32; other++) {
            bool same = __shfl_sync(ALL_LANES, digit, other) == digit;
            before += same && other < lane;
            after += same && other > lane;
        }
        u32 *next = places + (u64)digit * pieces + piece, place = there ? *next + before : 0;
        __syncwarp();
        if (there) {
            keys_out[place] = key;
            numbers_out[place] = numbers ? numbers[at] : (u32)at;
            if (after == 0) *next = place + 1;
        }
        __syncwarp();
    }
}

// starts[r] = number of keys below r, for r of 0..=rows. Keys ascend.
extern "C" __global__ void row_starts(const u32 *keys, u32 n, u32 rows, u32 *starts) {
    for (u64 row = first_item(); row <= rows; row += all_threads()) {
        u32 begin = 0, end = n;
        while (begin < end) {
            u32 middle = begin + (end - begin) / 2;
            if (keys[middle] < row) begin = middle + 1;
            else end = middle;
        }
        starts[row] = begin;
    }
}

// ---- Arrays derived from edges by row ----

// out[e] = the row of edge e
extern "C" __global__ void rows_of_edges(const u32 *indptr, u32 rows, u32 *out) {
    u32 row = warp_row();
    if (row >= rows) return;
    for (u32 e = indptr[row] + threadIdx.x; e < indptr[row + 1]; e += 32) out[e] = row;
}

// out[r] = one over the number of edges of row r, 0 for none
extern "C" __global__ void inverse_degrees(const u32 *indptr, u32 rows, float *out) {
    for (u64 row = first_item(); row < rows; row += all_threads()) {
        u32 edges = indptr[row + 1] - indptr[row];
        out[row] = edges ? (float)(1.0 / (double)edges) : 0.0f;
    }
}

// marks[r] = 1 if row r has at least `edges` edges, else 0
extern "C" __global__ void mark_long_rows(const u32 *indptr, u32 rows, u32 edges, u32 *marks) {
    for (u64 row = first_item(); row < rows; row += all_threads()) marks[row] = indptr[row + 1] - indptr[row] >= edges;
}

// counts[r] = edges of row r from other nodes, and one self-loop
extern "C" __global__ void count_with_loops(const u32 *indptr, const u32 *indices, u32 rows, u32 *counts) {
    u32 row = warp_row(), others = 0;
    if (row >= rows) return;
    for (u32 e = indptr[row] + threadIdx.x; e < indptr[row + 1]; e += 32) others += indices[e] != row;
    others = sum_of_lanes(others);
    if (threadIdx.x == 0) counts[row] = others + 1;
}

// The sources of row r: r, then those of its edges from other nodes
extern "C" __global__ void add_loops(const u32 *indptr, const u32 *indices, u32 rows, const u32 *starts, u32 *out) {
    u32 row = warp_row();
    if (row >= rows) return;
    u32 end = indptr[row + 1], at = starts[row];
    if (threadIdx.x == 0) out[at] = row;
    at++;
    for (u32 first = indptr[row]; first < end; first += 32) {
        u32 e = first + threadIdx.x, other = e < end && indices[e] != row, through = sum_through_lane(other);
        if (other) out[at + through - 1] = indices[e];
        at += __shfl_sync(ALL_LANES, through, 31);
    }
}
