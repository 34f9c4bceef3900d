//! Sizes of node tasks and limits on tasks in flight, which bound the memory of processes and tensor workers.

use gnnflow_nn::model::Hop;

/// Maximum bytes of rows in a call of several tasks. With more rows, the overhead of a call is small.
pub const CALL_BYTES: usize = 256 << 10;
/// Maximum number of tasks in a call.
pub const CALL_TASKS: usize = 64;
/// Calls in flight per tensor worker: one is in transit while another is computed.
pub const CALLS_PER_WORKER: usize = 2;

/// Returns the maximum bytes of a task of `nodes` nodes: the rows sent, and the result.
///
/// With r columns of input rows and m columns of outputs, a forward task has r + m columns and a backward task 2r + m, plus the
/// gradient of all parameters. `reads_initial` says which tasks read the rows that nodes held before the first layer.
pub(crate) fn task_bytes(
    nodes: u64,
    (hops, reads_initial): (&[Hop], &[bool]),
    features: usize,
    results: usize,
    params: u64,
) -> u64 {
    let initial = hops.first().map_or(0, |hop| hop.held);
    let rows = |index: usize| match index.checked_sub(1).and_then(|before| hops.get(before)) {
        None => features,
        Some(hop) => {
            let held = if hop.keeps_held { hop.held } else { 0 };
            let first = if reads_initial.get(index) == Some(&true) { initial } else { 0 };
            hop.slots() * hop.width + held + first
        }
    };
    let outputs = |index: usize| match hops.get(index) {
        None => results,
        Some(hop) => hop.held + hop.width + 2 * hop.terms(),
    };
    let columns = (0..=hops.len()).map(|index| 2 * rows(index) + outputs(index)).max().unwrap_or(0);
    4 * (nodes * columns as u64 + params)
}

/// Returns the number of tasks that may be in flight for `workers` workers: those in their calls, and as many waiting.
///
/// `bytes` is the maximum of one task ([`task_bytes`]). More tasks may be in flight if they are smaller than a call. All rows
/// together have at most 2 × [`CALLS_PER_WORKER`] × workers × max(`bytes`, [`CALL_BYTES`]) bytes.
pub(crate) fn tasks_in_flight(workers: usize, bytes: u64) -> usize {
    let per_call = (CALL_BYTES as u64 / bytes.max(1)).clamp(1, CALL_TASKS as u64);
    2 * CALLS_PER_WORKER * workers * per_call as usize
}

#[cfg(test)]
mod tests {
    use gnnflow_nn::layers::Aggregation;

    use super::*;

    #[test]
    fn tasks_in_flight_of_small_tasks_are_more_but_not_more_bytes() {
        assert_eq!(
            [1 << 30, CALL_BYTES as u64, CALL_BYTES as u64 / 2, 1, 0].map(|bytes| tasks_in_flight(3, bytes)),
            [12, 12, 24, 768, 768]
        );
    }

    #[test]
    fn task_bytes_are_those_of_the_widest_task() {
        let hop = |width, held, keeps_held| Hop { aggregation: Aggregation::Sum, width, held, keeps_held };
        // Tasks of 100 → 100 + 16; 16 + 100 → 16 + 4; 4 + 100 (the initial rows) → 4.
        let hops = [hop(16, 100, true), hop(4, 16, false)];
        let plain = task_bytes(10, (&hops, &[false; 3]), 100, 4, 7);
        assert_eq!(plain, 4 * (10 * (2 * 100 + 100 + 16) + 7));
        let with_initial = task_bytes(10, (&hops, &[false, true, true]), 100, 4, 7);
        assert_eq!(with_initial, 4 * (10 * (2 * (16 + 100 + 100) + 20) + 7));
    }
}
