//! Files made by hand, byte for byte, without the crate's own writer.

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{Error, ReadOptions, TensorReader};
use fmt_ztensor::ZtensorReader;
use zstd::zstd_safe::{CCtx, CParameter};

/// The head of a CBOR item, as short as can be.
pub(crate) fn head(major: u8, number: u64) -> Vec<u8> {
    let major = major << 5;
    match number {
        0..24 => vec![major | number as u8],
        24..0x100 => vec![major | 24, number as u8],
        0x100..0x1_0000 => [&[major | 25][..], &(number as u16).to_be_bytes()].concat(),
        0x1_0000..0x1_0000_0000 => [&[major | 26][..], &(number as u32).to_be_bytes()].concat(),
        _ => [&[major | 27][..], &number.to_be_bytes()].concat(),
    }
}

pub(crate) fn uint(number: u64) -> Vec<u8> {
    head(0, number)
}

pub(crate) fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    [&head(3, text.as_ref().len() as u64)[..], text.as_ref()].concat()
}

pub(crate) fn bytes(bytes: &[u8]) -> Vec<u8> {
    [&head(2, bytes.len() as u64)[..], bytes].concat()
}

pub(crate) fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [head(4, items.len() as u64), items.concat()].concat()
}

pub(crate) fn dims(dims: &[u64]) -> Vec<u8> {
    array(&dims.iter().map(|dim| uint(*dim)).collect::<Vec<_>>())
}

/// An item without a length: its head, what is in it, and a break.
pub(crate) fn indefinite(major: u8, items: &[Vec<u8>]) -> Vec<u8> {
    [vec![major << 5 | 31], items.concat(), vec![0xff]].concat()
}

/// An entry of an index: keys and values as CBOR.
#[derive(Clone)]
pub(crate) struct Entry(pub(crate) Vec<(Vec<u8>, Vec<u8>)>);

impl Entry {
    pub(crate) fn new(
        name: &str,
        offset: u64,
        size: u64,
        dtype: &str,
        shape: &[u64],
        encoding: &str,
    ) -> Self {
        Self(vec![
            (text("name"), text(name)),
            (text("offset"), uint(offset)),
            (text("size"), uint(size)),
            (text("dtype"), text(dtype)),
            (text("shape"), dims(shape)),
            (text("encoding"), text(encoding)),
        ])
    }

    /// Gives a key another value, or one at all.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        let key = text(key);
        let value = value.into();
        match self.0.iter_mut().find(|(old, _)| *old == key) {
            Some(pair) => pair.1 = value,
            None => self.0.push((key, value)),
        }
        self
    }

    /// Adds a pair, whatever is there already.
    pub(crate) fn and(mut self, key: Vec<u8>, value: Vec<u8>) -> Self {
        self.0.push((key, value));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        let key = text(key);
        self.0.retain(|(old, _)| *old != key);
        self
    }

    /// An entry without anything.
    pub(crate) fn empty() -> Self {
        Self(Vec::new())
    }

    /// With the keys in the order that deterministic CBOR has.
    pub(crate) fn encode_sorted(&self) -> Vec<u8> {
        let mut sorted = self.clone();
        sorted.0.sort();
        sorted.encode()
    }

    fn pairs(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|(key, value)| [&key[..], value].concat())
            .collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [head(5, self.0.len() as u64), self.pairs()].concat()
    }

    /// As the first implementation writes maps.
    pub(crate) fn encode_indefinite(&self) -> Vec<u8> {
        [vec![0xbf], self.pairs(), vec![0xff]].concat()
    }
}

/// Three little-endian `f32` at byte 64.
pub(crate) fn w() -> Entry {
    Entry::new("w", 64, 12, "float32", &[3], "raw")
}

/// The bytes of what [`w`] stands for.
pub(crate) const W: [u8; 12] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40];

/// A file of `data` from byte 64 on and an index.
pub(crate) fn file(data: &[u8], index: &[u8]) -> Vec<u8> {
    [
        b"ZTEN0001",
        &[0; 56][..],
        data,
        index,
        &(index.len() as u64).to_le_bytes(),
    ]
    .concat()
}

/// A file of `data` from byte 64 on and these entries.
pub(crate) fn file_of(data: &[u8], entries: &[Entry]) -> Vec<u8> {
    file(
        data,
        &array(&entries.iter().map(Entry::encode).collect::<Vec<_>>()),
    )
}

/// A file of three floats and this entry.
pub(crate) fn one(entry: &Entry) -> Vec<u8> {
    file_of(&W, std::slice::from_ref(entry))
}

/// A file of the value of one custom field.
pub(crate) fn custom(value: &[u8]) -> Vec<u8> {
    one(&w().with("x", value))
}

/// A file of one compressed tensor of bytes.
pub(crate) fn zstd_of(blob: &[u8], len: u64) -> Vec<u8> {
    file_of(
        blob,
        &[Entry::new("z", 64, blob.len() as u64, "uint8", &[len], "zstd")],
    )
}

/// A Zstandard frame with or without content size and checksum.
pub(crate) fn frame_with(data: &[u8], has_size: bool, has_checksum: bool) -> Vec<u8> {
    let mut context = CCtx::create();
    context
        .set_parameter(CParameter::ContentSizeFlag(has_size))
        .unwrap();
    context
        .set_parameter(CParameter::ChecksumFlag(has_checksum))
        .unwrap();
    let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(data.len()));
    context.compress2(&mut frame, data).unwrap();
    frame
}

pub(crate) fn frame(data: &[u8]) -> Vec<u8> {
    frame_with(data, true, true)
}

/// A skippable frame.
pub(crate) fn skippable(content: &[u8]) -> Vec<u8> {
    [
        &[0x50, 0x2a, 0x4d, 0x18][..],
        &(content.len() as u32).to_le_bytes(),
        content,
    ]
    .concat()
}

/// The table of the seekable format for frames of these stored and decoded lengths.
pub(crate) fn table(frames: &[(usize, usize)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (stored, decoded) in frames {
        content.extend((*stored as u32).to_le_bytes());
        content.extend((*decoded as u32).to_le_bytes());
    }
    content.extend((frames.len() as u32).to_le_bytes());
    content.extend([0, 0xb1, 0xea, 0x92, 0x8f]);
    let mut frame = skippable(&content);
    frame[0] = 0x5e;
    frame
}

/// Bytes that compress, but not to nothing.
pub(crate) fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 97 + at / 7) as u8).collect()
}

pub(crate) fn open(file: &[u8]) -> Result<ZtensorReader, Error> {
    ZtensorReader::from_bytes(Bytes::copy_from_slice(file))
}

pub(crate) fn open_lenient(file: &[u8]) -> Result<ZtensorReader, Error> {
    let options = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    open_with(file, &options)
}

pub(crate) fn open_with(file: &[u8], options: &ReadOptions) -> Result<ZtensorReader, Error> {
    ZtensorReader::open(Arc::new(Bytes::copy_from_slice(file)), options)
}

/// The bytes of the tensor with a name.
pub(crate) fn read(file: &[u8], name: &str) -> Vec<u8> {
    let reader = open(file).unwrap();
    let index = reader.find(name).unwrap();
    reader.tensor(index).unwrap().bytes().to_vec()
}
