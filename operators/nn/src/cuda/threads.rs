//! Layouts of threads over rows, columns and numbers.

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;

use super::kernels::Argument;

/// Threads per block: `THREADS` of `common.cuh`.
const THREADS: u32 = 256;
/// Rows that one thread sums: `PANEL` of `common.cuh`.
pub(super) const PANEL: u32 = 512;
/// The maximum number of blocks for loops over numbers; more would only queue.
const BLOCKS: u64 = 1 << 14;

/// Returns blocks of threads.
pub(super) fn config(grid: (u32, u32), block: (u32, u32)) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid.0, grid.1, 1), block_dim: (block.0, block.1, 1), shared_mem_bytes: 0 }
}

/// Threads for `Place` of `common.cuh`, each for `each` columns of a row. Also returns log2 of the threads per row.
pub(super) fn over_rows(rows: u32, columns: u32, each: u32) -> (LaunchConfig, Argument) {
    let places = columns.div_ceil(each);
    let lanes = places.clamp(1, 32).next_power_of_two();
    let grid = (rows.div_ceil(THREADS / lanes), places.div_ceil(lanes));
    (config(grid, (THREADS, 1)), Argument::U32(lanes.trailing_zeros()))
}

/// As [`over_rows`], with `GATHERED` of `common.cuh` rows for each thread.
pub(super) fn over_gathered_rows(rows: u32, pieces: u32) -> (LaunchConfig, Argument) {
    const GATHERED: u32 = 4;
    over_rows(rows.div_ceil(GATHERED), pieces, 1)
}

/// One warp per row.
pub(super) fn warp_per_row(rows: u32) -> LaunchConfig {
    config((rows.div_ceil(8), 1), (32, 8))
}

/// Threads for `Row` of `edges.cu`: one warp per row, for adjacent heads. Also returns log2 of the number of heads.
pub(super) fn warp_per_row_of_heads(rows: u32, heads: u32) -> (LaunchConfig, Argument) {
    let lanes = heads.clamp(1, 32).next_power_of_two();
    (config((rows.div_ceil(8), heads.div_ceil(lanes)), (32, 8)), Argument::U32(lanes.trailing_zeros()))
}

/// Threads that loop over `n` numbers.
pub(super) fn over_numbers(n: usize) -> LaunchConfig {
    let blocks = (n as u64).div_ceil(u64::from(THREADS)).min(BLOCKS);
    config((blocks as u32, 1), (THREADS, 1))
}

/// One warp.
pub(super) fn one_warp() -> LaunchConfig {
    config((1, 1), (32, 1))
}

/// Sixteen threads for each of `n` dot products.
pub(super) fn sixteen_per_product(n: usize) -> LaunchConfig {
    config((n.div_ceil(THREADS as usize / 16) as u32, 1), (THREADS, 1))
}

/// One block per `piece` of the `n` numbers.
pub(super) fn block_per_piece(n: usize, piece: usize) -> LaunchConfig {
    config((n.div_ceil(piece) as u32, 1), (THREADS, 1))
}

/// One thread per panel of rows and column.
pub(super) fn over_panels(rows: u32, columns: u32) -> LaunchConfig {
    config((rows.div_ceil(PANEL), columns.div_ceil(64)), (64, 1))
}

/// One thread per column.
pub(super) fn over_columns(columns: u32) -> LaunchConfig {
    config((columns.div_ceil(64), 1), (64, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_rows_covers_every_row_and_column_once() {
        for (rows, columns, each) in [(1, 1, 1), (10, 8, 1), (10, 47, 1), (1000, 100, 4), (7, 256, 4), (3, 5000, 1)] {
            let (LaunchConfig { grid_dim, block_dim, .. }, shift) = over_rows(rows, columns, each);
            let Argument::U32(shift) = shift else { panic!("a shift is an integer") };
            let lanes = 1 << shift;
            assert!(lanes <= 32 && block_dim == (256, 1, 1));
            let (covered_rows, covered_columns) = (grid_dim.0 * (256 / lanes), grid_dim.1 * lanes * each);
            assert!(covered_rows >= rows && covered_rows < rows + 256 / lanes);
            assert!(covered_columns >= columns && covered_columns < columns + lanes * each);
        }
        assert_eq!(over_rows(0, 8, 1).0.grid_dim.0, 0);
        assert_eq!(over_rows(8, 0, 1).0.grid_dim.1, 0);
        assert_eq!(warp_per_row_of_heads(9, 40).0.grid_dim, (2, 2, 1));
    }
}
