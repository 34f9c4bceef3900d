//! What a running job does: each process makes its status every second, and rank 0 writes all of them to `status.json`.
//!
//! | file | content |
//! |---|---|
//! | `process`, `system` | the status of one process; memory and CPU time of this one |
//! | `activity`, `training`, `progress` | stage, work and epochs, as the run reports them; the remaining time |
//! | `reporter` | makes the status of this process, with rates |
//! | `memory` | memory over time, for the report |
//! | `run_status`, `writer` | `status.json`, and the thread that writes it |
//!
//! Processes send their statuses to rank 0 on the control connections, see `cluster::control`.

mod activity;
mod memory;
mod process;
mod progress;
mod reporter;
mod run_status;
mod system;
mod training;
mod writer;

pub(crate) use activity::Activity;
pub(crate) use memory::MemoryOverTime;
pub(crate) use process::{Cache, ProcessStatus};
pub(crate) use progress::RecordedProgress;
pub(crate) use reporter::Reporter;
pub(crate) use run_status::{ReceivedStatus, RunStatus, State};
pub(crate) use writer::{End, StatusWriter};
