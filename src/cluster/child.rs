//! The environment of a child of [`Launcher`](super::Launcher).

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;

use super::{ClusterConfig, ClusterError, Secret};

/// Variable of each child of a group: the file descriptor of its listening socket.
pub(crate) const LISTENER: &str = "GNNFLOW_LISTEN_FD";
pub(super) const ADDRESSES: &str = "GNNFLOW_ADDRESSES";
/// Variable with the user's secret. `GNNFLOW_SECRET` of a child is the random secret of its group.
pub(crate) const USER_SECRET: &str = "GNNFLOW_OWN_SECRET";
pub(super) const RUN: &str = "GNNFLOW_RUN";
/// Variable of the child of a supervisor: the file descriptor of a pipe for a [`Notice`].
pub(crate) const NOTICE_FD: &str = "GNNFLOW_NOTICE_FD";

/// Variable of the child of a supervisor that was started again after its run had begun: why, as [`Restarted`].
pub(crate) const RESTARTED: &str = "GNNFLOW_RESTARTED";

/// Variable of a process that `gnnflow launch` may start again: it writes [`JOINED`] to stdout when the run begins with it. Only for ranks above 0, which have
/// no results there.
pub(crate) const TELLS_LAUNCHER: &str = "GNNFLOW_TELLS_LAUNCHER";
/// The line for the launcher.
pub(crate) const JOINED: &str = "gnnflow launch: the run begins with this process";

/// A message of the child of a supervisor, on the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// A restart would fail in the same way.
    NoRestart,
    /// The run starts again with a process that was lost and has returned.
    Rejoin,
    /// All processes of an elastic run were there, or those that go on without lost ones.
    Joined,
}

impl Notice {
    fn byte(self) -> u8 {
        match self {
            Self::NoRestart => b'!',
            Self::Rejoin => b'+',
            Self::Joined => b'=',
        }
    }

    /// Returns the notice that a child has sent.
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::NoRestart, Self::Rejoin, Self::Joined].into_iter().find(|notice| notice.byte() == byte)
    }
}

/// Why a supervisor has started this process again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restarted {
    /// A process was lost.
    Lost,
    /// A lost process has returned.
    Returned,
}

impl Restarted {
    /// The value of the variable.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Returned => "returned",
        }
    }
}

/// Returns why this process was started again by its supervisor. `None` if it was not, or if its run had not begun before.
pub(crate) fn restarted() -> Option<Restarted> {
    let word = std::env::var(RESTARTED).ok()?;
    [Restarted::Lost, Restarted::Returned].into_iter().find(|why| why.word() == word)
}

/// Runs in the child before exec. The child dies with its parent, and may inherit one descriptor.
pub(crate) fn bind_to_parent(parent: u32, inherited: Option<RawFd>) -> std::io::Result<()> {
    // SAFETY: system calls on integers.
    unsafe {
        let inherits = inherited.is_none_or(|inherited| libc::fcntl(inherited, libc::F_SETFD, 0) == 0);
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || !inherits {
            return Err(std::io::Error::last_os_error());
        }
        if libc::getppid() as u32 != parent {
            libc::_exit(5);
        }
    }
    Ok(())
}

/// Returns whether this process is the child of a supervisor, [`Launcher::this_rank`](super::Launcher::this_rank).
pub fn is_supervised() -> bool {
    std::env::var_os(NOTICE_FD).is_some()
}

/// Returns whether this process is one of several children of [`Launcher::run`](super::Launcher::run).
pub(crate) fn is_launched() -> bool {
    std::env::var_os(LISTENER).is_some()
}

/// Returns whether a run that ended with this code is not restarted: it succeeded, or would fail again (pipeline, data, bug), or was
/// interrupted.
pub(super) fn prevents_restart(code: u8) -> bool {
    matches!(code, 0 | 2 | 3 | 70 | 130)
}

