//! Model files put together byte by byte, with nothing of the crate under test; all type ids are written out as numbers.

#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses its own part

use std::path::{Path, PathBuf};

/// A file that is well formed unless its parts are not.
#[derive(Clone)]
pub struct Handmade {
    pub start: Vec<u8>,
    pub tensor_count: u64,
    pub pair_count: u64,
    pub pairs: Vec<u8>,
    pub tensors: Vec<u8>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

pub fn handmade() -> Handmade {
    Handmade {
        start: b"GGUF\x03\0\0\0".to_vec(),
        tensor_count: 0,
        pair_count: 0,
        pairs: Vec::new(),
        tensors: Vec::new(),
        alignment: 32,
        data: Vec::new(),
    }
}

pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

pub fn array(id: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

impl Handmade {
    pub fn pair(mut self, key: impl AsRef<[u8]>, id: u32, value: impl AsRef<[u8]>) -> Self {
        self.pair_count += 1;
        self.pairs.extend([&string(key), &id.to_le_bytes()[..], value.as_ref()].concat());
        self
    }

    pub fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], id: u32, offset: u64) -> Self {
        self.tensor_count += 1;
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| self.tensors.extend(dim.to_le_bytes()));
        self.tensors.extend(id.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self
    }

    /// Sets the bytes after the padded header.
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = data.into();
        self
    }

    pub fn header_bytes(&self) -> Vec<u8> {
        let counts = [self.tensor_count.to_le_bytes(), self.pair_count.to_le_bytes()].concat();
        [&self.start, &counts, &self.pairs, &self.tensors].map(Vec::as_slice).concat()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header_bytes();
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub fn save(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

/// A sound file with a key of every kind that matters to the layout and two tensors, the second at the very end.
pub fn sound() -> Handmade {
    let words = [string("a"), string(""), string("é")].concat();
    handmade()
        .pair("general.architecture", 8, string("tiny"))
        .pair("tiny.layers", 4, 2u32.to_le_bytes())
        .pair("tiny.words", 9, array(8, 3, &words))
        .pair("tiny.scales", 9, array(6, 2, &[1.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat()))
        .pair("tiny.on", 7, [1])
        .tensor("a.weight", &[3, 2], 0, 0)
        .tensor("b.weight", &[32, 1, 1, 1], 8, 32)
        .data((0..66).collect::<Vec<u8>>())
}

/// File number `number` (from 1) of a set of `count` files with `tensors` tensors in all.
pub fn member(number: u16, count: u16, tensors: i32) -> Handmade {
    handmade().pair("split.no", 2, (number - 1).to_le_bytes()).pair("split.count", 2, count.to_le_bytes()).pair(
        "split.tensors.count",
        5,
        tensors.to_le_bytes(),
    )
}
