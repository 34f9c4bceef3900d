//! The tensor workers that have registered with this process. They may register at any time, and stay registered while they read this
//! process's messages.
//!
//! ```text
//! tensor worker → graph worker   Handshake, DoAction "enlist": its address
//! graph worker  → tensor worker  the addresses of the run's processes; a heartbeat every second; at last the end of the run
//! ```

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_flight::Action;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::device_kind::DeviceKind;
use crate::tensor_workers::scheduler::RegistryEvent;

/// Name of the action.
pub(super) const REGISTER_ACTION: &str = "enlist";
/// Time between two heartbeats.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Maximum wait for a worker to read that the run is over.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of registered workers.
const MAX_WORKERS: usize = 1000;

/// The request of a worker that registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registration {
    /// The address at which the worker listens.
    pub(super) listens: SocketAddr,
    /// The kind of device on which it computes.
    #[serde(default)]
    pub(super) device: DeviceKind,
}

/// A message to a registered worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RegistryMessage {
    /// The worker is registered with this process, and may register with the run's other processes.
    Welcome {
        /// Addresses at which the processes of the run serve parameters, by rank.
        servers: Vec<String>,
        /// The address of this process among them.
        own: String,
    },
    /// A heartbeat: the run is not over.
    Beat,
    /// The run is over.
    Over,
}

type OnEvent = Arc<dyn Fn(RegistryEvent) + Send + Sync>;
pub(super) type MessageSender = mpsc::Sender<Result<arrow_flight::Result, Status>>;

/// The registered workers of one process.
pub(super) struct WorkerRegistry {
    /// Number of the first worker that registers.
    first: usize,
    /// The kind of device on which all workers must compute.
    device: DeviceKind,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    servers: Vec<String>,
    own: String,
    on_event: Option<OnEvent>,
}

struct Member {
    listens: SocketAddr,
    present: bool,
}

impl WorkerRegistry {
    pub(super) fn new(first: usize, device: DeviceKind) -> Self {
        Self { first, device, state: Mutex::default(), over: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts workers from now on. They are sent `servers` and this process's address `own`; `on_event` is called for each.
    pub(super) fn open(&self, servers: &[String], own: String, on_event: OnEvent) {
        let mut state = self.state();
        (state.servers, state.own, state.on_event) = (servers.to_vec(), own, Some(on_event));
    }

    /// Returns the address of a worker, and whether it is present; `None` for workers that have not registered.
    pub(super) fn member(&self, worker: usize) -> Option<(SocketAddr, bool)> {
        let state = self.state();
        let member = worker.checked_sub(self.first).and_then(|index| state.members.get(index));
        member.map(|member| (member.listens, member.present))
    }

    /// Registers a worker. Messages to it go through `sender`.
    ///
    /// # Errors
    /// If the request is malformed, or the worker cannot be registered now.
    pub(super) fn register(self: &Arc<Self>, action: &Action, sender: MessageSender) -> Result<(), Status> {
        if action.r#type != REGISTER_ACTION {
            return Err(Status::unimplemented("gnnflow has no such action"));
        }
        let Registration { listens, device } = serde_json::from_slice(&action.body)
            .map_err(|error| Status::invalid_argument(format!("not an address of a worker: {error}")))?;
        device.check(&self.device).map_err(Status::failed_precondition)?;
        let (number, welcome, on_event) = {
            let mut state = self.state();
            let Some(on_event) = state.on_event.clone() else {
                return Err(Status::unavailable("the run does not accept tensor workers now"));
            };
            let index = state.members.iter().position(|member| member.listens == listens);
            if index.is_none() && state.members.iter().filter(|member| member.present).count() == MAX_WORKERS {
                let error = format!("{MAX_WORKERS} tensor workers are registered, which is the maximum");
                return Err(Status::failed_precondition(error));
            }
            if index.is_some_and(|index| state.members[index].present) {
                return Err(Status::unavailable(format!("a worker that listens at {listens} is registered already")));
            }
            let index = index.unwrap_or(state.members.len());
            match state.members.get_mut(index) {
                Some(member) => member.present = true,
                None => state.members.push(Member { listens, present: true }),
            }
            let welcome = RegistryMessage::Welcome { servers: state.servers.clone(), own: state.own.clone() };
            (index + self.first, welcome, on_event)
        };
        on_event(RegistryEvent::Registered(number));
        let (registry, over) = (Arc::clone(self), self.over.subscribe());
        tokio::spawn(async move {
            send_messages(&sender, welcome, over).await;
            if let Some(member) = registry.state().members.get_mut(number - registry.first) {
                member.present = false;
            }
            on_event(RegistryEvent::Left(number));
        });
        Ok(())
    }

    /// Tells all workers that the run is over, and accepts no more. Returns when they have read it, or after [`END_TIMEOUT`].
    pub(super) fn end(&self) {
        self.state().on_event = None;
        self.over.send_replace(true);
        let begin = Instant::now();
        while begin.elapsed() < END_TIMEOUT && self.state().members.iter().any(|member| member.present) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends messages to a worker, beginning with `message`, until the run is over or the worker reads no more.
async fn send_messages(sender: &MessageSender, mut message: RegistryMessage, mut over: watch::Receiver<bool>) {
    loop {
        let body = serde_json::to_vec(&message).unwrap_or_default();
        let sent = tokio::time::timeout(HEARTBEAT, sender.send(Ok(arrow_flight::Result { body: body.into() }))).await;
        // A worker that has not read the last few messages is gone.
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
        if message == RegistryMessage::Over {
            // Until the worker has read it.
            let _ = tokio::time::timeout(END_TIMEOUT, sender.closed()).await;
            return;
        }
        let ended = tokio::time::timeout(HEARTBEAT, over.wait_for(|&over| over)).await.is_ok();
        message = if ended { RegistryMessage::Over } else { RegistryMessage::Beat };
    }
}
