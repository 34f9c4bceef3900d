//! What a run needs of a host.

use std::path::PathBuf;

use gnnflow_pipelines::available_memory;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// A host, as one of its processes sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The name that the host has for itself.
    pub(crate) host_name: String,
    /// Cores that the process may use.
    pub(crate) cores: usize,
    /// Memory that programs can still get, within the limits of control groups.
    pub(crate) available_memory_bytes: Option<u64>,
    /// The folder of temporary files.
    pub(crate) temporary_folder: Folder,
    /// The current folder, which has the run folder by default.
    pub(crate) current_folder: Folder,
    /// The limit on open files of a process; `None` without a limit.
    pub(crate) open_files: Option<u64>,
}

/// A folder and the free space of its disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Bytes that this user may still write; `None` if the folder cannot be used.
    pub(crate) free_bytes: Option<u64>,
}

impl Host {
    /// Describes the host of this process.
    pub(crate) fn this() -> Self {
        Self {
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            available_memory_bytes: available_memory(),
            temporary_folder: Folder::new(std::env::temp_dir()),
            current_folder: Folder::new(std::env::current_dir().unwrap_or_else(|_| ".".into())),
            open_files: getrlimit(Resource::Nofile).current,
        }
    }
}

impl Folder {
    fn new(path: PathBuf) -> Self {
        let disk = rustix::fs::statvfs(&path).ok().filter(|_| path.is_dir());
        Self { path, free_bytes: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name_cores_and_disks() {
        let host = Host::this();
        assert!(!host.host_name.is_empty() && host.cores > 0);
        assert!(host.current_folder.free_bytes.is_some(), "{host:?}");
        assert_eq!(Folder::new("/nonexistent".into()).free_bytes, None);
        assert_eq!(Folder::new("/proc/self/exe".into()).free_bytes, None);
    }
}
