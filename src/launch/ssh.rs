//! The program that connects with a host.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::cluster::{ClusterError, Failure, bind_to_parent};

/// Time between two looks at a child.
const POLL: Duration = Duration::from_millis(10);
/// Most bytes of a message that are kept.
const MESSAGE_BYTES: usize = 4096;
/// Maximum time for the rest of a message after the child has ended.
const REST: Duration = Duration::from_secs(1);

/// A program such as ssh, with its first arguments. A host and a command for the shell of the host follow them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ssh {
    program: String,
    arguments: Vec<String>,
}

impl FromStr for Ssh {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = shlex::split(text).ok_or("a quote is not closed")?.into_iter();
        let program = words.next().filter(|program| !program.is_empty()).ok_or("expected a program")?;
        Ok(Self { program, arguments: words.collect() })
    }
}

/// How a short command on a host ended.
pub(super) struct Answer {
    pub(super) status: ExitStatus,
    /// The last line on stderr.
    pub(super) message: String,
}

impl Ssh {
    /// Returns the name of the program, for messages.
    pub(super) fn name(&self) -> &str {
        &self.program
    }

    /// Returns the command that runs `script`, which has no single quotes, with sh on a host. It ends with this process.
    pub(super) fn command(&self, host: &str, script: &str) -> Command {
        debug_assert!(!script.contains('\''));
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(host).arg(format!("exec sh -c '{script}'")).process_group(0);
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, _exit.
        unsafe {
            command.pre_exec(move || bind_to_parent(parent, None));
        }
        command
    }

    /// Runs a short script on a host.
    ///
    /// # Errors
    /// If the program cannot be started (exit code 4), or does not end within `limit` (5).
    pub(super) fn run(&self, host: &str, script: &str, stdin: Stdio, limit: Duration) -> Result<Answer, Failure> {
        let mut command = self.command(host, script);
        command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
        let stderr = child.stderr.take();
        let (sender, message) = channel();
        let reader = std::thread::Builder::new().name(format!("launch:message-{host}"));
        // Without the thread, there is no message.
        let _ = reader.spawn(move || drop(sender.send(last_line(stderr))));
        let ended = wait(&mut child, limit);
        // A process that ssh has left in the background may keep stderr open.
        let message = message.recv_timeout(REST).unwrap_or_default();
        match ended {
            Some(status) => Ok(Answer { status, message }),
            None => {
                let after = if message.is_empty() { String::new() } else { format!(": {message}") };
                let problem = format!("{host}: {} did not answer within {} s{after}", self.program, limit.as_secs());
                Err(Failure::new(5, problem))
            }
        }
    }

    pub(super) fn not_started(&self, error: &std::io::Error) -> ClusterError {
        let what = format!("start {} (--ssh)", self.program);
        ClusterError::System { what, problem: error.to_string() }
    }
}

/// Waits for a child, and kills it and its group after `limit`.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begin.elapsed() > limit {
            // SAFETY: a system call on integers. The child has not been waited for, so its process id, which is also its group's
            // id, is still valid.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the last line that is not empty.
fn last_line(stderr: Option<impl Read>) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; MESSAGE_BYTES];
    if let Some(mut stderr) = stderr {
        while let Ok(count @ 1..) = stderr.read(&mut buffer) {
            text.extend_from_slice(&buffer[..count]);
            text.drain(..text.len().saturating_sub(MESSAGE_BYTES));
        }
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// Returns the host of an address of a hosts file, for ssh.
pub(super) fn host_of(address: &str) -> Result<String, ClusterError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.starts_with('-') {
        return Err(ClusterError::Usage(format!("`{address}`: ssh would take the host name for an option")));
    }
    Ok(host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_arguments_are_split_as_in_a_shell() {
        let ssh: Ssh = "'/opt/my ssh/ssh' -p 22 -o \"User=a b\"".parse().unwrap();
        assert_eq!(ssh.name(), "/opt/my ssh/ssh");
        assert_eq!(ssh.arguments, ["-p", "22", "-o", "User=a b"]);
        assert!("".parse::<Ssh>().is_err() && "ssh 'open".parse::<Ssh>().is_err());
    }

    #[test]
    fn hosts_have_neither_port_nor_brackets() {
        assert_eq!(host_of("alpha.example:7000").unwrap(), "alpha.example");
        assert_eq!(host_of("[fe80::1]:7000").unwrap(), "fe80::1");
        assert_eq!(host_of("-oProxyCommand=x:7000").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn silent_programs_are_ended() {
        // The host and the command are further arguments of sleep's shell.
        let ssh: Ssh = "sh -c 'echo waiting >&2; sleep 60'".parse().unwrap();
        let error = ssh.run("alpha", "true", Stdio::null(), Duration::from_millis(300)).err().unwrap();
        assert!(error.message.starts_with("alpha: sh did not answer within 0 s: waiting"), "{error:?}");
        let ssh: Ssh = "sh -c 'echo first >&2; echo \"no route to $0\" >&2; exit 255'".parse().unwrap();
        let answer = ssh.run("alpha", "true", Stdio::null(), Duration::from_secs(30)).unwrap();
        assert_eq!((answer.status.code(), answer.message.as_str()), (Some(255), "no route to alpha"));
    }
}
