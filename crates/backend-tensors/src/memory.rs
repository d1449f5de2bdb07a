//! How much memory is free, as far as the system says.

use std::{fs, path::Path};

/// Bytes that the process could take now without hurting anybody: what the system has available, or less if the control
/// group that the process is in, or one above it, has a limit. `None` where the system does not say.
pub(crate) fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok();
    let system = system.and_then(|text| field(&text, "MemAvailable:")?.checked_mul(1024));
    let group = fs::read_to_string("/proc/self/cgroup").ok();
    let group = group.and_then(|text| available_to_group(Path::new("/sys/fs/cgroup"), &text));
    [system, group].into_iter().flatten().min()
}

/// What the control groups under `root` leave, by the content of `/proc/self/cgroup`.
fn available_to_group(root: &Path, group: &str) -> Option<u64> {
    // Version 2 has one hierarchy, called 0.
    let path = group.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = root.join(path);
    // In a container the path may be the host's, of which nothing is to be seen here but the top.
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(available_in).min()
}

/// What is left of one control group's limit; memory that only caches files is given back when it is needed.
fn available_in(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let caches = read("memory.stat").and_then(|text| field(&text, "file "));
    Some(limit.saturating_sub(used.saturating_sub(caches.unwrap_or(0))))
}

/// The first number behind a label at the beginning of a line.
fn field(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("slice/service");
        fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, max: &str, current: &str, stat: &str| {
            fs::write(folder.join("memory.max"), max).unwrap();
            fs::write(folder.join("memory.current"), current).unwrap();
            fs::write(folder.join("memory.stat"), stat).unwrap();
        };
        let group = "0::/slice/service\n";
        assert_eq!(available_to_group(root.path(), group), None);
        write(&inner, "max\n", "5\n", "anon 5\n");
        assert_eq!(available_to_group(root.path(), group), None);
        write(&inner, "1000\n", "900\n", "anon 300\nfile 600\nfile_mapped 7\n");
        assert_eq!(available_to_group(root.path(), group), Some(700));
        write(inner.parent().unwrap(), "500\n", "400\n", "");
        assert_eq!(available_to_group(root.path(), group), Some(100));
        // Version 1, and a path of the host's.
        assert_eq!(available_to_group(root.path(), "3:memory:/slice\n"), None);
        assert_eq!(available_to_group(root.path(), "0::/other/slice\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_says_something() {
        assert!(available().unwrap() > 1 << 20);
    }
}
