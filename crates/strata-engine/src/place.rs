//! Where a file lies: its file system, and how much of it is on the drive (Linux tells).

use std::fs;
use std::path::Path;

/// Where a file lies. What the system does not tell is `None`, or `false`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePlace {
    /// The kind of file system, as in `ext4`.
    pub file_system: Option<String>,
    /// Whether that is another machine's, reached through a network.
    pub is_remote: bool,
    /// Whether it is in memory, so that nothing is gained by reading from it.
    pub is_memory: bool,
    /// Whether the file system compresses what it stores.
    pub is_compressed: bool,
    /// Length of the file.
    pub len_bytes: u64,
    /// What the file takes on the drive: less than its length when it has holes.
    pub stored_bytes: Option<u64>,
}

const REMOTE: [&str; 14] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "virtiofs",
    "ceph",
    "glusterfs",
    "lustre",
    "afs",
    "davfs",
    "fuse.sshfs",
    "fuse.rclone",
];
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
const COMPRESSED: [&str; 4] = ["squashfs", "erofs", "cramfs", "zfs"];

impl FilePlace {
    /// That of a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = fs::canonicalize(path).ok().and_then(|path| Self::find(&mounts, &path)).unwrap_or_default();
        Ok(Self { len_bytes: metadata.len(), stored_bytes: stored_bytes(&metadata), ..found })
    }

    /// The file system of a path, by the system's list of mounts
    /// (`36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw`): the longest that it lies below, of equal ones the last.
    fn find(mounts: &str, path: &Path) -> Option<Self> {
        let mut found: Option<(usize, Self)> = None;
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let Some(point) = before.split(' ').nth(4).map(unescaped) else { continue };
            let mut after = after.split(' ');
            let (Some(kind), options) = (after.next(), after.nth(1).unwrap_or_default()) else { continue };
            let depth = Path::new(&point).components().count();
            if path.starts_with(&point) && found.as_ref().is_none_or(|(known, _)| *known <= depth) {
                let has_option = |name: &str| options.split(',').any(|option| option.starts_with(name));
                let place = Self {
                    file_system: Some(kind.to_owned()),
                    is_remote: REMOTE.contains(&kind),
                    is_memory: MEMORY.contains(&kind),
                    is_compressed: COMPRESSED.contains(&kind)
                        || (matches!(kind, "btrfs" | "f2fs" | "bcachefs") && has_option("compress")),
                    ..Self::default()
                };
                found = Some((depth, place));
            }
        }
        found.map(|(_, place)| place)
    }

    /// Bytes of the file that the drive does not hold: holes, or what was saved by compressing.
    pub fn missing_bytes(&self) -> u64 {
        self.stored_bytes.map_or(0, |stored| self.len_bytes.saturating_sub(stored))
    }
}

/// Spaces and the like are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let code = rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        plain.push_str(&rest[..at]);
        plain.push(code.map_or('\\', char::from));
        rest = &rest[if code.is_some() { at + 4 } else { at + 1 }..];
    }
    plain + rest
}

#[cfg(unix)]
fn stored_bytes(metadata: &fs::Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // Whatever the file system's own blocks are.
    Some(metadata.blocks() * 512)
}

#[cfg(not(unix))]
fn stored_bytes(_metadata: &fs::Metadata) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts_and_says_what_it_is() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 22 0:40 / /mnt/far\\040away rw - nfs4 server:/models rw,vers=4.2\n\
                      31 22 0:41 /sub /data rw,noatime - btrfs /dev/nvme0n1p2 rw,compress=zstd:3,ssd\n\
                      32 31 0:42 / /data/plain rw - btrfs /dev/nvme0n1p3 rw,ssd\n\
                      33 22 0:43 / /dev/shm rw - tmpfs tmpfs rw,size=1g\n\
                      broken line\n";
        let find = |path| FilePlace::find(mounts, Path::new(path)).unwrap();
        let flags = |path| {
            let place = find(path);
            (place.is_remote, place.is_memory, place.is_compressed)
        };
        assert_eq!(find("/home/a.gguf").file_system.unwrap(), "ext4");
        assert_eq!(flags("/home/a.gguf"), (false, false, false));
        assert_eq!(flags("/mnt/far away/a.gguf"), (true, false, false));
        assert_eq!(find("/mnt/far").file_system.unwrap(), "ext4", "a name that only begins the same");
        assert_eq!(flags("/data/a.gguf"), (false, false, true));
        assert_eq!(flags("/data/plain/a.gguf"), (false, false, false));
        assert_eq!(flags("/dev/shm/a.gguf"), (false, true, false));
        assert_eq!(FilePlace::find("", Path::new("/a")), None);
        assert_eq!(unescaped("a\\040b\\011c\\9\\"), "a b\tc\\9\\");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn holes_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("holes");
        fs::File::create(&path).unwrap().set_len(1 << 24).unwrap();
        let place = FilePlace::of(&path).unwrap();
        assert_eq!(place.len_bytes, 1 << 24);
        assert!(place.missing_bytes() > 1 << 23, "{place:?}");
        assert!(FilePlace::of(&dir.path().join("none")).is_err());
    }
}
