//! Which drive a file lies on, and what the system says about it (Linux does).

use std::fs;
use std::path::{Path, PathBuf};

/// A drive. What the system does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name, as in `nvme0n1`.
    pub name: Option<String>,
    /// Whether it is said to turn. Drives of virtual machines often say so without.
    pub is_rotational: Option<bool>,
    /// Whether it can be taken away, or hangs on a USB cable.
    pub is_removable: Option<bool>,
}

impl Device {
    /// Milliseconds since the system was started in which the drive had something to do (the tenth number of
    /// Documentation/block/stat.rst).
    pub(in crate::bench) fn busy_ms(&self) -> Option<u64> {
        let stat = Path::new("/sys/class/block").join(self.name.as_ref()?).join("stat");
        fs::read_to_string(stat).ok()?.split_whitespace().nth(9)?.parse().ok()
    }

    /// The drive of this file or directory.
    pub(in crate::bench) fn of(path: &Path) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        device_number(path).and_then(|number| Self::find(Path::new("/sys"), &mounts, number)).unwrap_or_default()
    }

    /// The drive of a device number, given the system's directory and its list of mounts.
    fn find(sys: &Path, mounts: &str, (major, minor): (u64, u64)) -> Option<Self> {
        let number = format!("{major}:{minor}");
        let by_number = fs::canonicalize(sys.join("dev/block").join(&number));
        // Some file systems have numbers of their own; the mount says which drive.
        let by_mount = || {
            let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
            let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
            fs::canonicalize(sys.join("class/block").join(Path::new(source).file_name()?)).ok()
        };
        let mut dir = by_number.ok().or_else(by_mount)?;
        // An encrypted or combined drive: its first part.
        while let Some(below) = first_below(&dir) {
            dir = below;
        }
        if !dir.join("queue").is_dir() {
            // A partition.
            dir.pop();
        }
        let flag = |name: &str| match fs::read_to_string(dir.join(name)).ok()?.trim() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        let is_usb = dir.components().any(|part| part.as_os_str().to_string_lossy().starts_with("usb"));
        Some(Self {
            name: Some(dir.file_name()?.to_string_lossy().into_owned()),
            is_rotational: flag("queue/rotational"),
            is_removable: if is_usb { Some(true) } else { flag("removable") },
        })
    }
}

fn first_below(dir: &Path) -> Option<PathBuf> {
    let first = fs::read_dir(dir.join("slaves")).ok()?.next()?.ok()?;
    fs::canonicalize(first.path()).ok()
}

#[cfg(target_os = "linux")]
fn device_number(path: &Path) -> Option<(u64, u64)> {
    use std::os::linux::fs::MetadataExt;
    let number = fs::metadata(path).ok()?.st_dev();
    Some(((number >> 8) & 0xfff | (number >> 32) & !0xfff, number & 0xff | (number >> 12) & !0xff))
}

#[cfg(not(target_os = "linux"))]
fn device_number(_path: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Where a drive is, what it says of itself, and its number.
    type Drive<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

    /// A system's directory with these drives.
    fn system(drives: &[Drive<'_>]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for dir in ["dev/block", "class/block"] {
            fs::create_dir_all(sys.path().join(dir)).unwrap();
        }
        for (place, files, number) in drives {
            let dir = sys.path().join(place);
            fs::create_dir_all(&dir).unwrap();
            for (name, text) in *files {
                let file = dir.join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            symlink(&dir, sys.path().join("dev/block").join(number)).unwrap();
            symlink(&dir, sys.path().join("class/block").join(dir.file_name().unwrap())).unwrap();
        }
        sys
    }

    fn device(name: &str, is_rotational: bool, is_removable: bool) -> Option<Device> {
        let name = Some(name.to_owned());
        Some(Device { name, is_rotational: Some(is_rotational), is_removable: Some(is_removable) })
    }

    /// Field report 28: drives that turn or hang on a cable are known.
    #[test]
    fn partitions_usb_encrypted_and_numbered_drives_are_found() {
        let solid = [("queue/rotational", "0\n"), ("removable", "0\n")];
        let turning = [("queue/rotational", "1\n"), ("removable", "0\n")];
        let sys = system(&[
            ("devices/pci0/nvme/nvme0n1", &solid, "259:0"),
            ("devices/pci0/nvme/nvme0n1/nvme0n1p2", &[("partition", "2\n")], "259:2"),
            ("devices/pci0/usb2/2-1/sda", &turning, "8:0"),
            ("devices/virtual/dm-0", &[("queue/rotational", "1\n")], "252:0"),
        ]);
        let slaves = sys.path().join("devices/virtual/dm-0/slaves");
        fs::create_dir_all(&slaves).unwrap();
        symlink(sys.path().join("devices/pci0/nvme/nvme0n1/nvme0n1p2"), slaves.join("nvme0n1p2")).unwrap();
        let mounts = "30 1 0:25 / /home rw - btrfs /dev/nvme0n1p2 rw\n31 1 0:26 / /proc rw - proc proc rw";

        let find = |number| Device::find(sys.path(), mounts, number);
        assert_eq!(find((259, 0)), device("nvme0n1", false, false));
        assert_eq!(find((259, 2)), device("nvme0n1", false, false));
        assert_eq!(find((8, 0)), device("sda", true, true));
        assert_eq!(find((252, 0)), device("nvme0n1", false, false));
        assert_eq!(find((0, 25)), device("nvme0n1", false, false));
        assert_eq!(find((0, 26)), None);
        assert_eq!(find((1, 1)), None);
    }
}
