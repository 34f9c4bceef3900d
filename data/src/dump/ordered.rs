//! Parallel production and sequential consumption, in order.

use std::sync::mpsc::sync_channel;

use crate::error::{Error, Result};

/// Number of items that one producer may be ahead of the consumer.
const AHEAD: usize = 2;

/// Runs `produce(unit, send)` for units `0..units` on `threads` threads, and `consume` on this thread for the items that they send, unit by
/// unit. The order is the same for any number of threads. Returns the first error in that order.
///
/// `send` returns `false` after `consume` has failed; `produce` should then return early.
pub(crate) fn ordered<T: Send>(
    units: usize,
    threads: usize,
    produce: impl Fn(usize, &mut dyn FnMut(T) -> bool) -> Result<()> + Sync,
    mut consume: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    if threads <= 1 {
        for unit in 0..units {
            let mut failed = None;
            produce(unit, &mut |item| match consume(item) {
                Ok(()) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            })?;
            failed.map_or(Ok(()), Err)?;
        }
        return Ok(());
    }
    let workers = threads.min(units);
    std::thread::scope(|scope| {
        let start = |worker| -> Result<_> {
            let (sender, receiver) = sync_channel(AHEAD);
            let produce = &produce;
            let read = move || {
                for unit in (worker..units).step_by(workers) {
                    let mut open = true;
                    let end = produce(unit, &mut |item| {
                        open = sender.send(Ok(Some(item))).is_ok();
                        open
                    });
                    let failed = end.is_err();
                    if !open || sender.send(end.map(|()| None)).is_err() || failed {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("read-{worker}")).spawn_scoped(scope, read);
            thread.map_err(|source| Error::Threads { what: "the reading threads", source })?;
            Ok(receiver)
        };
        // Dropping a receiver ends its thread.
        let receivers: Vec<_> = (0..workers).map(start).collect::<Result<_>>()?;
        for unit in 0..units {
            // `None` marks the end of a unit.
            loop {
                match receivers[unit % workers].recv() {
                    Ok(Ok(Some(item))) => consume(item)?,
                    Ok(Ok(None)) => break,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Err(Error::Bug("a reading thread ended early".into())),
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(units: usize, threads: usize, stop_at: Option<usize>) -> (Vec<(usize, usize)>, Option<String>) {
        let mut items = Vec::new();
        let produce = |unit: usize, send: &mut dyn FnMut((usize, usize)) -> bool| {
            for item in 0..unit % 5 {
                if !send((unit, item)) {
                    break;
                }
            }
            if stop_at == Some(unit) { Err(Error::Bug(format!("unit {unit}"))) } else { Ok(()) }
        };
        let end = ordered(units, threads, produce, |item| {
            items.push(item);
            Ok(())
        });
        (items, end.err().map(|e| e.to_string()))
    }

    #[test]
    fn order_and_first_error_are_equal_for_any_number_of_threads() {
        for units in [0, 1, 2, 7, 100] {
            for stop_at in [None, Some(0), Some(6)] {
                let expected = run(units, 1, stop_at);
                for threads in [2, 3, 8] {
                    assert_eq!(run(units, threads, stop_at), expected, "{units} units, {threads} threads, {stop_at:?}");
                }
            }
        }
    }

    #[test]
    fn failing_consumer_stops_the_producers() {
        for threads in [1, 2, 4] {
            let mut count = 0;
            let produce = |_, send: &mut dyn FnMut(u32) -> bool| {
                while send(1) {}
                Ok(())
            };
            let end = ordered(10, threads, produce, |_| {
                count += 1;
                if count == 100 { Err(Error::Bug("enough".into())) } else { Ok(()) }
            });
            assert!(end.unwrap_err().to_string().contains("enough"));
        }
    }
}
