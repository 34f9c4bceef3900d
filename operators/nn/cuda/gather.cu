// Copies rows from and to given numbers, in pieces of 16, 4 or 2 bytes.
#include "common.cuh"

struct alignas(16) Piece16 {
    u32 words[4];
};

// out[i, :] = x[numbers[i], :], or more[numbers[i] - held, :] if numbers[i] >= held. As Place, but each thread has GATHERED rows of its block, which it loads together.
template <typename W>
__device__ __forceinline__ void gather_rows(const u32 *numbers, const W *x, const W *more, u32 held, W *out, u32 rows,
                                            u32 pieces, u32 shift) {
    u32 side_by_side = THREADS >> shift, first = blockIdx.x * side_by_side * GATHERED + (threadIdx.x >> shift);
    u32 column = (blockIdx.y << shift) + (threadIdx.x & ((1u << shift) - 1));
    if (column >= pieces) return;
    W loaded[GATHERED];
#pragma unroll
    for (u32 k = 0; k < GATHERED; k++) {
        u32 row = first + k * side_by_side;
        if (row < rows) {
            u32 number = numbers[row];
            loaded[k] = number < held ? x[(size_t)number * pieces + column] : more[(size_t)(number - held) * pieces + column];
        }
    }
#pragma unroll
    for (u32 k = 0; k < GATHERED; k++) {
        u32 row = first + k * side_by_side;
        if (row < rows) out[(size_t)row * pieces + column] = loaded[k];
    }
}

#define BYTES(W, SUFFIX)                                                                                                                     \
    extern "C" __global__ void gather_rows_##SUFFIX(const u32 *numbers, const W *x, const W *more, u32 held, W *out, u32 rows,               \
                                                     u32 pieces, u32 shift) {                                                                \
        gather_rows<W>(numbers, x, more, held, out, rows, pieces, shift);                                                                    \
    }                                                                                                                                        \
    /* out[numbers[i], :] = x[i, :] */                                                                                                       \
    extern "C" __global__ void put_rows_##SUFFIX(const u32 *numbers, const W *x, W *out, u32 rows, u32 pieces, u32 shift) {                  \
        Place at(shift, 1);                                                                                                                  \
        if (at.row < rows && at.column < pieces) out[(size_t)numbers[at.row] * pieces + at.column] = x[(size_t)at.row * pieces + at.column]; \
    }

BYTES(Piece16, 16)
BYTES(u32, 4)
BYTES(unsigned short, 2)
