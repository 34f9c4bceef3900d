//! The time of a timely worker, by operator.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use timely::logging::{ParkEvent, StartStop, TimelyEvent, TimelyEventBuilder};
use timely::worker::Worker;

use super::spans::{Span, Spans, WAITING};

/// Records the work of `worker` in operators of dataflows that are built later, and its waiting. Call [`flush`] before reading. Times count from
/// [`Worker::timer`]. Returns `None` if timely's logging is disabled.
///
/// ```
/// use gnnflow_dataflow::trace::worker;
/// use timely::dataflow::operators::{ToStream, core::Inspect};
///
/// timely::execute_directly(|worker| {
///     let spans = worker::record(worker).expect("logging is enabled");
///     worker.dataflow::<u64, _, _>(|scope| {
///         (0..8u64).to_stream(scope).container::<Vec<u64>>().inspect(|n| println!("{n}"));
///     });
///     while worker.step() {}
///     worker::flush(worker);
///     assert!(spans.borrow().totals().iter().any(|total| &*total.name == "Inspect"));
/// });
/// ```
pub fn record(worker: &Worker) -> Option<Rc<RefCell<Spans>>> {
    let mut register = worker.log_register()?;
    let spans = Rc::new(RefCell::new(Spans::default()));
    let (recorded, mut open) = (Rc::clone(&spans), Open::default());
    register.insert::<TimelyEventBuilder, _>(TIMELY, move |_, events| {
        let mut spans = recorded.borrow_mut();
        for (time, event) in events.iter_mut().flat_map(|events| events.drain(..)) {
            open.event(time, event, &mut spans);
        }
    });
    Some(spans)
}

/// Completes the records of `worker`: timely buffers them.
pub fn flush(worker: &Worker) {
    if let Some(mut register) = worker.log_register() {
        register.flush();
    }
}

/// The log stream of scheduling and parking.
const TIMELY: &str = "timely";

/// What has begun and not ended.
#[derive(Default)]
struct Open {
    names: HashMap<usize, String>,
    /// The scheduled operators, each inside the one before it.
    operators: Vec<Operator>,
    parked: Option<Duration>,
}

struct Operator {
    id: usize,
    start: Duration,
    /// Time of the operators inside of it.
    inside: Duration,
}

impl Open {
    fn event(&mut self, time: Duration, event: TimelyEvent, spans: &mut Spans) {
        match event {
            TimelyEvent::Operates(operator) => _ = self.names.insert(operator.id, operator.name),
            TimelyEvent::Schedule(event) => match event.start_stop {
                StartStop::Start => self.operators.push(Operator { id: event.id, start: time, inside: Duration::ZERO }),
                StartStop::Stop => self.stop(time, spans),
            },
            TimelyEvent::Park(ParkEvent::Park(_)) => self.parked = Some(time),
            TimelyEvent::Park(ParkEvent::Unpark) => {
                if let Some(start) = self.parked.take() {
                    let waiting = Span { name: WAITING, start, end: time, cpu: None };
                    spans.add(waiting, time.saturating_sub(start));
                }
            }
            _ => {}
        }
    }

    fn stop(&mut self, time: Duration, spans: &mut Spans) {
        let Some(Operator { id, start, inside }) = self.operators.pop() else { return };
        let length = time.saturating_sub(start);
        if let Some(outer) = self.operators.last_mut() {
            outer.inside += length;
        }
        let name = self.names.get(&id).map_or("operator", String::as_str);
        spans.add(Span { name, start, end: time, cpu: None }, length.saturating_sub(inside));
    }
}
