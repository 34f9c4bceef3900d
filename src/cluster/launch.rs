//! Several processes on one machine: this process as the parent of all others.
//!
//! The parent runs the same program again for every rank, with the same arguments, and hands each child its seat in the
//! environment and an already listening socket, so that no port can be lost in between. It waits for the children by
//! process id, passes SIGINT and SIGTERM on, and ends the others once one has failed. When the parent dies, however it
//! dies, the kernel ends the children.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::secret::random_hex;
use super::signals::{self, Signals};
use super::{ClusterConfig, ClusterError, Secret};

/// The variable by which a child knows that it is one: the number of its listening socket.
const LISTENER: &str = "GNNFLOW_LISTEN_FD";
const ADDRESSES: &str = "GNNFLOW_ADDRESSES";
const RUN: &str = "GNNFLOW_RUN";
/// How often the parent looks at its children.
const LOOK: Duration = Duration::from_millis(10);

/// A run of several processes on this machine, as its parent sees it.
///
/// ```no_run
/// use gnnflow::cluster::{Launch, seat_from_launcher};
///
/// // main() of a program that is parent and child alike.
/// if let Some(config) = seat_from_launcher().unwrap() {
///     println!("I am rank {} of {}", config.rank, config.size());
/// } else {
///     std::process::exit(Launch::new(4).run().unwrap().into());
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Launch {
    /// Number of processes, at least 2.
    pub processes: usize,
    /// How often a failed run is started again from its last checkpoint.
    pub restarts: usize,
    /// After a first failure, the time that the others have to end by themselves.
    pub grace: Duration,
    /// Arguments of the children: by default those of this process.
    pub arguments: Vec<OsString>,
    /// What a restart adds to the arguments, unless it is there already: `--resume`.
    pub resume: OsString,
}

/// How a child ended, and when in the order of endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    rank: usize,
    code: u8,
    signal: Option<i32>,
    /// Ended by the parent's own SIGKILL.
    put_down: bool,
}

impl Launch {
    /// As many processes with this process's own arguments, no restarts, and three seconds of grace.
    pub fn new(processes: usize) -> Self {
        Launch {
            processes,
            restarts: 0,
            grace: Duration::from_secs(3),
            arguments: std::env::args_os().skip(1).collect(),
            resume: "--resume".into(),
        }
    }

    /// Runs all processes to their end and returns the exit code for this one.
    ///
    /// The code is that of the first process that failed for a reason of its own; 5 when all that is known is that a
    /// process was lost; 130 after SIGINT or SIGTERM. A failed run is started again, with `--resume`, as often as
    /// `restarts` says, unless the user (2, 3), a bug (70) or a signal (130) ended it.
    ///
    /// Call it on the main thread: the kernel ends the children when the thread that started them ends.
    ///
    /// # Errors
    /// [`ClusterError::System`] when processes or sockets cannot be made.
    pub fn run(&self) -> Result<u8, ClusterError> {
        let signals = Signals::catch();
        let run = random_hex(8)?;
        let mut attempt = 0;
        loop {
            let code = self.attempt(&run, attempt, &signals)?;
            let hopeless = matches!(code, 0 | 2 | 3 | 70 | 130);
            if hopeless || attempt >= self.restarts {
                return Ok(code);
            }
            attempt += 1;
            eprintln!(
                "gnnflow: the run ended with exit code {code}; starting all {} processes again from the last checkpoint \
                 (restart {attempt} of {})",
                self.processes, self.restarts
            );
        }
    }

