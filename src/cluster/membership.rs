//! The membership of a process in a run, from the first socket to the last goodbye.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::is_loopback;
use super::control::Control;
use super::duration::seconds;
use super::first_failure::FirstFailure;
use super::rendezvous::Rendezvous;
use super::roll_call::{self, Absent};
use super::statuses::Statuses;
use super::{ClusterConfig, ClusterError, Liveness, hook, host_numbers};
use crate::encryption::{Link, Traffic};

/// The membership of a process in a run: its rank, its connections to all other processes, and their heartbeats.
///
/// Dropping it without [`execute`](super::execute) sends a goodbye to the others.
#[derive(Debug)]
pub struct Membership {
    rank: usize,
    addresses: Vec<String>,
    pub(super) links: Vec<Option<Link>>,
    pub(super) control: Option<Arc<Control>>,
    pub(super) first_failure: Arc<FirstFailure>,
    liveness: Liveness,
    statuses: Arc<Statuses>,
    traffic: Arc<Traffic>,
    announced: String,
    reduced: bool,
    /// In an elastic run: the lines of the hosts file of all ranks, and its addresses.
    lines: Option<(Vec<usize>, Vec<String>)>,
    absent: Option<Absent>,
    start_timeout: Duration,
    /// Used by [`execute`](super::execute) in a run of one process. With several, `control` has it.
    pub(super) stall_timeout: Duration,
}

impl Membership {
    /// Makes a run of one process, without sockets and threads. It ends if its worker completes nothing for `stall_timeout`.
    pub fn single(stall_timeout: Duration) -> Self {
        Self::single_with(Liveness::default(), stall_timeout)
    }

    /// [`Membership::single`], whose worker reports to `liveness`.
    pub(crate) fn single_with(liveness: Liveness, stall_timeout: Duration) -> Self {
        Membership {
            rank: 0,
            addresses: vec!["this process".into()],
            links: vec![None],
            control: None,
            first_failure: Arc::default(),
            liveness,
            statuses: Arc::default(),
            traffic: Arc::default(),
            announced: String::new(),
            reduced: false,
            lines: None,
            absent: None,
            start_timeout: Duration::ZERO,
            stall_timeout,
        }
    }

    /// Connects to all other ranks. In an elastic run ([`ClusterConfig::elastic`]), these are the processes that are there. Returns when each pair has proven the secret and has equal fingerprints.
    ///
    /// Connections of other programs are refused and logged. While ranks are missing, a log line every few seconds names them. A peer that
    /// dies is detected from its first connection on.
    ///
    /// # Errors
    /// [`ClusterError::Usage`], [`ClusterError::Listen`], [`ClusterError::Mismatch`], [`ClusterError::WrongSecret`],
    /// [`ClusterError::RankTaken`]; [`ClusterError::Lost`] for a rank that has died, or not joined within `start_timeout`;
    /// [`ClusterError::Peer`] for a failure of another rank; [`ClusterError::Finished`] if the run has ended without this process.
    pub fn join(mut config: ClusterConfig) -> Result<Self, ClusterError> {
        config.check()?;
        let Some(elastic) = config.elastic.take() else { return Self::connect(config) };
        // A process that cannot listen ends before others count on it.
        let limit = config.start_timeout.min(RESOLVE);
        let listener = match config.listener.take() {
            Some(listener) => listener,
            None => listen(config.rank, &config.addresses, limit)?,
        };
        let missing = roll_call::call(&mut config, elastic, listener)?;
        let lines = (missing.lines.clone(), missing.hosts.clone());
        let mut membership = Self::connect(config)?;
        membership.reduced = missing.any();
        membership.lines = Some(lines);
        match missing.wait_for(|addresses| listen(0, addresses, limit)) {
            Ok(absent) => membership.absent = absent,
            Err(error) => return Err(membership.fail(error)),
        }
        Ok(membership)
    }

    /// Connects to all ranks of `config`.
    fn connect(mut config: ClusterConfig) -> Result<Self, ClusterError> {
        if config.size() == 1 {
            let mut single = Membership::single(config.stall_timeout);
            single.announced = config.announced;
            return Ok(single);
        }
        let deadline = Instant::now() + config.start_timeout;
        let listener = match config.listener.take() {
            Some(listener) => listener,
            None => listen(config.rank, &config.addresses, config.start_timeout.min(RESOLVE))?,
        };
        let control =
            Control::start(config.rank, config.addresses.clone(), config.heartbeat_timeout, config.stall_timeout)?;
        hook::post_panics_to(&control.first_failure);
        let rendezvous = Rendezvous::new(&config, control.clone())?;
        let (mut links, announced) = rendezvous.run(listener, deadline, config.start_timeout)?;
        let traffic = Arc::default();
        links.iter_mut().flatten().for_each(|link| link.count_in(&traffic));
        let encrypted = if config.encrypts() { ", encrypted" } else { "" };
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        control.agree("the start", "", left)?;
        tracing::info!("all {} processes are connected{encrypted}", config.size());
        Ok(Membership {
            rank: config.rank,
            addresses: config.addresses,
            links,
            first_failure: control.first_failure.clone(),
            liveness: control.liveness.clone(),
            statuses: Arc::clone(&control.statuses),
            traffic,
            control: Some(control),
            announced,
            reduced: false,
            lines: None,
            absent: None,
            start_timeout: config.start_timeout,
            stall_timeout: config.stall_timeout,
        })
    }

