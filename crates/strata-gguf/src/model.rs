//! A model in one file or several, opened: its metadata, its tensors, and positional reads of its bytes.
//!
//! Promises: the files stay open, so that what is read later comes from the files that were checked, even when another
//! takes their place; reads do not disturb each other and may come from any thread.
//! Refuses: memory mapping, where a failing drive ends the process instead of a read.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Problem;
use crate::{GgufError, Header, Metadata, Tensor, parse, set};

/// One file of a model.
#[derive(Debug)]
pub struct ModelFile {
    /// Its path when it was opened.
    pub path: PathBuf,
    /// Its size when it was opened.
    pub len_bytes: u64,
    file: File,
}

/// An open model.
#[derive(Debug)]
pub struct Gguf {
    files: Vec<ModelFile>,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Opens and checks a model. Of a model in several files (`NAME-00001-of-00003.gguf`), any of them may be given.
    ///
    /// # Errors
    /// Whatever is wrong with a file, or with the files together.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let paths = set::paths(path);
        set::check_present(&paths)?;
        let count = paths.len() as u64;
        let mut files = Vec::new();
        let mut headers = Vec::new();
        for (no, path) in (0..).zip(paths) {
            let file = ModelFile::open(path)?;
            let header = parse(&file.file, file.len_bytes, &file.path)?;
            set::check_member(&header.metadata, no, count).map_err(|problem| GgufError::new(&file.path, problem))?;
            files.push(file);
            headers.push(header);
        }
        Self::assemble(files, headers)
    }

    fn assemble(files: Vec<ModelFile>, headers: Vec<Header>) -> Result<Self, GgufError> {
        let mut parts = Vec::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut index: HashMap<String, usize> = HashMap::new();
        for (file, header) in headers.into_iter().enumerate() {
            let path = files[file].path.as_path();
            for tensor in header.tensors {
                if let Some(first) = index.insert(tensor.name.clone(), tensors.len()) {
                    let other_path = (tensors[first].file != file).then(|| files[tensors[first].file].path.clone());
                    return Err(GgufError::new(path, Problem::DuplicateTensor { tensor: tensor.name, other_path }));
                }
                tensors.push(Tensor { file, ..tensor });
            }
            parts.push((path, header.metadata));
        }
        if files.len() > 1 {
            for (path, metadata) in &parts {
                set::check_tensor_count(metadata, tensors.len() as u64)
                    .map_err(|problem| GgufError::new(path, problem))?;
            }
        }
        let metadata = set::merge_metadata(parts)?;
        Ok(Self { files, metadata, tensors, index })
    }

    /// The metadata of the model. Of several files, it is that of the first and what the others add.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors: file by file, each in the order of its table.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The files of the model, in their order in the set.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// Handles of the same open files, in the order of [`files`](Self::files), for readers of their own making.
    ///
    /// # Errors
    /// When the system has no handle left.
    pub fn reopen_files(&self) -> Result<Vec<(PathBuf, File)>, GgufError> {
        let clone = |file: &ModelFile| match file.file.try_clone() {
            Ok(handle) => Ok((file.path.clone(), handle)),
            Err(error) => Err(GgufError::new(&file.path, Problem::Io { action: "open the file once more", error })),
        };
        self.files.iter().map(clone).collect()
    }

    /// Reads all data of a tensor of this model.
    ///
    /// # Errors
    /// As [`read_range`](Self::read_range), and when there is no memory for it.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<u8>, GgufError> {
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(tensor.len_bytes as usize).is_err() {
            let problem = Problem::OutOfMemory { tensor: tensor.name.clone(), len_bytes: tensor.len_bytes };
            return Err(GgufError::new(&self.files[tensor.file].path, problem));
        }
        bytes.resize(tensor.len_bytes as usize, 0);
        self.read_range(tensor.file, tensor.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` from a file of the model, from `offset` bytes after its start.
    ///
    /// # Errors
    /// When the system cannot read, tried twice, or the file ends before.
    ///
    /// # Panics
    /// When there is no file of this index.
    pub fn read_range(&self, file: usize, offset: u64, bytes: &mut [u8]) -> Result<(), GgufError> {
        let file = &self.files[file];
        file.read_range(offset, bytes).map_err(|problem| GgufError::new(&file.path, problem))
    }
}

impl ModelFile {
    fn open(path: PathBuf) -> Result<Self, GgufError> {
        match Self::open_regular(&path) {
            Ok((file, len_bytes)) => Ok(Self { path, len_bytes, file }),
            Err(problem) => Err(GgufError::new(&path, problem)),
        }
    }

    fn open_regular(path: &Path) -> Result<(File, u64), Problem> {
        let failed = |error| Problem::Io { action: "open the file", error };
        // Asked before opening, which would wait at a pipe.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Problem::NotAFile);
        }
        let file = File::open(path).map_err(failed)?;
        let len_bytes = file.metadata().map_err(failed)?.len();
        Ok((file, len_bytes))
    }

    fn read_range(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Problem> {
        let wanted_bytes = bytes.len() as u64;
        let left_bytes = self.len_bytes.saturating_sub(offset);
        if wanted_bytes > left_bytes {
            return Err(Problem::ShortRead { offset, wanted_bytes, got_bytes: left_bytes });
        }
        let (mut got, mut retried) = (0, false);
        while got < bytes.len() {
            match self.file.read_at(&mut bytes[got..], offset + got as u64) {
                Ok(0) => return Err(Problem::ShortRead { offset, wanted_bytes, got_bytes: got as u64 }),
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if !std::mem::replace(&mut retried, true) => {}
                Err(error) => return Err(Problem::Io { action: "read the file", error }),
            }
        }
        Ok(())
    }
}
