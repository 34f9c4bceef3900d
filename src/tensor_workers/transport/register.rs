//! A tensor worker that registers with a run: first with the run's first process, which sends the addresses of the others, then with
//! each of those ([`super::registry`]). It stays until the run is over.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use arrow_flight::Action;
use gnnflow_data::format::plural;
use tonic::Streaming;

use super::address::{is_local, own_address};
use super::client::{ConnectError, connect, describe};
use super::registry::{HEARTBEAT, REGISTER_ACTION, Registration, RegistryMessage};
use crate::cluster::{ClusterError, Secret};
use crate::error::Error;

/// A run that has sent nothing for this time is lost.
const RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// The run at which a worker registers.
#[derive(Debug, Clone)]
pub(crate) struct RegisterAt {
    /// `HOST:PORT` of the run's first process.
    pub(crate) address: String,
    /// Maximum time to look for the run, before it has started and after it is lost.
    pub(crate) wait: Duration,
}

/// Returns the address at which a worker listens that registers at `connect`, unless the user names one: this machine's address in that
/// direction, with any port.
///
/// # Errors
/// If `connect` is not an address, or another machine's and there is no secret.
pub(crate) fn default_listen_address(connect: &str, secret: Option<&Secret>) -> Result<String, Error> {
    let wrong = |problem: &str| ClusterError::Usage(format!("--connect {connect}: {problem}"));
    connect.to_socket_addrs().map_err(|error| wrong(&format!("expected HOST:PORT ({error})")))?;
    if secret.is_none() && !is_local(connect) {
        return Err(wrong("is not this machine; give a secret, in GNNFLOW_SECRET or with --secret-file").into());
    }
    let own = own_address(connect).ok_or_else(|| wrong("this machine has no route to it"))?;
    Ok(SocketAddr::new(own, 0).to_string())
}

/// Registers with a run and stays until the run is over. Reports through `report`.
///
/// # Errors
/// If the run cannot be found, or refuses this worker.
pub(super) async fn register(
    register_at: &RegisterAt,
    registration: &Registration,
    secret: Option<Secret>,
    report: &impl Fn(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let (address, wait) = (&register_at.address, register_at.wait.as_secs_f64());
    let (mut last_contact, mut reported) = (Instant::now(), false);
    loop {
        let error = match Session::begin(address, registration, secret.as_ref()).await {
            Ok(mut session) => {
                let processes = plural(session.servers.len(), "process");
                report(&format!("registered with the run at {address}, of {processes}"))?;
                let others = register_with_others(&session, registration, secret.as_ref());
                let ended = session.wait_for_end().await;
                others.into_iter().for_each(|other| other.abort());
                (last_contact, reported) = (Instant::now(), false);
                match ended {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        let problem = match error {
            ConnectError::Lost(problem) if last_contact.elapsed() < register_at.wait => problem,
            ConnectError::Lost(problem) => {
                let why = format!("{problem}; gave up after {wait} s");
                return Err(ClusterError::NotRegistered { address: address.clone(), why }.into());
            }
            ConnectError::Refused(why) => {
                return Err(ClusterError::NotRegistered { address: address.clone(), why }.into());
            }
        };
        if !std::mem::replace(&mut reported, true) {
            report(&format!("the run at {address} {problem}; trying again for {wait} s"))?;
        }
        tokio::time::sleep(HEARTBEAT.min(register_at.wait)).await;
    }
}

/// Registers with the other processes of a run. The caller aborts the returned tasks.
fn register_with_others(
    first: &Session,
    registration: &Registration,
    secret: Option<&Secret>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let others = first.servers.iter().filter(|server| **server != first.own).cloned();
    let register = |server: String| {
        let (secret, registration) = (secret.cloned(), registration.clone());
        tokio::spawn(async move {
            loop {
                match Session::begin(&server, &registration, secret.as_ref()).await {
                    Ok(mut session) => {
                        if session.wait_for_end().await.is_ok() {
                            return;
                        }
                    }
                    Err(ConnectError::Refused(why)) => {
                        tracing::warn!("the process of the run at {server} does not use this worker: it {why}");
                        return;
                    }
                    Err(ConnectError::Lost(_)) => {}
                }
                tokio::time::sleep(HEARTBEAT).await;
            }
        })
    };
    others.map(register).collect()
}

/// The registration with one process of a run.
struct Session {
    servers: Vec<String>,
    own: String,
    messages: Streaming<arrow_flight::Result>,
}

impl Session {
    async fn begin(address: &str, registration: &Registration, secret: Option<&Secret>) -> Result<Self, ConnectError> {
        let mut client = connect(address, secret, None, RUN_TIMEOUT).await?;
        let refused = |error: serde_json::Error| ConnectError::Refused(error.to_string());
        let body = serde_json::to_vec(registration).map_err(refused)?;
        let action = Action { r#type: REGISTER_ACTION.to_owned(), body: body.into() };
        let response = tokio::time::timeout(RUN_TIMEOUT, client.do_action(action)).await;
        let response = response.map_err(|_| silent())?.map_err(|status| ConnectError::of(&status))?;
        let mut session = Self { servers: Vec::new(), own: String::new(), messages: response.into_inner() };
        match session.next_message().await? {
            RegistryMessage::Welcome { servers, own } => Ok(Self { servers, own, ..session }),
            _ => Err(ConnectError::Refused("did not send the run's addresses".to_owned())),
        }
    }

    /// Reads messages until the run is over.
    async fn wait_for_end(&mut self) -> Result<(), ConnectError> {
        while self.next_message().await? != RegistryMessage::Over {}
        Ok(())
    }

    async fn next_message(&mut self) -> Result<RegistryMessage, ConnectError> {
        let next = tokio::time::timeout(RUN_TIMEOUT, self.messages.message()).await;
        // A connection that has worked may be made again, whatever ended it.
        let next = next.map_err(|_| silent())?.map_err(|status| ConnectError::Lost(describe(&status)))?;
        let message = next.ok_or_else(|| ConnectError::Lost("has closed the connection".to_owned()))?;
        serde_json::from_slice(&message.body)
            .map_err(|error| ConnectError::Refused(format!("sent a malformed message: {error}")))
    }
}

fn silent() -> ConnectError {
    ConnectError::Lost(format!("has sent nothing for {} s", RUN_TIMEOUT.as_secs()))
}
