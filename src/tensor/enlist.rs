//! A tensor worker that comes by itself: it enlists with the first process of a run, which says where the others are, and then with each of
//! those ([`super::roll`]). It stays until the run is over.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use arrow_flight::Action;
use gnnflow_data::format::plural;
use tonic::Streaming;

use super::auth::{Known, Why};
use super::client::{is_here, own_address};
use super::roll::{BEAT, Comes, ENLIST, Word};
use crate::Error;
use crate::cluster::{ClusterError, Secret};

/// No word for so long means that the run is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// Where a worker enlists.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    /// `HOST:PORT`.
    pub(crate) at: String,
    /// How long the run is looked for, before it is there and when it is lost.
    pub(crate) patience: Duration,
}

/// Where a worker listens that enlists at `connect` and has not been told: at this machine's address in that direction, at any port.
///
/// # Errors
/// When that is no address, or another machine's and there is no secret.
pub(crate) fn listens_towards(connect: &str, secret: Option<&Secret>) -> Result<String, Error> {
    let wrong = |problem: &str| ClusterError::Usage(format!("--connect {connect}: {problem}"));
    connect.to_socket_addrs().map_err(|error| wrong(&format!("expected HOST:PORT ({error})")))?;
    if secret.is_none() && !is_here(connect) {
        return Err(wrong("is not this machine: a secret is needed, in GNNFLOW_SECRET or with --secret-file").into());
    }
    let own = own_address(connect).ok_or_else(|| wrong("there is no way from here"))?;
    Ok(SocketAddr::new(own, 0).to_string())
}

/// Stays with a run until that is over.
///
/// # Errors
/// When the run cannot be found, or refuses this worker.
pub(super) async fn enlist(
    post: &Post,
    listens: SocketAddr,
    secret: Option<Secret>,
    told: &impl Fn(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let (address, patience) = (&post.at, post.patience.as_secs_f64());
    let (mut seen, mut said) = (Instant::now(), false);
    loop {
        let why = match Stay::begin(address, listens, secret.as_ref()).await {
            Ok(mut stay) => {
                let processes = plural(stay.servers.len(), "process");
                told(&format!("enlisted with the run at {address}, of {processes}"))?;
                let others = others(&stay, listens, secret.as_ref());
                let ended = stay.listen().await;
                others.into_iter().for_each(|other| other.abort());
                (seen, said) = (Instant::now(), false);
                match ended {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                }
            }
            Err(why) => why,
        };
        let why = match why {
            Why::Lost(why) if seen.elapsed() < post.patience => why,
            Why::Lost(why) => {
                let why = format!("{why}; it was looked for {patience} s long");
                return Err(ClusterError::NotEnlisted { address: address.clone(), why }.into());
            }
            Why::Refused(why) => return Err(ClusterError::NotEnlisted { address: address.clone(), why }.into()),
        };
        if !std::mem::replace(&mut said, true) {
            told(&format!("the run at {address} {why}; it is looked for {patience} s long"))?;
        }
        tokio::time::sleep(BEAT.min(post.patience)).await;
    }
}

/// Stays with the other processes of a run, until these are ended by who calls.
fn others(first: &Stay, listens: SocketAddr, secret: Option<&Secret>) -> Vec<tokio::task::JoinHandle<()>> {
    let others = first.servers.iter().filter(|server| **server != first.own).cloned();
    let stay = |server: String| {
        let secret = secret.cloned();
        tokio::spawn(async move {
            loop {
                if let Ok(mut stay) = Stay::begin(&server, listens, secret.as_ref()).await
                    && stay.listen().await.is_ok()
                {
                    return;
                }
                tokio::time::sleep(BEAT).await;
            }
        })
    };
    others.map(stay).collect()
}

/// A process of the run that this worker has enlisted with.
struct Stay {
    servers: Vec<String>,
    own: String,
    heard: Streaming<arrow_flight::Result>,
}

impl Stay {
    async fn begin(address: &str, listens: SocketAddr, secret: Option<&Secret>) -> Result<Self, Why> {
        let known = Known::connect(address, secret, SILENCE).await?;
        let body = serde_json::to_vec(&Comes { listens }).map_err(|error| Why::Refused(error.to_string()))?;
        let (mut client, request) =
            known.ask(Action { r#type: ENLIST.to_owned(), body: body.into() }).map_err(Why::Refused)?;
        let heard = tokio::time::timeout(SILENCE, client.do_action(request)).await;
        let heard = heard.map_err(|_| silent())?.map_err(|status| Why::of(&status))?;
        let mut stay = Self { servers: Vec::new(), own: String::new(), heard: heard.into_inner() };
        match stay.word().await? {
            Word::Welcome { servers, own } => Ok(Self { servers, own, ..stay }),
            _ => Err(Why::Refused("did not say who it is".to_owned())),
        }
    }

    /// Listens until the run is over.
    async fn listen(&mut self) -> Result<(), Why> {
        while self.word().await? != Word::Over {}
        Ok(())
    }

    async fn word(&mut self) -> Result<Word, Why> {
        let heard = tokio::time::timeout(SILENCE, self.heard.message()).await;
        // However a connection breaks that has been good, the run may be found again.
        let heard = heard.map_err(|_| silent())?.map_err(|status| Why::Lost(super::auth::refusal(&status)))?;
        let word = heard.ok_or_else(|| Why::Lost("has broken off".to_owned()))?;
        serde_json::from_slice(&word.body).map_err(|error| Why::Refused(format!("says what makes no sense: {error}")))
    }
}

fn silent() -> Why {
    Why::Lost(format!("has said nothing for {} s", SILENCE.as_secs()))
}
