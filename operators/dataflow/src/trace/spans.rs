//! The pieces of work of one thread, by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Pieces that are shorter count in the totals only.
const SHORTEST: Duration = Duration::from_micros(20);

/// Maximum number of pieces that are kept, of 32 bytes each.
const MOST: usize = 1 << 20;

/// Name of the time in which a worker waits for messages, or for results of its other threads.
pub const WAITING: &str = "waiting";

/// The pieces of work of one thread. Times count from a zero that the user chooses.
///
/// ```
/// use std::time::Duration;
/// use gnnflow_dataflow::trace::spans::Spans;
///
/// let (mut spans, ms) = (Spans::default(), Duration::from_millis);
/// spans.add("sample", ms(0), ms(5), ms(4));
/// spans.add("sample", ms(7), ms(9), ms(2));
/// let total = &spans.totals()[0];
/// assert_eq!((&*total.name, total.count, total.time), ("sample", 2, ms(6)));
/// assert_eq!(spans.kept().count(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Spans {
    numbers: HashMap<Arc<str>, u32>,
    totals: Vec<Total>,
    kept: Vec<Kept>,
    dropped: u64,
}

/// All work of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// The name.
    pub name: Arc<str>,
    /// Number of pieces.
    pub count: u64,
    /// Time, without that of pieces inside of others.
    pub time: Duration,
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// The name.
    pub name: &'a str,
    /// Its start.
    pub start: Duration,
    /// Its end.
    pub end: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    name: u32,
    /// In nanoseconds.
    start: u64,
    end: u64,
}

impl Spans {
    /// Adds a piece from `start` to `end`, of which `own` is not spent in pieces inside of it.
    pub fn add(&mut self, name: &str, start: Duration, end: Duration, own: Duration) {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => self.number(name),
        };
        let total = &mut self.totals[number as usize];
        total.count += 1;
        total.time += own;
        if end.saturating_sub(start) < SHORTEST {
            return;
        }
        if self.kept.len() == MOST {
            self.dropped += 1;
            return;
        }
        let [start, end] = [start, end].map(|time| time.as_nanos() as u64);
        self.kept.push(Kept { name: number, start, end });
    }

    fn number(&mut self, name: &str) -> u32 {
        let (name, number) = (Arc::<str>::from(name), self.totals.len() as u32);
        self.numbers.insert(Arc::clone(&name), number);
        self.totals.push(Total { name, count: 0, time: Duration::ZERO });
        number
    }

    /// Returns the total of each name, in order of their first pieces.
    pub fn totals(&self) -> &[Total] {
        &self.totals
    }

    /// Returns the pieces of at least 20 µs, in order of their ends.
    pub fn kept(&self) -> impl Iterator<Item = Span<'_>> {
        self.kept.iter().map(|kept| {
            let [start, end] = [kept.start, kept.end].map(Duration::from_nanos);
            Span { name: &self.totals[kept.name as usize].name, start, end }
        })
    }

    /// Returns the number of pieces that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the time in which this thread does `name` while `other` works on anything, from the pieces that are kept.
    pub fn overlap(&self, name: &str, other: &Spans) -> Duration {
        let mut work = other.kept.iter().filter(|kept| &*other.totals[kept.name as usize].name != WAITING).peekable();
        let mut sum = 0;
        for own in self.kept.iter().filter(|kept| &*self.totals[kept.name as usize].name == name) {
            while work.next_if(|piece| piece.end <= own.start).is_some() {}
            let inside = work.clone().take_while(|piece| piece.start < own.end);
            sum += inside.map(|piece| piece.end.min(own.end) - piece.start.max(own.start)).sum::<u64>();
        }
        Duration::from_nanos(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(time: u64) -> Duration {
        Duration::from_micros(time)
    }

    #[test]
    fn short_pieces_count_but_are_not_kept() {
        let mut spans = Spans::default();
        spans.add("a", us(0), us(5), us(5));
        spans.add("a", us(10), us(110), us(60));
        assert_eq!((spans.totals()[0].count, spans.totals()[0].time), (2, us(65)));
        assert_eq!(spans.kept().map(|span| (span.start, span.end)).collect::<Vec<_>>(), [(us(10), us(110))]);
    }

    #[test]
    fn overlap_is_the_common_time() {
        let (mut worker, mut compute) = (Spans::default(), Spans::default());
        for (start, end) in [(0, 100), (300, 400), (500, 600)] {
            worker.add(WAITING, us(start), us(end), us(end - start));
        }
        for (start, end) in [(50, 120), (130, 200), (320, 350), (360, 550)] {
            compute.add("step", us(start), us(end), us(end - start));
        }
        assert_eq!(worker.overlap(WAITING, &compute), us(50 + 30 + 40 + 50));
    }
}
