//! The row group that a reading thread will want next, on its way from its store.
//!
//! Whoever deals out row groups, a thread takes them at even steps: after units `u` and `u + s` it will want `u + 2 s`. What
//! is fetched is the thread's own, and let go with it. A thread whose steps are uneven is not helped again.

use std::cell::RefCell;

use crate::error::Result;
use crate::store::RowGroup;

/// What one thread reads.
struct Coming {
    /// The table, and which of its columns.
    table: u64,
    columns: Vec<String>,
    /// The unit that was read last.
    last: usize,
    /// The next one, and whether there was one that nobody wanted.
    next: Option<(usize, RowGroup)>,
    missed: bool,
}

thread_local! {
    static COMING: RefCell<Option<Coming>> = const { RefCell::new(None) };
}

/// Unit `unit` of `columns` of table `table`: what is on its way already, or else what `fetch` starts. Starts the next one too.
/// `fetch` gives nothing for units that are on this machine or that there are not.
pub(super) fn take(
    table: u64,
    columns: &[&str],
    unit: usize,
    fetch: impl Fn(usize) -> Result<Option<RowGroup>>,
) -> Result<Option<RowGroup>> {
    COMING.with_borrow_mut(|coming| {
        let before = coming.take().filter(|before| before.table == table && before.columns == columns);
        let (mut here, mut step, mut missed) = (None, None, false);
        if let Some(before) = before {
            step = unit.checked_sub(before.last).filter(|&step| step > 0);
            missed = before.missed;
            match before.next {
                Some((next, row_group)) if next == unit => here = Some(row_group),
                Some(_) => missed = true,
                None => {}
            }
        }
        let here = if here.is_some() { here } else { fetch(unit)? };
        let next = match step {
            Some(step) if here.is_some() && !missed => fetch(unit + step)?.map(|next| (unit + step, next)),
            _ => None,
        };
        let columns = columns.iter().map(ToString::to_string).collect();
        *coming = Some(Coming { table, columns, last: unit, next, missed });
        Ok(here)
    })
}
