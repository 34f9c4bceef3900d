//! Reports of dataflows that are no runs to stall detection.

use std::cell::RefCell;

use gnnflow_dataflow::collective::group::LoopState;
use gnnflow_dataflow::flow::waits::waits;

use crate::cluster::Liveness;

/// Returns a report of the worker loop's state. Outside of the loop, the worker is busy with `label`, which may take long.
pub(crate) fn report_to<'a>(liveness: &'a Liveness, label: &'static str) -> impl Fn(LoopState) + 'a {
    let busy = RefCell::new(None);
    move |state| match state {
        LoopState::Turn => {
            busy.take();
            liveness.turned();
            if liveness.waits_wanted() {
                liveness.set_waits(waits().iter().map(ToString::to_string).collect());
            }
        }
        LoopState::Progress => liveness.progressed(),
        LoopState::Away => drop(busy.replace(Some(liveness.busy(label)))),
    }
}
