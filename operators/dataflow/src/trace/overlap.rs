//! What a thread does while other threads work.

use std::time::Duration;

use super::spans::{Span, Spans, WAITING};

/// Returns the time in which a thread does `name` while at least one of the threads `others` works, from the pieces that are kept.
///
/// ```
/// use std::time::Duration;
/// use gnnflow_dataflow::trace::overlap::overlap;
/// use gnnflow_dataflow::trace::spans::{Span, Spans};
///
/// let (mut worker, mut compute, ms) = (Spans::default(), Spans::default(), Duration::from_millis);
/// worker.add(Span { name: "waiting", start: ms(0), end: ms(5), cpu: None }, ms(5));
/// compute.add(Span { name: "step", start: ms(3), end: ms(9), cpu: None }, ms(6));
/// assert_eq!(overlap(&worker, "waiting", &[&compute]), ms(2));
/// ```
pub fn overlap(thread: &Spans, name: &str, others: &[&Spans]) -> Duration {
    let work = merged(others);
    let mut work = work.iter().peekable();
    let mut sum = Duration::ZERO;
    for own in thread.kept().filter(|own| own.name == name) {
        while work.next_if(|piece| piece.end <= own.start).is_some() {}
        let inside = work.clone().take_while(|piece| piece.start < own.end);
        sum += inside.map(|piece| piece.end.min(own.end) - piece.start.max(own.start)).sum::<Duration>();
    }
    sum
}

/// A time in which at least one thread works.
pub(super) struct Busy {
    pub(super) start: Duration,
    pub(super) end: Duration,
}

/// Returns the times in which at least one of the threads works, in order, without overlaps.
pub(super) fn merged(threads: &[&Spans]) -> Vec<Busy> {
    let pieces = threads.iter().flat_map(|thread| thread.kept()).filter(|piece| piece.name != WAITING);
    let mut pieces: Vec<Busy> = pieces.map(|Span { start, end, .. }| Busy { start, end }).collect();
    pieces.sort_by_key(|piece| piece.start);
    pieces.dedup_by(|next, last| {
        let joined = next.start <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
    pieces
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::trace) const fn us(time: u64) -> Duration {
        Duration::from_micros(time)
    }

    pub(in crate::trace) fn spans(name: &str, pieces: &[(u64, u64)]) -> Spans {
        let mut spans = Spans::default();
        for &(start, end) in pieces {
            spans.add(Span { name, start: us(start), end: us(end), cpu: None }, us(end - start));
        }
        spans
    }

    #[test]
    fn overlap_is_the_common_time() {
        let worker = spans(WAITING, &[(0, 100), (300, 400), (500, 600)]);
        let compute = spans("step", &[(50, 120), (130, 200), (320, 350), (360, 550)]);
        assert_eq!(overlap(&worker, WAITING, &[&compute]), us(50 + 30 + 40 + 50));
        // Time in which two threads work counts once.
        let sampling = spans("sample", &[(0, 60), (90, 110), (560, 640)]);
        assert_eq!(overlap(&worker, WAITING, &[&sampling]), us(60 + 10 + 40));
        assert_eq!(overlap(&worker, WAITING, &[&compute, &sampling]), us(100 + 30 + 40 + 50 + 40));
    }
}
