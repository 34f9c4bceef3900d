//! The shared secret with which processes authenticate each other.

use std::fmt;
use std::path::Path;

use gnnflow_data::format::hex;
use sha2::{Digest, Sha256};

use super::ClusterError;
use crate::encryption::Key;

/// Minimum bytes of a secret.
const SHORTEST: usize = 16;

/// A shared secret. Debug output, errors and logs never contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Makes a secret from text, without surrounding white space. `origin` names the source of the text in errors.
    ///
    /// # Errors
    /// [`ClusterError::Usage`] if fewer than 16 bytes remain.
    pub fn from_text(text: &str, origin: &str) -> Result<Self, ClusterError> {
        let secret = text.trim().as_bytes().to_vec();
        if secret.len() < SHORTEST {
            return Err(ClusterError::Usage(format!(
                "the shared secret from {origin} has {} bytes; use at least {SHORTEST}, for example from `head -c 32 /dev/urandom | base64`",
                secret.len()
            )));
        }
        Ok(Secret(secret))
    }

    /// Reads a secret from a file. Logs a warning if all users of the machine can read the file.
    ///
    /// # Errors
    /// [`ClusterError::Usage`] if the file cannot be read, is not text, or is too short.
    pub fn from_file(path: &Path) -> Result<Self, ClusterError> {
        let origin = format!("file {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|e| ClusterError::Usage(format!("cannot read the shared secret from {origin}: {e}")))?;
        if world_readable(path) {
            tracing::warn!("all users can read {origin} with the shared secret; run `chmod 600` on it");
        }
        Secret::from_text(&text, &origin)
    }

    /// Returns the secret of this process: from the environment variable `GNNFLOW_SECRET`, else from `file`, else `None`.
    ///
    /// # Errors
    /// As [`Secret::from_text`] and [`Secret::from_file`].
    pub fn find(
        environment: impl Fn(&str) -> Option<String>,
        file: Option<&Path>,
    ) -> Result<Option<Self>, ClusterError> {
        match (environment("GNNFLOW_SECRET"), file) {
            (Some(text), _) => Secret::from_text(&text, "GNNFLOW_SECRET").map(Some),
            (None, Some(path)) => Secret::from_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Makes a random secret.
    ///
    /// # Errors
    /// [`ClusterError::System`] if the system gives no random bytes.
    pub fn random() -> Result<Self, ClusterError> {
        random_hex(32).map(|text| Secret(text.into_bytes()))
    }

    /// Returns the key with which connections prove the secret. Without a secret, which is allowed on loopback addresses only, it is a
    /// constant.
    pub(crate) fn key(secret: Option<&Self>) -> Key {
        let secret = secret.map_or(&b"loopback"[..], |secret| &secret.0);
        Sha256::new_with_prefix(b"gnnflow connections").chain_update(secret).finalize().into()
    }

    /// Returns the secret as text, for a child process. All secrets are made from text.
    pub(crate) fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// Returns `bytes` random bytes, in hexadecimal digits.
pub(crate) fn random_hex(bytes: usize) -> Result<String, ClusterError> {
    let mut buffer = vec![0; bytes];
    getrandom::fill(&mut buffer).map_err(|e| ClusterError::System {
        what: "get random bytes from the system".into(),
        problem: e.to_string(),
    })?;
    Ok(hex(&buffer))
}

fn world_readable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_files_are_trimmed_and_checked_for_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "0123456789abcdef0\n").unwrap();
        assert_eq!(Secret::from_file(&path).unwrap(), Secret::from_text("0123456789abcdef0", "here").unwrap());
        std::fs::write(&path, "short\n").unwrap();
        let error = Secret::from_file(&path).unwrap_err();
        assert!(error.to_string().contains("5 bytes") && error.to_string().contains("secret"), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert!(Secret::from_file(&folder.path().join("none")).is_err());
    }

    #[test]
    fn environment_takes_precedence_over_the_file() {
        let variable = |_: &str| Some("from-the-environment".to_string());
        let found = Secret::find(variable, Some(Path::new("/nonexistent"))).unwrap().unwrap();
        assert_eq!(found, Secret::from_text("from-the-environment", "test").unwrap());
        assert_eq!(Secret::find(|_| None, None).unwrap(), None);
    }

    #[test]
    fn random_secrets_differ_and_are_hidden() {
        let (a, b) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.to_text().len(), 64);
        let keys = [Secret::key(Some(&a)), Secret::key(Some(&b)), Secret::key(None)];
        assert!(keys[0] != keys[1] && keys[0] != keys[2]);
        assert_eq!(format!("{a:?}"), "Secret(…)");
    }
}
