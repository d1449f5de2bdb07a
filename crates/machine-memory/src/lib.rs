//! How much memory is available and how much this process uses, for programs that check before they allocate.
//!
//! All sizes are in bytes. On Linux the limits of control groups (versions 1 and 2) are taken into account;
//! on other systems every function returns `None`.
//!
//! ```
//! if let (Some(free), Some(limit)) = (machine_memory::available_memory(), machine_memory::memory_limit()) {
//!     assert!(free <= limit);
//! }
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns how many bytes this process can allocate now without evicting anything: the memory that the system
/// reports as available, or less if its control group (version 1 or 2), or a parent group, has a limit.
/// `None` if the system does not report it.
///
/// Pages of cached files count as available, because the kernel reclaims them when they are needed.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok();
    let system = system.and_then(|text| field(&text, "MemAvailable:")?.checked_mul(1024));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let groups = groups.and_then(|text| least_of_groups(Path::new("/sys/fs/cgroup"), &text, available_in));
    [system, groups].into_iter().flatten().min()
}

/// Returns the maximum number of bytes that this process may use: the machine's memory, or less if its
/// control group, or a parent group, has a limit. `None` if the system does not report it.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok();
    let system = system.and_then(|text| field(&text, "MemTotal:")?.checked_mul(1024));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let groups = groups.and_then(|text| least_of_groups(Path::new("/sys/fs/cgroup"), &text, limit_in));
    [system, groups].into_iter().flatten().min()
}

/// Returns the private memory of this process and its descendants in bytes, excluding file pages and shared
/// memory. `None` if the system does not report it.
#[must_use]
pub fn private_memory() -> Option<u64> {
    private_memory_of(Path::new("/proc"), "self", DESCENT)
}

/// Maximum depth of the descendants that are counted: a launcher may start a worker's interpreter.
const DESCENT: usize = 3;

/// Returns the private memory of one process and its descendants, from a `/proc` at `root`.
fn private_memory_of(root: &Path, process: &str, descent: usize) -> Option<u64> {
    let folder = root.join(process);
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let own = field(&status, "RssAnon:")?.checked_mul(1024)?;
    if descent == 0 {
        return Some(own);
    }
    let threads = fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    let children: u64 = threads
        // Some kernels are built without these files; there, children are not counted.
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|child| private_memory_of(root, &child, descent - 1))
        .sum();
    Some(own.saturating_add(children))
}

/// Names that depend on the version of control groups: the files that contain a group's limit and usage, and
/// the labels of the page caches.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Labels of the page caches in `memory.stat`, each with the space after it.
    caches: [&'static str; 2],
}

/// Labels for the caches of a group and its descendants. The label `file` would include shared memory, which
/// cannot be reclaimed.
const VERSION_2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    caches: ["active_file ", "inactive_file "],
};

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    caches: ["total_active_file ", "total_inactive_file "],
};

/// Returns the smallest value of `of` over the control groups mounted at `root` and their parents. `groups`
/// is the content of `/proc/self/cgroup`.
fn least_of_groups(root: &Path, groups: &str, of: fn(&Path, &Files) -> Option<u64>) -> Option<u64> {
    let amounts = groups.lines().filter_map(|line| {
        // Each line is number:controllers:path; version 2 has number 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, files) = match controllers {
            "" => (root.to_owned(), VERSION_2),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), VERSION_1)
            }
            _ => return None,
        };
        let folder: PathBuf = root.join(path.trim_start_matches('/'));
        // In a container, `path` may be the path on the host, although the container sees only the group's
        // own directory, at `root`. Missing directories are skipped.
        let folders = folder.ancestors().take_while(|folder| folder.starts_with(&root));
        folders.filter_map(|folder| of(folder, &files)).min()
    });
    amounts.min()
}

/// Returns the limit of the control group at `folder` in bytes; `None` without a limit.
fn limit_in(folder: &Path, files: &Files) -> Option<u64> {
    let limit = fs::read_to_string(folder.join(files.limit)).ok()?;
    limit.trim().parse().ok()
}

