//! The records of a process as events and as a table.

use std::collections::BTreeSet;
use std::io::{Result, Write};

use gnnflow_dataflow::flow::waits::Cause;
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::trace::causes::{Causes, WaitedFor};
use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::overlap::overlap;
use gnnflow_dataflow::trace::spans::{Spans, Total, WAITING};
use gnnflow_dataflow::trace::thread_group::ThreadGroup;

use super::chrome::ChromeTrace;
use crate::outputs::trace_table::{InUse, SentTo, ThreadTime, ThreadUse, TraceTable, WaitTime};

/// The records of all threads of a process.
pub(super) struct Records<'a> {
    /// Seconds from the start of the record to its end.
    pub(super) seconds: f64,
    pub(super) dataflow: &'a Spans,
    /// What the worker thread waits for.
    pub(super) causes: &'a Causes,
    pub(super) placement: Placement,
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
            waiting_for: wait_times(&self.causes.of_waiting(self.dataflow, &busy), self.placement),
            worker_thread: worker,
            compute_threads: compute,
            sampling_threads: sampling,
            jobs_waiting: InUse { mean: self.jobs_waiting.mean(), max: self.jobs_waiting.max() },
            permits_in_use: InUse { mean: self.permits.mean_over_time(), max: self.permits.max() },
            sent,
            dropped: dropped + self.jobs_waiting.dropped() + self.permits.dropped() + self.causes.dropped(),
        }
    }
}

/// Returns the waiting by process or other cause, the longest first. Waiting for several processes is divided equally among them.
fn wait_times(waited: &[WaitedFor], placement: Placement) -> Vec<WaitTime> {
    let mut times: Vec<WaitTime> = Vec::new();
    for WaitedFor { cause, time } in waited {
        let ranks: BTreeSet<usize> = match cause {
            Some(Cause::Workers(ranks)) => ranks.iter().map(|&rank| rank as usize).collect(),
            Some(Cause::Partitions(parts)) => parts.iter().map(|&part| placement.worker_of(part as usize)).collect(),
            _ => BTreeSet::new(),
        };
        let causes = match cause {
            Some(Cause::Workers(_) | Cause::Partitions(_)) => {
                ranks.iter().map(|rank| format!("process {rank}")).collect()
            }
            Some(Cause::Thread) => vec!["a thread".to_owned()],
            Some(Cause::Operator) => vec!["registered operators".to_owned()],
            Some(Cause::Permit) => vec!["permits".to_owned()],
            Some(Cause::EarlierTimes) => vec!["earlier times".to_owned()],
            None => vec!["no item".to_owned()],
        };
        let seconds = time.as_secs_f64() / causes.len().max(1) as f64;
        for cause in causes {
            match times.iter_mut().find(|time| time.cause == cause) {
                Some(same) => same.seconds += seconds,
                None => times.push(WaitTime { cause, seconds }),
            }
        }
    }
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.cause.cmp(&b.cause)));
    times
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
        disk_seconds: group.disk_waiting().map(|waiting| waiting.as_secs_f64()),
    }
}
