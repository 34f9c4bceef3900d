//! Messages of all workers to the first one, in the order of times.

use gnnflow_dataflow::flow::in_order::InOrder;
use gnnflow_dataflow::wire::meter::Stage;
use gnnflow_dataflow::wire::{Header, Rows, WireBlock};
use timely::container::NoopBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};

use crate::collectives::{Driver, FirstError};
use crate::context::WorkerContext;
use crate::error::Error;

/// A dataflow that brings messages to the first worker, in the order of times.
pub(super) struct Messages<'a> {
    input: InputHandle<u64, NoopBuilder<WireBlock>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    context: &'a WorkerContext,
    now: u64,
}

impl<'a> Messages<'a> {
    /// Builds the dataflow. The first worker calls `receive` for each message.
    pub(super) fn new(
        driver: &mut Driver<'_>,
        context: &'a WorkerContext,
        mut receive: impl FnMut(&[u8]) -> Result<(), Error> + 'static,
    ) -> Self {
        let (errors, probe) = (FirstError::default(), probe::Handle::new());
        let mut input = InputHandle::<u64, NoopBuilder<WireBlock>>::new_with_builder();
        let first_error = errors.clone();
        driver.worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .in_order()
                .inspect(move |(_, bytes)| {
                    first_error.capture(receive(bytes));
                })
                .probe_with(&probe);
        });
        Self { input, probe, errors, context, now: 0 }
    }

    /// Ends this worker's messages before `time`.
    pub(super) fn advance_to(&mut self, time: u64) {
        self.input.advance_to(time);
        self.now = time;
    }

    /// Sends a message at the present time.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        let header = Header { from: self.context.worker as u32, key: self.now, ..Header::default() };
        let mut block = WireBlock::new(header, vec![], vec![], Rows::Bytes(bytes));
        self.context.other_meter.sent(self.context.worker, Stage::Fetch, &block);
        self.input.send_batch(&mut block);
    }

    /// Waits until the first worker has received all messages before `time`.
    pub(super) fn wait(&self, driver: &mut Driver<'_>, time: u64) -> Result<(), Error> {
        driver.run_until(&self.probe, time, &self.errors)
    }

    /// Lets the dataflow do what is ready, without waiting.
    pub(super) fn poll(&self, driver: &mut Driver<'_>) -> Result<(), Error> {
        driver.poll(&self.errors)
    }

    /// Waits until all workers have come to `time`.
    pub(super) fn barrier(&mut self, driver: &mut Driver<'_>, time: u64) -> Result<(), Error> {
        self.advance_to(time);
        self.wait(driver, time)
    }
}
