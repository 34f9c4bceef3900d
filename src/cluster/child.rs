//! What a child of [`Launcher`](super::Launcher) finds in its environment.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;

use super::{ClusterConfig, ClusterError, Secret};

/// The variable by which a child of a family knows that it is one: the number of its listening socket.
pub(super) const LISTENER: &str = "GNNFLOW_LISTEN_FD";
pub(super) const ADDRESSES: &str = "GNNFLOW_ADDRESSES";
/// The user's own secret, for who is no member of the family: its members have a fresh one.
pub(crate) const OWN_SECRET: &str = "GNNFLOW_OWN_SECRET";
pub(super) const RUN: &str = "GNNFLOW_RUN";
/// The variable by which the only child of a supervisor knows that it is one: the number of a pipe, on which it says that
/// starting again is hopeless.
pub(super) const HOPELESS: &str = "GNNFLOW_HOPELESS_FD";

/// In the child, before exec: die with the parent, keep one descriptor.
pub(super) fn belong_to(parent: u32, kept: RawFd) -> std::io::Result<()> {
    // SAFETY: plain system calls on integers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::fcntl(kept, libc::F_SETFD, 0) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if libc::getppid() as u32 != parent {
            libc::_exit(5);
        }
    }
    Ok(())
}

/// Whether this process is the child of a supervisor started by [`Launcher::this_rank`](super::Launcher::this_rank).
pub fn is_supervised() -> bool {
    std::env::var_os(HOPELESS).is_some()
}

/// Whether this process is a child of a family started by [`Launcher::run`](super::Launcher::run).
pub(crate) fn is_launched() -> bool {
    std::env::var_os(LISTENER).is_some()
}

/// Whether a run that ended with this code should not be started again: it went well, or it would end the same way (the
/// user's pipeline or data, a bug), or somebody wanted it to end.
pub(super) fn is_hopeless(code: u8) -> bool {
    matches!(code, 0 | 2 | 3 | 70 | 130)
}

/// Tells the supervisor, if there is one, that the run ended for a reason that will come again. The exit code alone, 5,
/// would not say so.
pub(super) fn tell_supervisor(cause: &ClusterError) {
    let hopeless = match cause {
        ClusterError::Peer { code, .. } => is_hopeless(*code),
        ClusterError::Mismatch { .. } | ClusterError::WrongSecret { .. } => true,
        _ => false,
    };
    let (true, Ok(number)) = (hopeless, std::env::var(HOPELESS)) else { return };
    let pipe = format!("/proc/self/fd/{number}");
    // Whatever else the variable may name is not written to. Without the word, the supervisor tries in vain, that is all.
    if number.parse::<u32>().is_ok() && std::fs::metadata(&pipe).is_ok_and(|data| data.file_type().is_fifo()) {
        let _ = std::fs::OpenOptions::new().write(true).open(&pipe).and_then(|mut pipe| pipe.write_all(b"!"));
    }
}

/// In a child of [`Launcher::run`](super::Launcher::run): its seat, with the listening socket and the secret. `None` in any other process.
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

    #[test]
    fn other_processes_have_no_seat_and_other_sockets_are_refused() {
        assert!(seat_from_launcher().unwrap().is_none());
        assert!(inherited(1).is_err());
        assert!(inherited(1 << 40).is_err());
    }
}
