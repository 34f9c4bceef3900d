//! Parallel loops over chunks and parts.
//!
//! The task is a trait object, so the code that divides work among threads is compiled once per element type, not once per
//! loop. A task processes thousands of numbers, so the indirect call costs nothing.

use rayon::prelude::*;

/// Calls `task(at, chunk)` for each chunk of `size` numbers of `out`, in parallel. The last chunk may be shorter. A single
/// chunk is processed by the calling thread.
///
/// ```
/// let mut out = [0; 5];
/// gnnflow_kernels::parallel::chunks(&mut out, 2, &|at, chunk| chunk.fill(at));
/// assert_eq!(out, [0, 0, 1, 1, 2]);
/// ```
///
/// # Panics
/// If `size` is 0 and `out` is not empty.
pub fn chunks<T: Send>(out: &mut [T], size: usize, task: &(dyn Fn(usize, &mut [T]) + Sync)) {
    match out.len() {
        0 => {}
        length if length <= size => task(0, out),
        _ => out.par_chunks_mut(size).enumerate().for_each(|(at, chunk)| task(at, chunk)),
    }
}

/// Returns chunk `at` of `values`, in chunks of `size` numbers: the input of a task of [`chunks`].
///
/// # Panics
/// If `values` has no such chunk.
pub fn chunk<T>(values: &[T], at: usize, size: usize) -> &[T] {
    &values[at * size..((at + 1) * size).min(values.len())]
}

/// Calls `task` for each of `parts`, in parallel.
pub fn each<T: Send>(parts: Vec<T>, task: &(dyn Fn(T) + Sync)) {
    parts.into_par_iter().for_each(task);
}

/// As [`each`], with state that `init` makes and that consecutive tasks of a thread share.
pub(crate) fn each_with<S, T: Send>(parts: Vec<T>, init: &(dyn Fn() -> S + Sync), task: &(dyn Fn(&mut S, T) + Sync)) {
    parts.into_par_iter().for_each_init(init, task);
}

/// Returns the results of `task` for `0..count`, in order, computed in parallel.
pub fn map<R: Send>(count: usize, task: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
    (0..count).into_par_iter().map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_visited_once() {
        for length in [0, 1, 3, 4, 5, 1000] {
            let input: Vec<usize> = (0..length).collect();
            let mut out = vec![usize::MAX; length];
            chunks(&mut out, 4, &|at, out| out.copy_from_slice(chunk(&input, at, 4)));
            assert_eq!(out, input);
        }
    }

    #[test]
    fn results_are_in_order() {
        assert_eq!(map(3, &|at| at * at), [0, 1, 4]);
        let mut out = vec![0; 3];
        each(out.iter_mut().enumerate().collect(), &|(at, out): (usize, &mut i32)| *out = at as i32);
        assert_eq!(out, [0, 1, 2]);
        each_with(out.iter_mut().collect(), &|| 5, &|state, out: &mut i32| *out += *state);
        assert_eq!(out, [5, 6, 7]);
    }
}
