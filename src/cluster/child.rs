//! The environment of a child of [`Launcher`](super::Launcher).

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;

use super::{ClusterConfig, ClusterError, Secret};

/// Variable of each child of a group: the file descriptor of its listening socket.
pub(super) const LISTENER: &str = "GNNFLOW_LISTEN_FD";
pub(super) const ADDRESSES: &str = "GNNFLOW_ADDRESSES";
/// Variable with the user's secret. `GNNFLOW_SECRET` of a child is the random secret of its group.
pub(crate) const USER_SECRET: &str = "GNNFLOW_OWN_SECRET";
pub(super) const RUN: &str = "GNNFLOW_RUN";
/// Variable of the child of a supervisor: the file descriptor of a pipe. The child writes to it if a restart would fail in the same
/// way.
pub(super) const NO_RESTART_FD: &str = "GNNFLOW_HOPELESS_FD";

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
    std::env::var_os(NO_RESTART_FD).is_some()
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

/// Tells the supervisor, if there is one, that a restart would fail in the same way. The exit code of this process, 5, does not
/// contain that.
pub(super) fn notify_supervisor(cause: &ClusterError) {
    let no_restart = match cause {
        ClusterError::Peer { code, .. } => prevents_restart(*code),
        ClusterError::Mismatch { .. } | ClusterError::WrongSecret { .. } => true,
        _ => false,
    };
    let (true, Ok(number)) = (no_restart, std::env::var(NO_RESTART_FD)) else { return };
    let pipe = format!("/proc/self/fd/{number}");
    // Writes to pipes only, whatever the variable names. If this fails, the supervisor restarts the run in vain.
    if number.parse::<u32>().is_ok() && std::fs::metadata(&pipe).is_ok_and(|data| data.file_type().is_fifo()) {
        let _ = std::fs::OpenOptions::new().write(true).open(&pipe).and_then(|mut pipe| pipe.write_all(b"!"));
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
