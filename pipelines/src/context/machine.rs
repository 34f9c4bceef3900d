//! The memory of this machine.

use std::path::Path;

/// Returns the bytes of memory of this machine, or the limit of this process's control groups (version 1 or 2) if lower.
pub(crate) fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(&groups, |path| std::fs::read_to_string(path).ok()).fold(machine, u64::min)
}

/// Returns the limits of the groups in `/proc/self/cgroup` and of all their ancestors.
fn limits(groups: &str, read: impl Fn(&Path) -> Option<String>) -> impl Iterator<Item = u64> {
    groups.lines().flat_map(move |line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            controllers if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let below = Path::new(root).join(path.trim_start_matches('/'));
        let above = below.ancestors().take_while(|folder| folder.starts_with(root));
        above.filter_map(|folder| read(&folder.join(name))?.trim().parse().ok()).collect()
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
        let found = |groups: &str| limits(groups, read).collect::<Vec<_>>();
        assert_eq!(found("5:cpu,cpuacct:/a\n4:memory:/a/b\n"), [9223372036854771712, 500]);
        assert_eq!(found("0::/c\n"), [700]);
        assert!(found("0::/\n1:name=systemd:/x\n\n").is_empty());
        assert!(memory() > 0);
    }
}