/// Tells the supervisor, if there is one, what to do. The exit code of this process, 5 for a failure of another one, does not contain
/// that.
pub(super) fn notify_supervisor(cause: &ClusterError) {
    match cause {
        cause if cause.is_rejoin() => notify(Notice::Rejoin),
        ClusterError::Peer { code, .. } if prevents_restart(*code) => notify(Notice::NoRestart),
        ClusterError::Mismatch { .. } | ClusterError::WrongSecret { .. } => notify(Notice::NoRestart),
        _ => {}
    }
}

/// Tells the supervisor and the launcher, if there are any, that the run begins with this process.
pub(super) fn notify_joined() {
    notify(Notice::Joined);
    if std::env::var_os(TELLS_LAUNCHER).is_some() {
        // After the end of the launcher, writing fails.
        let _ = writeln!(std::io::stdout(), "{JOINED}");
    }
}

/// Sends a notice to the supervisor, if there is one.
pub(super) fn notify(notice: Notice) {
    let Ok(number) = std::env::var(NOTICE_FD) else { return };
    let pipe = format!("/proc/self/fd/{number}");
    // Writes to pipes only, whatever the variable names. If this fails, the supervisor restarts the run in vain.
    if number.parse::<u32>().is_ok() && std::fs::metadata(&pipe).is_ok_and(|data| data.file_type().is_fifo()) {
        let _ =
            std::fs::OpenOptions::new().write(true).open(&pipe).and_then(|mut pipe| pipe.write_all(&[notice.byte()]));
    }
}

/// Returns rank, addresses, listening socket and secret of a child of [`Launcher::run`](super::Launcher::run), or `None` in any other
/// process. The caller sets fingerprints and time limits.
///
/// # Errors
/// [`ClusterError::Usage`] if the variables are invalid.
pub fn config_from_launcher() -> Result<Option<ClusterConfig>, ClusterError> {
    let Ok(listener) = std::env::var(LISTENER) else { return Ok(None) };
    let read = |name: &str| {
        std::env::var(name)
            .map_err(|_| ClusterError::Usage(format!("{LISTENER} is set, but {name} is not; unset both")))
    };
    let number = |name: &str, text: String| {
        text.parse::<usize>()
            .map_err(|_| ClusterError::Usage(format!("environment variable {name} = `{text}` is not a number")))
    };
    let rank = number("GNNFLOW_RANK", read("GNNFLOW_RANK")?)?;
    let addresses: Vec<String> = read(ADDRESSES)?.split(',').map(str::to_string).collect();
    let mut config = ClusterConfig::new(rank, addresses);
    config.listener = Some(inherited_listener(number(LISTENER, listener)?)?);
    config.secret = Some(Secret::from_text(&read("GNNFLOW_SECRET")?, "GNNFLOW_SECRET")?);
    config.run = read(RUN)?;
    Ok(Some(config))
}

/// Returns the inherited listening socket, and closes it on exec.
fn inherited_listener(number: usize) -> Result<TcpListener, ClusterError> {
    let invalid =
        |why: &str| ClusterError::Usage(format!("{LISTENER} = {number} is not a listening socket ({why}); unset it"));
    let socket = RawFd::try_from(number).map_err(|_| invalid("out of range"))?;
    let (mut listens, mut length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `listens` and `length` are valid and of the given sizes. A wrong descriptor gives an error.
    let answer = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut listens).cast(), &mut length)
    };
    if answer != 0 || listens == 0 {
        return Err(invalid("not given by the launcher"));
    }
    // SAFETY: the descriptor is an open listening socket for this process alone. Nothing else in this process uses it, because
    // the caller reads the variable once.
    unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
        Ok(TcpListener::from_raw_fd(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_a_launcher_has_no_configuration_or_socket() {
        assert!(config_from_launcher().unwrap().is_none());
        assert!(inherited_listener(1).is_err());
        assert!(inherited_listener(1 << 40).is_err());
    }
}