    /// Returns the number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.addresses.len()
    }

    /// Returns `host:port` of every rank.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns [`ClusterConfig::announced`] of rank 0, in all processes.
    pub fn announced(&self) -> &str {
        &self.announced
    }

    /// Returns, for each rank, the number of its process among those of its host, from 0. It does not change when processes are lost.
    pub fn numbers_on_host(&self) -> Vec<usize> {
        let (lines, hosts) = match &self.lines {
            Some((lines, addresses)) => (lines.clone(), host_numbers(addresses)),
            None => ((0..self.size()).collect(), host_numbers(&self.addresses)),
        };
        let before = |line: &usize| hosts[..*line].iter().filter(|&&host| host == hosts[*line]).count();
        lines.iter().map(before).collect()
    }

    /// Returns whether the run goes on without some of its processes. Equal in all processes.
    pub fn is_reduced(&self) -> bool {
        self.reduced
    }

    /// Returns the processes that are missing in a run that goes on without them. At rank 0, once.
    pub(crate) fn take_absent(&mut self) -> Option<Absent> {
        self.absent.take()
    }

    /// Returns the handle with which the worker reports its progress.
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    /// Returns the statuses of the processes: the source of the own one, and at rank 0 the last ones of the others.
    pub(crate) fn statuses(&self) -> &Arc<Statuses> {
        &self.statuses
    }

    /// Returns the counter of bytes on this process's data connections.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Checks whether the run has failed already, for long work before [`execute`](super::execute).
    ///
    /// # Errors
    /// The first cause of failure.
    pub fn check(&self) -> Result<(), ClusterError> {
        self.first_failure.report().map_or(Ok(()), Err)
    }

    /// A barrier before the dataflow: waits until all ranks have called it with the same `what`, and compares their values.
    ///
    /// Use it after separate work of the ranks, such as preparing the dataset, with a fingerprint as `value`. `limit` bounds the wait;
    /// `None` is the start timeout. The wait ends if a peer dies.
    ///
    /// # Errors
    /// [`ClusterError::Mismatch`] with a rank whose value differs; [`ClusterError::Lost`] for a rank that is late; or the first cause of a
    /// failed run.
    pub fn agree(&self, what: &str, value: &str, limit: Option<Duration>) -> Result<(), ClusterError> {
        match &self.control {
            Some(control) => control.agree(what, value, limit.unwrap_or(self.start_timeout)),
            None => Ok(()),
        }
    }

    /// Reports a failure before [`execute`](super::execute) to all other ranks. Returns the first cause, which is that of a peer if the
    /// peer failed earlier.
    pub fn fail(self, failure: impl Into<super::Failure>) -> ClusterError {
        let cause = ClusterError::Own(failure.into());
        match &self.control {
            Some(control) => control.fail(cause),
            None => cause,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(control) = &self.control
            && !self.first_failure.is_failing()
        {
            control.send_goodbye();
        }
    }
}

/// Longest time to resolve this rank's own address: the name server of a cluster may learn the name of a new machine after seconds.
const RESOLVE: Duration = Duration::from_secs(20);

/// Resolves this rank's address, and tries again until `limit`.
fn resolve(rank: usize, address: &str, limit: Duration) -> std::io::Result<Vec<SocketAddr>> {
    let begin = Instant::now();
    let mut warned = false;
    loop {
        match address.to_socket_addrs() {
            Ok(found) => return Ok(found.collect()),
            Err(error) if begin.elapsed() >= limit => return Err(error),
            Err(error) if !warned => {
                warned = true;
                tracing::warn!(
                    "rank {rank} cannot resolve its own address {address}: {error}; trying for {}",
                    seconds(limit)
                );
            }
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(200).min(limit));
    }
}

/// Listens at this rank's address, whose name is resolved within `limit`.
fn listen(rank: usize, addresses: &[String], limit: Duration) -> Result<TcpListener, ClusterError> {
    let address = &addresses[rank];
    let failed = |problem: String, advice: &str| ClusterError::Listen {
        rank,
        address: address.clone(),
        problem,
        advice: advice.to_string(),
    };
    let mut own = resolve(rank, address, limit)
        .map_err(|e| failed(e.to_string(), "write an address that this machine can resolve"))?;
    // Many systems resolve a machine's name to a loopback address, which other hosts cannot reach.
    if is_loopback(address) && !addresses.iter().all(|address| is_loopback(address)) {
        own.iter_mut().for_each(|address| match address {
            SocketAddr::V4(v4) => v4.set_ip(std::net::Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(v6) => v6.set_ip(std::net::Ipv6Addr::UNSPECIFIED),
        });
    }
    TcpListener::bind(&own[..]).map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => {
                "another program or a process of an earlier run listens there: end it, or choose another port in the hosts file"
            }
            ErrorKind::AddrNotAvailable => "this machine does not have that address: check --rank and the hosts file",
            ErrorKind::PermissionDenied => "ports below 1024 are reserved: choose a higher one in the hosts file",
            _ => "check the address of this rank in the hosts file",
        };
        failed(error.to_string(), advice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_used_port_names_rank_address_and_advice() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap().to_string();
        let error = listen(1, &["127.0.0.1:1".into(), address.clone()], RESOLVE).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 1") && text.contains(&address) && text.contains("os error 98"), "{text}");
        assert!(text.contains("another program"), "{text}");
        assert_eq!(error.exit_code(), 4);
    }

    #[test]
    fn error_of_another_machines_address_names_the_rank_option() {
        let error = listen(0, &["192.0.2.1:7000".into()], RESOLVE).unwrap_err();
        assert!(error.to_string().contains("--rank"), "{error}");
        let error = listen(0, &["no-such-host.invalid:7000".into()], Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().contains("can resolve"), "{error}");
    }

    #[test]
    fn membership_of_one_process_needs_no_network() {
        let member = Membership::join(ClusterConfig::new(0, vec!["127.0.0.1:7000".into()])).unwrap();
        assert_eq!((member.rank(), member.size()), (0, 1));
        member.agree("dataset", "x", None).unwrap();
        member.check().unwrap();
    }
}
