//! How large tasks are, and how many are under way: what memory tensor workers cost, here and there.

use gnnflow_nn::model::Hop;

use super::queue::BATCH;

/// Calls that a tensor worker has at once: one is on its way while another is computed.
pub(crate) const AT_ONCE: usize = 2;

/// The most bytes that a task of `nodes` nodes has: rows as they are sent, and what is answered. With r columns of rows and m of what is
/// made of them, a task forwards has r + m, one that goes back r + m and r; and all parameters' gradient. `reads_initial` says which tasks read
/// what nodes held before the first layer.
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
    let makes = |index: usize| match hops.get(index) {
        None => results,
        Some(hop) => hop.held + hop.width + 2 * hop.terms(),
    };
    let columns = (0..=hops.len()).map(|index| 2 * rows(index) + makes(index)).max().unwrap_or(0);
    4 * (nodes * columns as u64 + params)
}

/// Tasks that may be under way at once for so many workers: what their calls hold, and as much that waits for them. Of tasks far smaller
/// than a call may be, more; `bytes` is what one has at most ([`task_bytes`]).
///
/// So their rows have at most 2 × [`AT_ONCE`] × workers × max(`bytes`, [`BATCH`]) bytes.
pub(crate) fn under_way(workers: usize, bytes: u64) -> usize {
    let of_a_call = (BATCH as u64 / bytes.max(1)).clamp(1, super::queue::MOST as u64);
    2 * AT_ONCE * workers * of_a_call as usize
}

#[cfg(test)]
mod tests {
    use gnnflow_nn::layers::Aggregation;

    use super::*;

    #[test]
    fn small_tasks_are_more_at_once_and_never_more_bytes() {
        assert_eq!(
            [1 << 30, BATCH as u64, BATCH as u64 / 2, 1, 0].map(|bytes| under_way(3, bytes)),
            [12, 12, 24, 768, 768]
        );
    }

    #[test]
    fn the_widest_task_counts() {
        let hop = |width, held, keeps_held| Hop { aggregation: Aggregation::Sum, width, held, keeps_held };
        // Tasks of 100 → 100 + 16; 16 + 100 → 16 + 4; 4 + 100 (kept from the beginning) → 4.
        let hops = [hop(16, 100, true), hop(4, 16, false)];
        let plain = task_bytes(10, (&hops, &[false; 3]), 100, 4, 7);
        assert_eq!(plain, 4 * (10 * (2 * 100 + 100 + 16) + 7));
        let kept = task_bytes(10, (&hops, &[false, true, true]), 100, 4, 7);
        assert_eq!(kept, 4 * (10 * (2 * (16 + 100 + 100) + 20) + 7));
    }
}
