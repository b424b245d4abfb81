//! The machine's memory and what this process may have of it, as far as the system tells (Linux does).

use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::values;

/// Memory of a machine. What the system does not tell is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory of the machine.
    pub total_bytes: Option<u64>,
    /// What the system could give without others losing theirs.
    pub available_bytes: Option<u64>,
    /// The control group that leaves the least to this process.
    pub group: Option<Group>,
    /// What this process may lock.
    pub lock_limit_bytes: Option<u64>,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// A limit that a control group sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The most that its processes may use.
    pub limit_bytes: u64,
    /// What they use, without files that the system would drop.
    pub used_bytes: u64,
}

/// Limits from here on are none: what a group of the first kind says when nothing was set.
const NO_LIMIT_BYTES: u64 = 1 << 60;
/// A page where the system does not tell.
const PAGE_BYTES: u64 = if cfg!(all(target_os = "macos", target_arch = "aarch64")) { 16_384 } else { 4096 };

impl Memory {
    /// That of this machine.
    pub fn detect() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let meminfo = text("/proc/meminfo");
        Self {
            total_bytes: parse_kib(&meminfo, "MemTotal"),
            available_bytes: parse_kib(&meminfo, "MemAvailable"),
            group: tightest(Path::new("/sys/fs/cgroup"), &text("/proc/self/cgroup")),
            lock_limit_bytes: parse_lock_limit(&text("/proc/self/limits")),
            page_bytes: parse_page_bytes(&fs::read("/proc/self/auxv").unwrap_or_default()).unwrap_or(PAGE_BYTES),
        }
    }

    /// The most memory that this process ever had in use.
    pub fn peak_rss_bytes() -> Option<u64> {
        parse_kib(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
    }

    /// The memory that this process has in use, files that the system would drop among it.
    pub fn rss_bytes() -> Option<u64> {
        parse_kib(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
    }

    /// What another process has in use, without files that the system would drop.
    pub(crate) fn held_bytes(pid: u32) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(parse_kib(&status, "RssAnon")? + parse_kib(&status, "RssShmem").unwrap_or(0))
    }

    /// What this process can still have without others losing theirs, within the limit of its control group.
    pub fn spare_bytes(&self) -> Option<u64> {
        let group = self.group.map(|group| group.limit_bytes.saturating_sub(group.used_bytes));
        [self.total_bytes, self.available_bytes, group].into_iter().flatten().min()
    }
}

pub(crate) fn parse_kib(meminfo: &str, key: &str) -> Option<u64> {
    let kib = values(meminfo, key).next()?.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

/// The soft limit; without one, all numbers are below it.
fn parse_lock_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        soft => soft.parse().ok(),
    }
}

/// The page size among the values that the system hands to a program: pairs of words, kind 6.
fn parse_page_bytes(auxv: &[u8]) -> Option<u64> {
    let (words, _) = auxv.as_chunks::<{ size_of::<usize>() }>();
    let mut pairs = words.chunks_exact(2).map(|pair| (usize::from_ne_bytes(pair[0]), usize::from_ne_bytes(pair[1])));
    pairs.find(|(kind, _)| *kind == 6).map(|(_, bytes)| bytes as u64).filter(|bytes| bytes.is_power_of_two())
}

/// The group, among those of this process and their parents, that leaves it the least. `root` is where groups are
/// mounted, `cgroup` what `/proc/self/cgroup` says: lines `number:controllers:path`.
fn tightest(root: &Path, cgroup: &str) -> Option<Group> {
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let kind = match controllers {
            "" => &UNIFIED,
            list if list.split(',').any(|name| name == "memory") => &FIRST,
            _ => continue,
        };
        let mounted = root.join(kind.folder);
        // Inside of a container the path is often that of the host, and only the mount itself is there.
        let mut at: PathBuf = mounted.join(path.trim_start_matches('/'));
        while at.starts_with(&mounted) {
            groups.extend(kind.read(&at));
            if !at.pop() {
                break;
            }
        }
    }
    groups.into_iter().min_by_key(|group| group.limit_bytes.saturating_sub(group.used_bytes))
}