/// Returns the number of bytes that a group may still use.
fn available_in(folder: &Path, files: &Files) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let limit = limit_in(folder, files)?;
    let used: u64 = read(files.used)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let caches = files.caches.iter().filter_map(|label| field(&stat, label));
    let caches = caches.fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(caches)))
}

/// Returns the number after `label`, which is at the start of a line of `text`.
fn field(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &Files, [limit, used, stat]: [&str; 3]) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(files.limit), limit).unwrap();
        fs::write(folder.join(files.used), used).unwrap();
        fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn the_narrowest_group_counts_and_caches_are_free() {
        let root = tempfile::tempdir().unwrap();
        let available = |groups: &str| least_of_groups(root.path(), groups, available_in);
        let inner = root.path().join("slice/service");
        let groups = "0::/slice/service\n";
        assert_eq!(available(groups), None);
        write(&inner, &VERSION_2, ["max\n", "5\n", "anon 5\n"]);
        assert_eq!(available(groups), None);
        // 50 of the bytes in `file` are shared memory.
        let stat = "anon 300\nfile 650\nfile_mapped 7\ninactive_file 500\nactive_file 100\n";
        write(&inner, &VERSION_2, ["1000\n", "950\n", stat]);
        assert_eq!(available(groups), Some(650));
        write(&root.path().join("slice"), &VERSION_2, ["500\n", "400\n", ""]);
        assert_eq!(available(groups), Some(100));
        // The group's path is a path on the host, and no part of it is mounted here.
        assert_eq!(available("0::/other/service\n"), None);
        write(root.path(), &VERSION_2, ["70\n", "50\n", "inactive_file 10\n"]);
        assert_eq!(available("0::/other/service\n"), Some(30));
    }

    #[test]
    fn what_children_hold_counts() {
        let root = tempfile::tempdir().unwrap();
        let process = |name: &str, kib: u64, children: &[&str]| {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(
                folder.join("status"),
                format!("VmRSS:\t 999 kB\nRssAnon:\t {kib} kB\n"),
            )
            .unwrap();
            for (thread, child) in children.iter().enumerate() {
                let folder = folder.join(format!("task/{thread}"));
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("children"), format!("{child} ")).unwrap();
            }
        };
        // Process 9 has already exited.
        process("self", 1, &["2 9", "3", ""]);
        process("2", 10, &[]);
        process("3", 100, &["4"]);
        process("4", 1000, &[]);
        assert_eq!(private_memory_of(root.path(), "self", DESCENT), Some(1111 * 1024));
        assert_eq!(private_memory_of(root.path(), "9", DESCENT), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_written_to_is_private() {
        let before = private_memory().unwrap();
        let taken = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = private_memory().unwrap();
        // Other tests run concurrently and may free some memory.
        assert!(after > before + (32 << 20), "{before} {after}");
        drop(taken);
    }

    #[test]
    fn version_1_has_its_own_names() {
        let root = tempfile::tempdir().unwrap();
        let groups = "12:cpu,cpuacct:/a\n5:memory:/slice/service\n1:name=systemd:/a\n0::/a\n";
        let inner = root.path().join("memory/slice/service");
        let stat = "inactive_file 1\ntotal_inactive_file 600\ntotal_active_file 100\n";
        write(&inner, &VERSION_1, ["1000\n", "900\n", stat]);
        assert_eq!(least_of_groups(root.path(), groups, available_in), Some(800));
        // Version 1 reports a number near 2^63 if there is no limit.
        write(&inner, &VERSION_1, ["9223372036854771712\n", "900\n", stat]);
        assert!(least_of_groups(root.path(), groups, available_in).unwrap() > 1 << 62);
        write(&root.path().join("memory"), &VERSION_1, ["300\n", "100\n", ""]);
        assert_eq!(least_of_groups(root.path(), groups, available_in), Some(200));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_says_something() {
        assert!(available_memory().unwrap() > 1 << 20);
    }
}