    fn attempt(&self, run: &str, attempt: usize, signals: &Signals) -> Result<u8, ClusterError> {
        let no_socket = |e| ClusterError::system("open a listening socket on 127.0.0.1", &e);
        let listeners: Vec<TcpListener> = (0..self.processes)
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<_, _>>()
            .map_err(no_socket)?;
        let addresses: Vec<String> = listeners
            .iter()
            .map(|listener| listener.local_addr().map(|address| address.to_string()))
            .collect::<Result<_, _>>()
            .map_err(no_socket)?;
        let secret = Secret::random()?.to_text();

        let mut family = Family { children: Vec::new(), addresses, talk: Vec::new() };
        for (rank, listener) in listeners.iter().enumerate() {
            let mut command = Command::new("/proc/self/exe");
            if let Some(name) = std::env::args_os().next() {
                command.arg0(name);
            }
            command.args(&self.arguments);
            if attempt > 0 && !self.arguments.contains(&self.resume) {
                command.arg(&self.resume);
            }
            command
                .env("GNNFLOW_RANK", rank.to_string())
                .env("GNNFLOW_SIZE", self.processes.to_string())
                .env("GNNFLOW_SECRET", &secret)
                .env(ADDRESSES, family.addresses.join(","))
                .env(RUN, format!("{run}/{attempt}"))
                .env(LISTENER, listener.as_raw_fd().to_string())
                .stdin(Stdio::null())
                .process_group(0);
            if rank > 0 {
                command.stdout(Stdio::null());
            }
            // Rank 0 keeps a terminal, for its progress bars; otherwise its lines pass here, so that lines stay whole.
            if rank > 0 || !std::io::stderr().is_terminal() {
                command.stderr(Stdio::piped());
            }
            let (parent, socket) = (std::process::id(), listener.as_raw_fd());
            // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, fcntl, _exit. The
            // socket stays open in the parent until all children are started.
            unsafe {
                command.pre_exec(move || belong_to(parent, socket));
            }
            // An error leaves `family`, whose end is the end of the children so far.
            let mut child = command.spawn().map_err(|e| ClusterError::system(format!("start process {rank}"), &e))?;
            if let Some(stderr) = child.stderr.take() {
                family.talk.push(pass_on(rank, stderr));
            }
            family.children.push(Some(child));
        }
        // Only the children hold the sockets now: dialling a dead one is refused at once.
        drop(listeners);
        Ok(family.wait(self.grace, signals))
    }
}

/// In the child, before exec: die with the parent, keep the listening socket.
fn belong_to(parent: u32, socket: RawFd) -> std::io::Result<()> {
    // SAFETY: plain system calls on integers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::fcntl(socket, libc::F_SETFD, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if libc::getppid() as u32 != parent {
            libc::_exit(5);
        }
    }
    Ok(())
}

/// Copies a child's stderr to this one's, line by line, with its rank in front unless it is 0. The receiver ends when the
/// copying ends.
fn pass_on(rank: usize, stderr: impl Read + Send + 'static) -> Receiver<()> {
    let (ended, waiting) = channel::<()>();
    // Without the thread the child would get a closed pipe; its words are lost, its exit code is not.
    let _ = std::thread::Builder::new().name(format!("launch:stderr-{rank}")).spawn(move || {
        let _ended = ended;
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        let front = if rank == 0 { String::new() } else { format!("[rank {rank}] ") };
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            let text = [front.as_bytes(), &line, b"\n"].concat();
            let _ = std::io::stderr().lock().write_all(&text);
            line.clear();
        }
    });
    waiting
}

/// The children of one attempt. Dropping it ends those that are left.
struct Family {
    children: Vec<Option<Child>>,
    addresses: Vec<String>,
    talk: Vec<Receiver<()>>,
}

