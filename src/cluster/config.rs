//! The configuration of a process that joins a run.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use gnnflow_data::format::hex;
use object::read::{Object, ReadCache};
use sha2::{Digest, Sha256};

use super::hosts::{check_address, rank_assignment, read_hosts};
use super::{ClusterError, Secret};

/// Short texts, such as hashes, that must be equal in all processes of a run. Errors show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// The version and build of the program, see [`Fingerprints::of_build`].
    pub build: String,
    /// The resolved pipeline.
    pub pipeline: String,
    /// The prepared dataset; empty if it does not exist yet, see [`Membership::agree`](super::Membership::agree).
    pub dataset: String,
}

impl Fingerprints {
    /// Returns the SHA-256 of the running program, in hexadecimal digits.
    ///
    /// # Errors
    /// [`ClusterError::System`] if the executable cannot be read.
    pub(crate) fn program_sha256() -> Result<String, ClusterError> {
        let hash = File::open("/proc/self/exe").and_then(|mut file| file_hash(&mut file));
        hash.map(|hash| hex(&hash)).map_err(|e| ClusterError::system("read the running executable", &e))
    }

    /// Returns the fingerprint of the running program: its version, and the first bytes of the linker's build id, which is a hash of the
    /// executable, or of its SHA-256 if there is no build id.
    ///
    /// The build id saves a quarter of a second of hashing in each process: debug information has hundreds of megabytes.
    ///
    /// # Errors
    /// [`ClusterError::System`] if the executable cannot be read.
    pub fn of_build() -> Result<String, ClusterError> {
        let failed = |e| ClusterError::system("read the running executable for its fingerprint", &e);
        let mut file = File::open("/proc/self/exe").map_err(failed)?;
        let identity = match build_id(&file) {
            Some(identity) => short_hex(&identity),
            None => short_hex(&file_hash(&mut file).map_err(failed)?),
        };
        Ok(format!("{} {identity}", env!("CARGO_PKG_VERSION")))
    }
}

/// Returns the build id that the linker has written into a program.
fn build_id(file: &File) -> Option<Vec<u8>> {
    let file = ReadCache::new(file);
    let program = object::File::parse(&file).ok()?;
    Some(program.build_id().ok()??.to_vec())
}

/// Returns the SHA-256 of a file.
fn file_hash(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().to_vec()),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Returns the first bytes of the SHA-256 of `bytes`, in hexadecimal digits.
pub(super) fn short_hash(bytes: &[u8]) -> String {
    short_hex(&Sha256::digest(bytes))
}

fn short_hex(hash: &[u8]) -> String {
    hex(&hash[..8])
}

/// How a run goes on after processes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// How long rank 0 waits for lost processes, before the run goes on without them. `None` at the first start: all processes must be there.
    pub wait: Option<Duration>,
}

/// The configuration for [`Membership::join`](super::Membership::join). [`ClusterConfig::new`] has defaults.
#[derive(Debug)]
pub struct ClusterConfig {
    /// Number of this process.
    pub rank: usize,
    /// `host:port` of every rank, in rank order.
    pub addresses: Vec<String>,
    /// A socket that listens at this rank's address. If `None`, `join` opens one.
    pub listener: Option<TcpListener>,
    /// The shared secret. Optional only if all addresses are loopback addresses.
    pub secret: Option<Secret>,
    /// Whether connections are encrypted. `None`: they are unless all addresses are loopback addresses.
    pub encrypt: Option<bool>,
    /// Fingerprints that must be equal in all processes.
    pub fingerprints: Fingerprints,
    /// Name of the run and attempt, so that processes of an earlier attempt cannot join. Empty without a launcher.
    pub run: String,
    /// A text that rank 0 sends to all others, see [`Membership::announced`](super::Membership::announced). Ignored in other ranks.
    pub announced: String,
    /// Maximum time until all ranks have joined.
    pub start_timeout: Duration,
    /// How the run goes on after processes are lost. `None`: only with all processes.
    pub elastic: Option<Elastic>,
    /// A peer that sends nothing for this time is lost.
    pub heartbeat_timeout: Duration,
    /// A peer whose worker does not turn its loop for this time, and is not busy, is lost.
    pub stall_timeout: Duration,
}

impl ClusterConfig {
    /// Makes a configuration with the default timeouts: start 120 s, heartbeat 10 s, stall 120 s.
    pub fn new(rank: usize, addresses: Vec<String>) -> Self {
        ClusterConfig {
            rank,
            addresses,
            listener: None,
            secret: None,
            encrypt: None,
            fingerprints: Fingerprints::default(),
            run: String::new(),
            announced: String::new(),
            elastic: None,
            start_timeout: Duration::from_secs(120),
            heartbeat_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(120),
        }
    }

