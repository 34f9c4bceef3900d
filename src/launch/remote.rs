//! The process that ssh starts on a host: it runs one command, and ends it when its standard input ends.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use gnnflow_pipelines::Error as PipelineError;

use super::order::{File, Order};
use crate::cluster::{
    ChildGroup, ClusterError, Failure, Fingerprints, Outcome, Signals, bind_to_parent, print_line, random_hex,
};
use crate::error::Error;

/// Longest wait for the order.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for the command to end after a signal, when the launcher is gone.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the command that the launcher sends on standard input. Returns its exit code.
///
/// # Errors
/// If there is no valid order, its files cannot be written, or the command cannot be started.
pub(crate) fn remote_launch() -> Result<u8, Error> {
    let signals = Signals::catch();
    let order = receive()?;
    let own = Fingerprints::program_sha256()?;
    if own != order.program_sha256 {
        let message = "the copy of gnnflow on this host is damaged: delete ~/.cache/gnnflow on it, and launch again";
        return Err(ClusterError::Own(Failure::new(5, message)).into());
    }
    let folder = &order.folder;
    std::fs::create_dir_all(folder).map_err(PipelineError::io("create", folder))?;
    for File { path, text } in &order.files {
        write(&folder.join(path), text)?;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("gnnflow").args(&order.arguments).envs(&order.environment).current_dir(folder);
    command.stdin(Stdio::null()).process_group(0);
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, _exit.
    unsafe {
        command.pre_exec(move || bind_to_parent(parent, None));
    }
    let child = command.spawn().map_err(|error| ClusterError::system("start the command", &error))?;
    let mut group = ChildGroup::new(Vec::new());
    group.children.push(Some(child));
    let follower = std::thread::Builder::new().name("launch:stdin".into());
    follower.spawn(move || follow_launcher(order.is_replaced)).map_err(ClusterError::no_thread)?;
    let Outcome { code, killed } = group.wait(GRACE, true, &signals);
    killed.iter().for_each(|line| print_line(line));
    Ok(code)
}

/// Reads the order, at most for [`PATIENCE`].
fn receive() -> Result<Order, ClusterError> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("launch:order".into());
    let read = move || drop(sender.send(Order::read(&mut std::io::stdin().lock())));
    thread.spawn(read).map_err(ClusterError::no_thread)?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(order)) => Ok(order),
        Ok(Err(error)) => {
            let advice = "`gnnflow launch` starts this command over ssh; it is not for the command line";
            Err(ClusterError::Usage(format!("no order on standard input: {error}; {advice}")))
        }
        Err(_) => Err(ClusterError::Own(Failure::new(5, "the launcher sent no order within a minute"))),
    }
}

/// Writes a file unless it exists with this text. Other processes may write it at the same time.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(PipelineError::io("create", folder))?;
    }
    let new = path.with_added_extension(random_hex(6)?);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    Ok(written.map_err(PipelineError::io("write", path))?)
}

/// Sends this process the signals that the launcher sends. When the launcher is gone, ends this process, and with it the command; at once, and without a
/// signal, if `is_replaced`.
fn follow_launcher(is_replaced: bool) {
    let mut signal = [0];
    while matches!(std::io::stdin().lock().read(&mut signal), Ok(1)) {
        send_own(match libc::c_int::from(signal[0]) {
            libc::SIGINT => libc::SIGINT,
            _ => libc::SIGTERM,
        });
    }
    if !is_replaced {
        send_own(libc::SIGTERM);
        std::thread::sleep(GRACE);
    }
    // SAFETY: a system call on an integer. The kernel ends the command with this process.
    unsafe { libc::_exit(5) }
}

fn send_own(signal: libc::c_int) {
    // SAFETY: a system call on integers.
    unsafe {
        libc::kill(libc::getpid(), signal);
    }
}