impl Family {
    /// Waits for all, ends the rest after a first failure, and decides the exit code.
    fn wait(mut self, grace: Duration, signals: &Signals) -> u8 {
        let mut endings: Vec<Ending> = Vec::new();
        let mut patience: Option<Instant> = None;
        let (mut put_down, mut interrupted) = (false, false);
        while self.children.iter().any(Option::is_some) {
            for (rank, seat) in self.children.iter_mut().enumerate() {
                let Some(child) = seat else { continue };
                match child.try_wait() {
                    Ok(None) => {}
                    Ok(Some(status)) => {
                        *seat = None;
                        endings.push(ending(rank, status, put_down));
                    }
                    // Somebody else has reaped it; nothing is known of how it ended.
                    Err(_) => {
                        *seat = None;
                        endings.push(Ending { rank, code: 5, signal: None, put_down });
                    }
                }
            }
            if let Some(signal) = signals.caught()
                && !interrupted
            {
                interrupted = true;
                patience.get_or_insert(Instant::now() + grace);
                self.signal(signal);
            }
            if endings.iter().any(|ending| ending.code != 0) {
                patience.get_or_insert(Instant::now() + grace);
            }
            if patience.is_some_and(|until| Instant::now() >= until) && !put_down {
                put_down = true;
                self.signal(libc::SIGKILL);
            }
            std::thread::sleep(LOOK);
        }
        // Grandchildren may hold the pipes; their words are not worth waiting for long.
        let until = Instant::now() + Duration::from_secs(1);
        for talk in self.talk.drain(..) {
            let _ = talk.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
        if interrupted {
            return 130;
        }
        self.explain(&endings);
        decide(&endings)
    }

    /// To all process groups of children that are left.
    fn signal(&self, signal: libc::c_int) {
        for child in self.children.iter().flatten() {
            // SAFETY: a system call on integers. The child has not been waited for, so its process id, which is its
            // group's id, belongs to it still.
            unsafe {
                libc::kill(-(child.id() as libc::pid_t), signal);
            }
        }
    }

    /// Says what the children could not say themselves.
    fn explain(&self, endings: &[Ending]) {
        for ending in endings.iter().filter(|ending| !ending.put_down) {
            let Some(signal) = ending.signal else { continue };
            let hint = if signal == libc::SIGKILL { "; if nobody did it, the system was out of memory" } else { "" };
            let name = signals::name(signal);
            eprintln!(
                "gnnflow: rank {} ({}) was killed by {name} (signal {signal}){hint}",
                ending.rank, self.addresses[ending.rank]
            );
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for child in self.children.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

fn ending(rank: usize, status: ExitStatus, put_down: bool) -> Ending {
    let signal = status.signal();
    let code = match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(70),
        None => 5,
    };
    Ending { rank, code, signal, put_down: put_down && signal == Some(libc::SIGKILL) }
}

/// The exit code of the whole: of the first that failed for a reason of its own, else of the first that failed.
///
/// A process that only lost a peer (5) may end before the culprit does.
fn decide(endings: &[Ending]) -> u8 {
    let failed = || endings.iter().filter(|ending| ending.code != 0 && !ending.put_down);
    failed()
        .find(|ending| ending.code != 5)
        .or_else(|| failed().next())
        .or_else(|| endings.iter().find(|ending| ending.code != 0))
        .map_or(0, |ending| ending.code)
}

/// In a child of [`Launch::run`]: its seat, with the listening socket and the secret. `None` in any other process.
///
/// Fingerprints and time limits are the caller's to fill in.
///
/// # Errors
/// [`ClusterError::Usage`] when the variables are there but make no sense.
pub fn seat_from_launcher() -> Result<Option<ClusterConfig>, ClusterError> {
    let Ok(listener) = std::env::var(LISTENER) else { return Ok(None) };
    let read = |name: &str| {
        std::env::var(name)
            .map_err(|_| ClusterError::Usage(format!("{LISTENER} is set, but {name} is not; both are the launcher's")))
    };
    let number = |name: &str, text: String| {
        text.parse::<usize>()
            .map_err(|_| ClusterError::Usage(format!("environment variable {name} = `{text}` is no number")))
    };
    let rank = number("GNNFLOW_RANK", read("GNNFLOW_RANK")?)?;
    let addresses: Vec<String> = read(ADDRESSES)?.split(',').map(str::to_string).collect();
    let mut config = ClusterConfig::new(rank, addresses);
    config.listener = Some(inherited(number(LISTENER, listener)?)?);
    config.secret = Some(Secret::from_text(&read("GNNFLOW_SECRET")?, "GNNFLOW_SECRET")?);
    config.run = read(RUN)?;
    Ok(Some(config))
}

/// The inherited listening socket, closed on exec again.
fn inherited(number: usize) -> Result<TcpListener, ClusterError> {
    let not_ours = |why: &str| ClusterError::Usage(format!("{LISTENER} = {number} is no listening socket ({why})"));
    let socket = RawFd::try_from(number).map_err(|_| not_ours("out of range"))?;
    let (mut listens, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `listens` and `length` are valid places of the sizes given; a wrong descriptor is an error return.
    let answer = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut listens).cast(), &mut length)
    };
    if answer != 0 || listens == 0 {
        return Err(not_ours("not given by the launcher"));
    }
    // SAFETY: the descriptor is open, is a listening socket, and was made for this process alone; nothing else in this
    // process uses it, as this function's caller reads the variable once.
    unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
        Ok(TcpListener::from_raw_fd(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(codes: &[(usize, u8)]) -> Vec<Ending> {
        codes.iter().map(|&(rank, code)| Ending { rank, code, signal: None, put_down: false }).collect()
    }

    #[test]
    fn the_culprits_own_code_decides() {
        assert_eq!(decide(&ends(&[(0, 0), (1, 0)])), 0);
        assert_eq!(decide(&ends(&[(0, 5), (1, 3)])), 3);
        assert_eq!(decide(&ends(&[(1, 5), (0, 0)])), 5);
        assert_eq!(decide(&ends(&[(1, 70), (0, 3)])), 70);
        let killed = Ending { rank: 0, code: 5, signal: Some(9), put_down: true };
        assert_eq!(decide(&[killed, ends(&[(1, 4)])[0]]), 4);
        assert_eq!(decide(&[killed]), 5);
    }

    #[test]
    fn other_processes_have_no_seat_and_other_sockets_are_refused() {
        assert!(seat_from_launcher().unwrap().is_none());
        assert!(inherited(1).is_err());
        assert!(inherited(1 << 40).is_err());
    }
}
