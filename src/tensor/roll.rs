//! The workers that have enlisted with this process: they come by themselves, at any time, and stay as long as they listen to what is said
//! to them.
//!
//! ```text
//! tensor worker → graph worker   Handshake, DoAction "enlist": where it listens
//! graph worker  → tensor worker  where the run's processes are; then that it goes on, every second; at last that it is over
//! ```

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_flight::Action;
use gnnflow_pipelines::tensor::Enlisted;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tonic::Status;

/// The action's name.
pub(super) const ENLIST: &str = "enlist";
/// How often a worker is told that the run goes on.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// How long a worker is waited for that has been told that the run is over.
const FAREWELL: Duration = Duration::from_secs(1);
/// Workers that may be enlisted at once.
const MOST: usize = 1000;

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Comes {
    /// Where it listens.
    pub(super) listens: SocketAddr,
}

/// What is said to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// It is one of the workers of this process now, and may enlist with the run's others.
    Welcome {
        /// Where each process of the run serves parameters.
        servers: Vec<String>,
        /// This one's among them.
        own: String,
    },
    /// The run goes on.
    Beat,
    /// The run is over.
    Over,
}

type Told = Arc<dyn Fn(Enlisted) + Send + Sync>;
pub(super) type Says = mpsc::Sender<Result<arrow_flight::Result, Status>>;

/// The roll of one process.
pub(super) struct Roll {
    /// The number of the first one that enlists.
    first: usize,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    servers: Vec<String>,
    own: String,
    told: Option<Told>,
}

struct Member {
    listens: SocketAddr,
    present: bool,
}

impl Roll {
    pub(super) fn new(first: usize) -> Self {
        Self { first, state: Mutex::default(), over: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Workers may enlist from now on: they are told of `servers` and that this process is `own`, and `told` is told of them.
    pub(super) fn open(&self, servers: &[String], own: String, told: Told) {
        let mut state = self.state();
        (state.servers, state.own, state.told) = (servers.to_vec(), own, Some(told));
    }

    /// Where a worker listens, and whether it is there.
    pub(super) fn member(&self, worker: usize) -> Option<(SocketAddr, bool)> {
        let state = self.state();
        let member = worker.checked_sub(self.first).and_then(|at| state.members.get(at));
        member.map(|member| (member.listens, member.present))
    }

    /// Takes a worker in; what is to be said to it goes through `say`.
    ///
    /// # Errors
    /// When it asks for something else, or cannot be taken in.
    pub(super) fn enlist(self: &Arc<Self>, action: &Action, say: Says) -> Result<(), Status> {
        if action.r#type != ENLIST {
            return Err(Status::unimplemented("gnnflow has no such action"));
        }
        let Comes { listens } = serde_json::from_slice(&action.body)
            .map_err(|error| Status::invalid_argument(format!("not an address of a worker: {error}")))?;
        let (number, welcome, told) = {
            let mut state = self.state();
            let Some(told) = state.told.clone() else {
                return Err(Status::unavailable("the run takes nobody in yet, or any more"));
            };
            let at = state.members.iter().position(|member| member.listens == listens);
            if at.is_none() && state.members.iter().filter(|member| member.present).count() == MOST {
                return Err(Status::failed_precondition(format!("{MOST} workers have enlisted, which is the most")));
            }
            if at.is_some_and(|at| state.members[at].present) {
                return Err(Status::unavailable(format!("a worker that listens at {listens} has enlisted already")));
            }
            let at = at.unwrap_or(state.members.len());
            match state.members.get_mut(at) {
                Some(member) => member.present = true,
                None => state.members.push(Member { listens, present: true }),
            }
            let welcome = Word::Welcome { servers: state.servers.clone(), own: state.own.clone() };
            (at + self.first, welcome, told)
        };
        told(Enlisted::Came(number));
        let (roll, over) = (Arc::clone(self), self.over.subscribe());
        tokio::spawn(async move {
            keep(&say, welcome, over).await;
            if let Some(member) = roll.state().members.get_mut(number - roll.first) {
                member.present = false;
            }
            told(Enlisted::Left(number));
        });
        Ok(())
    }

    /// The run is over: everybody is told, and nobody is taken in any more. Returns when they know, or soon.
    pub(super) fn end(&self) {
        self.state().told = None;
        self.over.send_replace(true);
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL && self.state().members.iter().any(|member| member.present) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Says what there is to say, beginning with `word`, until the worker hears no more of it.
async fn keep(say: &Says, mut word: Word, mut over: watch::Receiver<bool>) {
    loop {
        let body = serde_json::to_vec(&word).unwrap_or_default();
        let sent = tokio::time::timeout(BEAT, say.send(Ok(arrow_flight::Result { body: body.into() }))).await;
        // Who has not read the last few words is not there.
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
        if word == Word::Over {
            // Until it has read that.
            let _ = tokio::time::timeout(FAREWELL, say.closed()).await;
            return;
        }
        let ended = tokio::time::timeout(BEAT, over.wait_for(|&over| over)).await.is_ok();
        word = if ended { Word::Over } else { Word::Beat };
    }
}
