//! The status of a run in the text format of Prometheus.

use std::fmt::Error;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::status::{ProcessStatus, RunStatus};

/// The labels of a process.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Process {
    rank: u64,
    host: String,
}

/// The label of the run.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Run {
    run: String,
}

type Decimal = Gauge<f64, AtomicU64>;

/// Returns the status of a run as text.
///
/// # Errors
/// If a value cannot be encoded.
pub(super) fn text(run: &RunStatus) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("gnnflow");
    of_run(&mut registry, run);
    let mut metrics = OfProcesses { registry: &mut registry, run };
    metrics.gauge("memory", "Resident memory", Some(Unit::Bytes), |of| of.memory as f64);
    metrics.gauge("memory_peak", "Largest resident memory so far", Some(Unit::Bytes), |of| of.memory_peak as f64);
    metrics.gauge("threads", "Threads", None, |of| of.threads as f64);
    metrics.gauge("idle", "Time since the last completed work", Some(Unit::Seconds), |of| of.idle_seconds);
    metrics.seconds("cpu", "CPU time of all threads", |of| of.cpu_seconds);
    metrics.counter("sent", "Bytes sent to other processes", Some(Unit::Bytes), |of| of.bytes_sent);
    metrics.counter("received", "Bytes received from other processes", Some(Unit::Bytes), |of| of.bytes_received);
    metrics.counter("messages_sent", "Messages sent to other processes", None, |of| of.messages_sent);
    metrics.counter("steps", "Steps of training", None, |of| of.steps);
    metrics.counter("completed", "Completed timestamps and jobs", None, |of| of.completed);
    if run.statuses.iter().any(|of| of.status.cache.is_some()) {
        let cache = |of: &ProcessStatus| of.cache.unwrap_or_default();
        metrics.counter("cache_hits", "Rows found in the cache of features", None, move |of| cache(of).hits);
        metrics.counter("cache_misses", "Rows not found in the cache of features", None, move |of| cache(of).misses);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Adds the metrics of the run as a whole.
fn of_run(registry: &mut Registry, run: &RunStatus) {
    let label = Run { run: run.name.clone() };
    let mut add = |name: &str, help: &str, unit: Option<Unit>, value: f64| {
        let family = Family::<Run, Decimal>::default();
        family.get_or_create(&label).set(value);
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    };
    add("processes", "Processes of the run", None, run.processes as f64);
    add("began", "When the run began, since 1970", Some(Unit::Seconds), run.began);
    add("epochs", "Epochs that the run trains at most", None, run.epochs as f64);
    if let Some(epoch) = run.stage.epoch() {
        add("epoch", "The epoch in training", None, epoch as f64);
    }
    if let Some(left) = run.remaining_seconds {
        add("remaining", "Estimate of the time until the last epoch ends", Some(Unit::Seconds), left);
    }
    if let Some(epoch) = &run.last_epoch {
        add("loss", "Mean training loss of the last epoch", None, epoch.loss);
        let scores = epoch.metric.as_deref().zip(epoch.val.as_ref());
        if let Some(value) = scores.and_then(|(name, scores)| scores.value(name)) {
            add("val_metric", "Validation metric of the last evaluated epoch", None, value);
        }
    }
}

/// Adds metrics with a value for each process.
struct OfProcesses<'a> {
    registry: &'a mut Registry,
    run: &'a RunStatus,
}

impl OfProcesses<'_> {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: impl Fn(&ProcessStatus) -> f64) {
        let family = Family::<Process, Decimal>::default();
        for (process, status) in self.processes() {
            family.get_or_create(&process).set(value(status));
        }
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, family),
            None => self.registry.register(name, help, family),
        }
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<Unit>, value: impl Fn(&ProcessStatus) -> u64) {
        let family = Family::<Process, Counter>::default();
        for (process, status) in self.processes() {
            family.get_or_create(&process).inc_by(value(status));
        }
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, family),
            None => self.registry.register(name, help, family),
        }
    }

    fn seconds(&mut self, name: &str, help: &str, value: impl Fn(&ProcessStatus) -> f64) {
        let family = Family::<Process, Counter<f64, AtomicU64>>::default();
        for (process, status) in self.processes() {
            family.get_or_create(&process).inc_by(value(status));
        }
        self.registry.register_with_unit(name, help, Unit::Seconds, family);
    }

    fn processes(&self) -> impl Iterator<Item = (Process, &ProcessStatus)> {
        self.run.statuses.iter().map(|of| {
            let process = Process { rank: of.status.rank as u64, host: of.status.host.clone() };
            (process, &of.status)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::ReceivedStatus;

    #[test]
    fn text_has_a_value_for_each_process() {
        let of = |rank| ProcessStatus {
            rank,
            host: "alpha".into(),
            memory: 1 << 20,
            cpu_seconds: 2.5,
            bytes_sent: 7,
            ..ProcessStatus::default()
        };
        let statuses = [0, 1].map(|rank| ReceivedStatus { age_seconds: 0.0, status: of(rank) });
        let run = RunStatus { name: "a\"b".into(), processes: 2, statuses: statuses.into(), ..RunStatus::default() };
        let text = text(&run).unwrap();
        for line in [
            "# TYPE gnnflow_memory_bytes gauge",
            "gnnflow_memory_bytes{rank=\"1\",host=\"alpha\"} 1048576.0",
            "gnnflow_cpu_seconds_total{rank=\"0\",host=\"alpha\"} 2.5",
            "gnnflow_sent_bytes_total{rank=\"0\",host=\"alpha\"} 7",
            "gnnflow_processes{run=\"a\\\"b\"} 2.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("cache"), "{text}");
    }
}
