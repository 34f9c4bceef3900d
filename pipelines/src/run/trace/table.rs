//! The records of a process as events and as a table.

use std::io::{Result, Write};

use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::overlap::overlap;
use gnnflow_dataflow::trace::spans::{Spans, Total, WAITING};
use gnnflow_dataflow::trace::thread_group::ThreadGroup;

use super::chrome::ChromeTrace;
use crate::outputs::trace_table::{InUse, SentTo, ThreadTime, ThreadUse, TraceTable};

/// The records of all threads of a process.
pub(super) struct Records<'a> {
    /// Seconds from the start of the record to its end.
    pub(super) seconds: f64,
    pub(super) dataflow: &'a Spans,
    /// By thread; the first one is the compute thread.
    pub(super) compute: &'a [Spans],
    /// By thread.
    pub(super) sampling: &'a [Spans],
    pub(super) jobs_waiting: &'a Counter,
    pub(super) permits: &'a Counter,
}

impl Records<'_> {
    pub(super) fn write_events(&self, mut trace: ChromeTrace<impl Write>) -> Result<()> {
        trace.thread("dataflow", self.dataflow)?;
        let (compute, jobs) = self.compute.split_at(self.compute.len().min(1));
        compute.iter().try_for_each(|spans| trace.thread("compute", spans))?;
        for (number, spans) in self.sampling.iter().enumerate() {
            trace.thread(&format!("sampling {number}"), spans)?;
        }
        for (number, spans) in jobs.iter().enumerate() {
            trace.thread(&format!("job {number}"), spans)?;
        }
        trace.counter("jobs waiting", self.jobs_waiting)?;
        trace.counter("permits in use", self.permits)?;
        trace.end()
    }

    /// Returns the table. `groups` are the worker thread, the compute threads and the sampling threads.
    pub(super) fn table(&self, groups: [&ThreadGroup; 3], sent: Vec<SentTo>) -> TraceTable {
        let [worker, compute, sampling] = groups.map(thread_use);
        let compute_spans: Vec<&Spans> = self.compute.iter().collect();
        let busy: Vec<&Spans> = self.compute.iter().chain(self.sampling).collect();
        let for_compute = overlap(self.dataflow, WAITING, &compute_spans);
        let for_both = overlap(self.dataflow, WAITING, &busy);
        let spans = self.sampling.iter().chain(self.compute).chain([self.dataflow]);
        let dropped: u64 = spans.map(Spans::dropped).sum();
        TraceTable {
            seconds: self.seconds,
            dataflow: times(self.dataflow.totals()),
            compute: times(self.compute.iter().flat_map(Spans::totals)),
            sampling: times(self.sampling.iter().flat_map(Spans::totals)),
            waiting_for_compute: for_compute.as_secs_f64(),
            waiting_for_sampling: for_both.saturating_sub(for_compute).as_secs_f64(),
            worker_thread: worker,
            compute_threads: compute,
            sampling_threads: sampling,
            jobs_waiting: InUse { mean: self.jobs_waiting.mean(), max: self.jobs_waiting.max() },
            permits_in_use: InUse { mean: self.permits.mean_over_time(), max: self.permits.max() },
            sent,
            dropped: dropped + self.jobs_waiting.dropped() + self.permits.dropped(),
        }
    }
}

/// Returns the sum of the totals of each name, the longest first.
fn times<'a>(totals: impl IntoIterator<Item = &'a Total>) -> Vec<ThreadTime> {
    let mut times: Vec<ThreadTime> = Vec::new();
    for Total { name, count, time, cpu } in totals {
        let cpu = cpu.map(|cpu| cpu.as_secs_f64());
        match times.iter_mut().find(|time| time.name == **name) {
            Some(same) => {
                same.count += count;
                same.seconds += time.as_secs_f64();
                same.cpu_seconds = same.cpu_seconds.zip(cpu).map(|(same, cpu)| same + cpu);
            }
            None => times.push(ThreadTime {
                name: name.to_string(),
                count: *count,
                seconds: time.as_secs_f64(),
                cpu_seconds: cpu,
            }),
        }
    }
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    times
}

fn thread_use(group: &ThreadGroup) -> ThreadUse {
    ThreadUse {
        threads: group.threads(),
        cpu_seconds: group.cpu().as_secs_f64(),
        page_faults_from_disk: group.page_faults(),
    }
}
