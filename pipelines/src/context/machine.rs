//! The memory of this machine.

use std::path::{Path, PathBuf};

/// Returns the bytes of memory of this machine, or the limit of this process's control groups (version 1 or 2) if lower.
pub(crate) fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)));
    groups(&own_groups()).filter_map(|group| group.limit(read)).fold(machine, u64::min)
}

/// Returns the bytes of memory that programs can still get on this machine without swapping, or as much as this process's control groups
/// leave, if that is less. `None` where the system does not report it.
pub fn available_memory() -> Option<u64> {
    let info = read(Path::new("/proc/meminfo"))?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(groups(&own_groups()).filter_map(|group| group.left(read)).fold(kib * 1024, u64::min))
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn own_groups() -> String {
    read(Path::new("/proc/self/cgroup")).unwrap_or_default()
}

/// A control group that counts memory.
struct Group {
    folder: PathBuf,
    files: &'static Files,
}

/// Names of the files of a group, and of the field of its statistics with the page cache that is not in use.
struct Files {
    limit: &'static str,
    usage: &'static str,
    unused_cache: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", unused_cache: "total_inactive_file " };
const VERSION_2: Files = Files { limit: "memory.max", usage: "memory.current", unused_cache: "inactive_file " };

impl Group {
    fn limit(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        read(&self.folder.join(self.files.limit))?.trim().parse().ok()
    }

    /// Returns how far the group is from its limit. The system drops cached files before that.
    fn left(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        let limit = self.limit(&read)?;
        let usage: u64 = read(&self.folder.join(self.files.usage))?.trim().parse().ok()?;
        let statistics = read(&self.folder.join("memory.stat")).unwrap_or_default();
        let cache = statistics.lines().find_map(|line| line.strip_prefix(self.files.unused_cache)?.parse().ok());
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    }
}

/// Returns the groups in `/proc/self/cgroup` and all their ancestors.
fn groups(text: &str) -> impl Iterator<Item = Group> {
    text.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let (root, files) = match controllers {
            "" => ("/sys/fs/cgroup", &VERSION_2),
            controllers if controllers.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", &VERSION_1),
            _ => return Vec::new(),
        };
        let below = Path::new(root).join(path.trim_start_matches('/'));
        let above = below.ancestors().take_while(|folder| folder.starts_with(root));
        above.map(|folder| Group { folder: folder.to_owned(), files }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_both_versions_and_of_ancestors() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes" => "500\n",
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory.max" => "max\n",
                "/sys/fs/cgroup/c/memory.max" => "700\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let found = |text: &str| groups(text).filter_map(|group| group.limit(read)).collect::<Vec<_>>();
        assert_eq!(found("5:cpu,cpuacct:/a\n4:memory:/a/b\n"), [9223372036854771712, 500]);
        assert_eq!(found("0::/c\n"), [700]);
        assert!(found("0::/\n1:name=systemd:/x\n\n").is_empty());
        assert!(memory() > 0);
    }
    #[test]
    fn cache_that_is_not_in_use_is_left() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/a/memory.max" => "1000\n",
                "/sys/fs/cgroup/a/memory.current" => "900\n",
                "/sys/fs/cgroup/a/memory.stat" => "anon 600\nactive_file 50\ninactive_file 250\n",
                "/sys/fs/cgroup/memory.max" => "max\n",
                "/sys/fs/cgroup/memory/b/memory.limit_in_bytes" => "500\n",
                "/sys/fs/cgroup/memory/b/memory.usage_in_bytes" => "700\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let left = |text: &str| groups(text).filter_map(|group| group.left(read)).collect::<Vec<_>>();
        assert_eq!(left("0::/a\n"), [350]);
        assert_eq!(left("4:memory:/b\n"), [0]);
        assert!(available_memory().is_some_and(|bytes| bytes > 0 && bytes <= memory()));
    }
}
