//! Prefetching: fetches the row group that a reading thread will probably need next from its object store.
//!
//! A thread usually reads units at even steps: after units `u` and `u + s`, it needs `u + 2 s`. Each thread keeps its own prefetched
//! row group. Prefetching ends for a thread whose steps are uneven.

use std::cell::RefCell;

use crate::error::Result;
use crate::store::RowGroup;

/// The state of one thread.
struct Prefetch {
    /// The number of the table that it reads, and the columns.
    table: u64,
    columns: Vec<String>,
    /// The unit that was read last.
    last: usize,
    /// The prefetched unit, and whether an earlier one was not needed.
    next: Option<(usize, RowGroup)>,
    missed: bool,
}

thread_local! {
    static PREFETCH: RefCell<Option<Prefetch>> = const { RefCell::new(None) };
}

/// Returns unit `unit` of `columns` of table `table`: the prefetched one, or the one that `fetch` starts. Starts fetching the next unit, too.
/// `fetch` returns `None` for units in local files and beyond the last unit.
pub(super) fn take(
    table: u64,
    columns: &[&str],
    unit: usize,
    fetch: impl Fn(usize) -> Result<Option<RowGroup>>,
) -> Result<Option<RowGroup>> {
    PREFETCH.with_borrow_mut(|prefetch| {
        let before = prefetch.take().filter(|before| before.table == table && before.columns == columns);
        let (mut fetched, mut step, mut missed) = (None, None, false);
        if let Some(before) = before {
            step = unit.checked_sub(before.last).filter(|&step| step > 0);
            missed = before.missed;
            match before.next {
                Some((next, row_group)) if next == unit => fetched = Some(row_group),
                Some(_) => missed = true,
                None => {}
            }
        }
        let fetched = if fetched.is_some() { fetched } else { fetch(unit)? };
        let next = match step {
            Some(step) if fetched.is_some() && !missed => fetch(unit + step)?.map(|next| (unit + step, next)),
            _ => None,
        };
        let columns = columns.iter().map(ToString::to_string).collect();
        *prefetch = Some(Prefetch { table, columns, last: unit, next, missed });
        Ok(fetched)
    })
}