/// Names of a kind of control groups.
struct Kind {
    folder: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    droppable: &'static str,
}

const UNIFIED: Kind =
    Kind { folder: "", limits: &["memory.max", "memory.high"], used: "memory.current", droppable: "inactive_file" };
const FIRST: Kind = Kind {
    folder: "memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file",
};

impl Kind {
    /// The limit of the group in this folder, if it has one. Without one, it says `max` or an absurd number.
    fn read(&self, folder: &Path) -> Option<Group> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let limits = self.limits.iter().filter_map(|name| number(name));
        let limit_bytes = limits.min().filter(|bytes| *bytes < NO_LIMIT_BYTES)?;
        let stat = text("memory.stat").unwrap_or_default();
        let droppable = stat.lines().find_map(|line| line.strip_prefix(self.droppable)?.trim().parse::<u64>().ok());
        let used_bytes = number(self.used).unwrap_or(0).saturating_sub(droppable.unwrap_or(0));
        Some(Group { limit_bytes, used_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells_of_memory_is_understood() {
        let meminfo = "MemTotal:       24689764 kB\nMemFree:  1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(parse_kib(meminfo, "MemAvailable"), Some(23_552_000_000));
        assert_eq!(parse_kib(meminfo, "MemTotal"), Some(25_282_318_336));
        assert_eq!(parse_kib("MemTotal: 1 kB", "MemAvailable"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         8388608              unlimited            bytes     \n";
        assert_eq!(parse_lock_limit(limits), Some(8 << 20));
        assert_eq!(parse_lock_limit("Max locked memory  unlimited  unlimited  bytes"), Some(u64::MAX));
        assert_eq!(parse_lock_limit(""), None);
        let auxv: Vec<u8> = [33usize, 7, 6, 16_384, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(parse_page_bytes(&auxv), Some(16_384));
        assert_eq!(parse_page_bytes(&auxv[..31]), None);
    }

    /// Files of groups below a folder.
    fn groups(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// Field report 4: a container's limit counts, not the host's memory.
    #[test]
    fn field_report_04_the_tightest_group_counts() {
        let root = groups(&[
            ("a/memory.max", "8000\n"),
            ("a/memory.current", "5000\n"),
            ("a/memory.stat", "anon 3000\ninactive_file 2000\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.high", "6000\n"),
            ("a/b/memory.current", "500\n"),
        ]);
        // The parent leaves 8000 - (5000 - 2000), the group itself 5500.
        assert_eq!(tightest(root.path(), "0::/a/b\n"), Some(Group { limit_bytes: 8000, used_bytes: 3000 }));
        assert_eq!(tightest(root.path(), "0::/\n"), None);
        assert_eq!(tightest(root.path(), ""), None);
    }

    #[test]
    fn field_report_04_groups_of_the_first_kind_and_paths_of_the_host() {
        let files = [
            ("memory/memory.limit_in_bytes", "4096000\n"),
            ("memory/memory.usage_in_bytes", "96000\n"),
            ("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 6000\n"),
        ];
        let cgroup = "9:name=systemd:/\n4:cpu,memory:/host/only\n0::/\n";
        let expected = Some(Group { limit_bytes: 4_096_000, used_bytes: 90_000 });
        assert_eq!(tightest(groups(&files).path(), cgroup), expected);
        let none = groups(&[("memory/memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(tightest(none.path(), cgroup), None);
    }

    #[test]
    fn the_least_is_spared() {
        let group = Some(Group { limit_bytes: 10, used_bytes: 4 });
        let memory =
            Memory { total_bytes: Some(9), available_bytes: Some(7), group, lock_limit_bytes: None, page_bytes: 4096 };
        assert_eq!(memory.spare_bytes(), Some(6));
        assert_eq!(Memory { group: None, ..memory.clone() }.spare_bytes(), Some(7));
        let unknown = Memory { group: None, available_bytes: None, total_bytes: None, ..memory };
        assert_eq!(unknown.spare_bytes(), None);
    }
}
