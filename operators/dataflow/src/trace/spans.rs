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
/// use gnnflow_dataflow::trace::spans::{Span, Spans};
///
/// let (mut spans, ms) = (Spans::default(), Duration::from_millis);
/// spans.add(Span { name: "sample", start: ms(0), end: ms(5), cpu: None }, ms(4));
/// spans.add(Span { name: "sample", start: ms(7), end: ms(9), cpu: None }, ms(2));
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
    /// CPU time, if it is measured.
    pub cpu: Option<Duration>,
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
    /// The CPU time that it took, if it is measured. The whole of a name is measured, or nothing of it.
    pub cpu: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    name: u32,
    /// In nanoseconds.
    start: u64,
    end: u64,
    /// 0 where it is not measured.
    cpu: u64,
}

impl Spans {
    /// Adds a piece. The time `own` of it is not spent in pieces inside of it.
    pub fn add(&mut self, span: Span<'_>, own: Duration) {
        let Span { name, start, end, cpu } = span;
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => self.number(name),
        };
        let total = &mut self.totals[number as usize];
        total.count += 1;
        total.time += own;
        if let Some(cpu) = cpu {
            *total.cpu.get_or_insert_default() += cpu;
        }
        if end.saturating_sub(start) < SHORTEST {
            return;
        }
        if self.kept.len() == MOST {
            self.dropped += 1;
            return;
        }
        let [start, end, cpu] = [start, end, cpu.unwrap_or_default()].map(|time| time.as_nanos() as u64);
        self.kept.push(Kept { name: number, start, end, cpu });
    }

    fn number(&mut self, name: &str) -> u32 {
        let (name, number) = (Arc::<str>::from(name), self.totals.len() as u32);
        self.numbers.insert(Arc::clone(&name), number);
        self.totals.push(Total { name, count: 0, time: Duration::ZERO, cpu: None });
        number
    }

    /// Returns the total of each name, in order of their first pieces.
    pub fn totals(&self) -> &[Total] {
        &self.totals
    }

    /// Returns the pieces of at least 20 µs, in order of their ends.
    pub fn kept(&self) -> impl Iterator<Item = Span<'_>> {
        self.kept.iter().map(|kept| {
            let total = &self.totals[kept.name as usize];
            let [start, end, cpu] = [kept.start, kept.end, kept.cpu].map(Duration::from_nanos);
            Span { name: &total.name, start, end, cpu: total.cpu.map(|_| cpu) }
        })
    }

    /// Returns the number of pieces that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
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
        spans.add(Span { name: "a", start: us(0), end: us(5), cpu: Some(us(4)) }, us(5));
        spans.add(Span { name: "a", start: us(10), end: us(110), cpu: Some(us(70)) }, us(60));
        let Total { count, time, cpu, .. } = spans.totals()[0];
        assert_eq!((count, time, cpu), (2, us(65), Some(us(74))));
        assert_eq!(spans.kept().map(|span| (span.start, span.end)).collect::<Vec<_>>(), [(us(10), us(110))]);
    }
}
