//! A copy of this program on a host, in a folder with its hash.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use super::ssh::{Answer, Ssh};
use crate::cluster::{ClusterError, Failure, Fingerprints, random_hex};

/// Longest time to find out whether a host has the program.
const LOOK: Duration = Duration::from_secs(60);
/// Longest time of a copy.
const COPY: Duration = Duration::from_secs(600);
/// The exit code of the script that finds no copy.
const ABSENT: i32 = 44;

/// This program.
pub(super) struct Program {
    pub(super) sha256: String,
    bytes: u64,
}

impl Program {
    /// Reads the file of this program.
    pub(super) fn this() -> Result<Self, ClusterError> {
        let size = std::fs::metadata("/proc/self/exe").map(|data| data.len());
        let bytes = size.map_err(unreadable)?;
        Ok(Self { sha256: Fingerprints::program_sha256()?, bytes })
    }

    /// Returns the folder of the copy, for sh. The hash has hexadecimal digits only.
    fn folder(&self) -> String {
        format!("${{XDG_CACHE_HOME:-$HOME/.cache}}/gnnflow/{}", self.sha256)
    }

    /// Returns the script that starts the copy.
    pub(super) fn start_script(&self) -> String {
        format!("exec \"{}/gnnflow\" remote-launch", self.folder())
    }

    /// Copies this program to a host, unless it has a copy.
    ///
    /// # Errors
    /// With the host, and the message of ssh.
    pub(super) fn install(&self, ssh: &Ssh, host: &str) -> Result<(), Failure> {
        let Self { bytes, .. } = self;
        let folder = self.folder();
        let look = format!("test -x \"{folder}/gnnflow\" || exit {ABSENT}");
        let answer = ssh.run(host, &look, Stdio::null(), LOOK)?;
        if answer.status.code() != Some(ABSENT) {
            return done(ssh, host, "connect with", &answer);
        }
        let nonce = random_hex(6)?;
        // A copy that was cut off gets no name.
        let copy = format!(
            "d=\"{folder}\"; f=\"$d/{nonce}\"; umask 077; mkdir -p \"$d\" && cat > \"$f\" && test \"$(wc -c < \"$f\")\" -eq {bytes} && \
             chmod 700 \"$f\" && mv -f \"$f\" \"$d/gnnflow\" || {{ rm -f \"$f\"; exit 1; }}"
        );
        let file = File::open("/proc/self/exe").map_err(unreadable)?;
        done(ssh, host, "copy gnnflow to", &ssh.run(host, &copy, file.into(), COPY)?)
    }
}

fn unreadable(error: std::io::Error) -> ClusterError {
    ClusterError::system("read the running executable", &error)
}

fn done(ssh: &Ssh, host: &str, what: &str, Answer { status, message }: &Answer) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let message = if message.is_empty() { "no message" } else { message };
    Err(Failure::new(5, format!("cannot {what} {host} by {} ({status}): {message}", ssh.name())))
}
