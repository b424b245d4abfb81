//! Where files of a repository lie here: in the hub's cache, as all its tools lay it out, or in a folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo};
use sha2::{Digest, Sha256};

use super::{Problem, RemoteFile};

/// What the name of a file ends with that is not complete.
const PART: &str = "strata-part";
const READ_BYTES: usize = 1 << 20;

/// Where a repository's files go.
pub(crate) enum Place {
    /// The hub's cache: bytes by their hash, names as links to them.
    Cache {
        repo: CacheRepo,
        commit: String,
    },
    Folder(PathBuf),
}

impl Place {
    pub(crate) fn cache(cache: &Cache, repo: &str, commit: &str) -> Self {
        Self::Cache { repo: cache.repo(Repo::model(repo.to_owned())), commit: commit.to_owned() }
    }

    /// Where the file can be opened once it is complete.
    pub(crate) fn path(&self, file: &RemoteFile) -> PathBuf {
        match self {
            Self::Cache { repo, commit } => repo.pointer_path(commit).join(&file.name),
            Self::Folder(folder) => folder.join(&file.name),
        }
    }

    /// Where its bytes lie.
    fn bytes_path(&self, file: &RemoteFile) -> PathBuf {
        match self {
            Self::Cache { repo, .. } => repo.blob_path(&file.etag),
            Self::Folder(_) => self.path(file),
        }
    }

    /// Where they are collected: a changed file is another one.
    pub(crate) fn part_path(&self, file: &RemoteFile) -> PathBuf {
        match self {
            Self::Cache { repo, .. } => repo.blob_path(&format!("{}.{PART}", file.etag)),
            Self::Folder(folder) => folder.join(format!("{}.{}.{PART}", file.name, &file.etag[..7])),
        }
    }

    /// Whether the file is here, by its length.
    pub(crate) fn holds(&self, file: &RemoteFile) -> bool {
        fs::metadata(self.bytes_path(file)).is_ok_and(|found| found.is_file() && found.len() == file.len_bytes)
    }

    /// Bytes that an earlier try left.
    pub(crate) fn part_bytes(&self, file: &RemoteFile) -> u64 {
        fs::metadata(self.part_path(file)).map_or(0, |found| found.len())
    }

    /// Gives a complete part its name.
    pub(crate) fn keep(&self, file: &RemoteFile, part: &Part) -> Result<(), Problem> {
        let to = self.bytes_path(file);
        fs::rename(&part.path, &to).map_err(|error| Problem::file(&to, &error))
    }

    /// Gives files whose bytes are here the names by which tools find them.
    pub(crate) fn publish(&self, files: &[&RemoteFile]) -> Result<(), Problem> {
        let Self::Cache { repo, commit } = self else { return Ok(()) };
        for file in files {
            let path = self.path(file);
            if !path.exists() {
                make_folder(&path)?;
                // Left by a file that is gone.
                let _ = fs::remove_file(&path);
                let up = "../".repeat(2 + file.name.matches('/').count());
                link(&self.bytes_path(file), &format!("{up}blobs/{}", file.etag), &path)
                    .map_err(|error| Problem::file(&path, &error))?;
            }
        }
        repo.create_ref(commit).map_err(|error| Problem::file(&repo.pointer_path(commit), &error))
    }
}

#[cfg(unix)]
fn link(_bytes: &Path, relative: &str, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

/// Links need a right that few have: a second name for the same bytes does not.
#[cfg(not(unix))]
fn link(bytes: &Path, _relative: &str, path: &Path) -> std::io::Result<()> {
    fs::hard_link(bytes, path)
}

fn make_folder(of: &Path) -> Result<(), Problem> {
    let folder = of.parent().expect("a file in a folder");
    fs::create_dir_all(folder).map_err(|error| Problem::file(folder, &error))
}

/// The first bytes of a file that is not complete. Bytes are only ever added at its end, so its length says what is there
/// however a program ended.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    hash: Sha256,
}

impl Part {
    /// Opens what an earlier try left, or begins; nobody else can at the same time.
    pub(crate) async fn open(path: &Path, most_bytes: u64) -> Result<Self, Problem> {
        let problem = |error: std::io::Error| Problem::file(path, &error);
        make_folder(path)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(problem)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Problem::file(path, &"another program is pulling this file"),
            TryLockError::Error(error) => problem(error),
        })?;
        if file.metadata().map_err(problem)?.len() > most_bytes {
            file.set_len(0).map_err(problem)?;
        }
        let (mut hash, mut len_bytes) = (Sha256::new(), 0);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = file.read(&mut buffer).map_err(problem)?;
            if read == 0 {
                return Ok(Self { path: path.to_owned(), file, len_bytes, hash });
            }
            hash.update(&buffer[..read]);
            len_bytes += read as u64;
            // A long file takes a while: whoever waits looks whether it is still wanted.
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.file.write_all(bytes).map_err(|error| Problem::file(&self.path, &error))?;
        self.hash.update(bytes);
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Compares what was written with what the hub has; other bytes are removed.
    pub(crate) fn check(&mut self, sha256: Option<&str>) -> Result<(), Problem> {
        self.file.sync_all().map_err(|error| Problem::file(&self.path, &error))?;
        let got: String = self.hash.finalize_reset().iter().map(|byte| format!("{byte:02x}")).collect();
        match sha256 {
            Some(expected) if expected != got => {
                fs::remove_file(&self.path).map_err(|error| Problem::file(&self.path, &error))?;
                Err(Problem::Checksum { expected: expected.to_owned(), got })
            }
            _ => Ok(()),
        }
    }
}