    /// Makes the configuration of one process of a hosts file, with the default timeouts and without fingerprints. `rank` is its line; `None`
    /// takes it from the variables of batch systems. The secret is in `GNNFLOW_SECRET`, or else in `secret_file`.
    ///
    /// # Errors
    /// Those of [`read_hosts`], [`rank_assignment`] and [`Secret::find`].
    pub fn from_hosts(
        hosts: &Path,
        rank: Option<usize>,
        secret_file: Option<&Path>,
        encrypt: Option<bool>,
    ) -> Result<Option<Self>, ClusterError> {
        let addresses = read_hosts(hosts)?;
        let environment = |name: &str| std::env::var(name).ok();
        let Some(assignment) = rank_assignment(rank, Some(addresses.len()), environment)? else { return Ok(None) };
        let secret = Secret::find(environment, secret_file)?;
        Ok(Some(ClusterConfig { secret, encrypt, ..ClusterConfig::new(assignment.rank, addresses) }))
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.addresses.len()
    }

    /// Returns whether connections are encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.encrypt.unwrap_or_else(|| !self.addresses.iter().all(|address| is_written_as_loopback(address)))
    }

    /// Checks the configuration before any socket is opened.
    pub(super) fn check(&self) -> Result<(), ClusterError> {
        let usage = |problem: String| Err(ClusterError::Usage(problem));
        if self.rank >= self.size() {
            return usage(format!("rank {} does not exist among {} processes", self.rank, self.size()));
        }
        for (rank, address) in self.addresses.iter().enumerate() {
            if let Err(problem) = check_address(address) {
                return usage(format!("address of rank {rank}: {problem}"));
            }
        }
        for (name, value) in [
            ("start_timeout", self.start_timeout),
            ("heartbeat_timeout", self.heartbeat_timeout),
            ("stall_timeout", self.stall_timeout),
        ] {
            if value.is_zero() {
                return usage(format!("{name} is 0; it must be greater"));
            }
        }
        if self.secret.is_none() && self.encrypt == Some(true) {
            let fix = "set GNNFLOW_SECRET, or cluster.secret_file, to the same text for every process";
            return usage(format!("cluster.encrypt needs a shared secret, from which the keys follow; {fix}"));
        }
        if self.secret.is_none()
            && let Some(remote) = self.addresses.iter().find(|address| !is_loopback(address))
        {
            return usage(format!(
                "{remote} is not a loopback address, so the processes need a shared secret; set GNNFLOW_SECRET, or \
                 cluster.secret_file, to the same text on every host"
            ));
        }
        Ok(())
    }
}

/// Returns whether an address is on this machine. Names other than localhost that do not resolve count as remote.
pub(super) fn is_loopback(address: &str) -> bool {
    match address.to_socket_addrs() {
        Ok(found) => {
            let mut found = found.peekable();
            found.peek().is_some() && found.all(|address| address.ip().is_loopback())
        }
        Err(_) => address.starts_with("localhost:"),
    }
}

/// Returns whether an address is a loopback address without asking a name server, whose answer may be forged.
fn is_written_as_loopback(address: &str) -> bool {
    let local = |address: SocketAddr| address.ip().is_loopback();
    address.parse().map_or_else(|_| address.starts_with("localhost:"), local)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn remote_addresses_need_a_secret() {
        let mut local =
            ClusterConfig::new(0, vec!["127.0.0.1:7000".into(), "localhost:7001".into(), "[::1]:7002".into()]);
        assert_eq!((local.check(), local.encrypts()), (Ok(()), false));
        local.encrypt = Some(true);
        assert!(local.check().unwrap_err().to_string().contains("needs a shared secret"));
        let mut remote = ClusterConfig::new(0, vec!["127.0.0.1:7000".into(), "192.0.2.1:7000".into()]);
        let error = remote.check().unwrap_err();
        assert!(
            error.to_string().contains("192.0.2.1:7000") && error.to_string().contains("GNNFLOW_SECRET"),
            "{error}"
        );
        remote.secret = Some(Secret::random().unwrap());
        assert_eq!((remote.check(), remote.encrypts()), (Ok(()), true));
        remote.rank = 2;
        assert_eq!(remote.check().unwrap_err().exit_code(), 2);
    }

    #[test]
    fn build_fingerprint_is_stable() {
        let build = Fingerprints::of_build().unwrap();
        assert_eq!(build, Fingerprints::of_build().unwrap());
        assert!(build.starts_with(env!("CARGO_PKG_VERSION")));
        // Other files have no build id.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        assert_eq!(build_id(&file), None);
        assert_eq!(short_hex(&file_hash(&mut file).unwrap()), "ba7816bf8f01cfea");
    }
}
