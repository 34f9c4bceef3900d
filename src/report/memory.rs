//! Memory of the processes over the time of a run.

use super::chart::{Line, Source, time_chart};
use crate::status::MemoryOverTime;

/// Maximum number of lines: those of the processes with most memory. More could not be told apart.
const LINES: usize = 7;

/// Draws the memory of each process. Returns `None` if there are too few samples for a line.
pub(super) fn memory_chart(memory: &MemoryOverTime) -> Option<String> {
    if memory.seconds.len() < 2 {
        return None;
    }
    let peak = |rank: &usize| memory.bytes[*rank].iter().copied().max().unwrap_or(0);
    let mut ranks: Vec<usize> = (0..memory.bytes.len()).collect();
    ranks.sort_by_key(|rank| std::cmp::Reverse(peak(rank)));
    ranks.truncate(LINES);
    ranks.sort_unstable();
    let line = |(index, rank): (usize, &usize)| {
        let samples = memory.seconds.iter().zip(&memory.bytes[*rank]).filter(|(_, bytes)| **bytes > 0);
        let points = samples.map(|(seconds, &bytes)| (seconds.round() as usize, bytes as f64 / (1u64 << 20) as f64));
        Line { source: Source::Run { index, name: format!("process {rank}") }, points: points.collect() }
    };
    let lines: Vec<Line> = ranks.iter().enumerate().map(line).collect();
    let title = match memory.bytes.len() > LINES {
        true => format!("Memory in MiB, of the {LINES} processes with most"),
        false => "Memory in MiB".to_owned(),
    };
    time_chart(&title, &lines)
}

#[cfg(test)]
mod tests {
    use super::super::svg::assert_labels_inside;
    use super::*;

    fn samples(processes: usize, samples: usize) -> MemoryOverTime {
        let seconds = (0..samples).map(|second| second as f64).collect();
        let bytes = (0..processes).map(|rank| vec![(rank as u64 + 1) << 20; samples]).collect();
        MemoryOverTime { seconds, bytes }
    }

    #[test]
    fn chart_has_a_line_for_each_process() {
        let svg = memory_chart(&samples(2, 100)).unwrap();
        assert_labels_inside(&svg);
        assert!(svg.contains(">process 0<") && svg.contains(">process 1<") && svg.contains(">seconds<"), "{svg}");
        assert!(memory_chart(&samples(2, 1)).is_none());
    }

    #[test]
    fn processes_with_most_memory_are_drawn() {
        let svg = memory_chart(&samples(20, 10)).unwrap();
        assert_labels_inside(&svg);
        assert!(!svg.contains(">process 12<") && svg.contains(">process 13<") && svg.contains(">process 19<"), "{svg}");
    }
}
