//! Builds files byte by byte, without the crate's own writer.

use std::sync::Arc;

use bytes::Bytes;
pub(crate) use fmt_cbor::testing::{Map, array, bytes, dims, head, indefinite, text, uint};
use fmt_core::{Error, ReadOptions, TensorReader};
pub(crate) use fmt_zstd::testing::{frame, frame_with, sample, skippable, table};
use fmt_ztensor::ZtensorReader;

/// Returns an index entry.
pub(crate) fn entry(name: &str, offset: u64, size: u64, dtype: &str, shape: &[u64], encoding: &str) -> Map {
    Map(vec![
        (text("name"), text(name)),
        (text("offset"), uint(offset)),
        (text("size"), uint(size)),
        (text("dtype"), text(dtype)),
        (text("shape"), dims(shape)),
        (text("encoding"), text(encoding)),
    ])
}

/// Returns the entry of three little-endian `f32` numbers at byte 64.
pub(crate) fn w() -> Map {
    entry("w", 64, 12, "float32", &[3], "raw")
}

/// The tensor data for the entry of [`w`].
pub(crate) const W: [u8; 12] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40];

/// Returns a file with `data` at byte 64, followed by an index.
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

/// Returns a file with `data` at byte 64, followed by an index of these entries.
pub(crate) fn file_of(data: &[u8], entries: &[Map]) -> Vec<u8> {
    file(data, &array(&entries.iter().map(Map::encode).collect::<Vec<_>>()))
}

/// Returns a file with the data [`W`] and an index of this one entry.
pub(crate) fn one(entry: &Map) -> Vec<u8> {
    file_of(&W, std::slice::from_ref(entry))
}

/// Returns a file with one custom field, whose encoded value is `value`.
pub(crate) fn custom(value: &[u8]) -> Vec<u8> {
    one(&w().with("x", value))
}

/// Returns a file with one compressed `uint8` tensor of `len` elements.
pub(crate) fn zstd_of(blob: &[u8], len: u64) -> Vec<u8> {
    file_of(
        blob,
        &[entry("z", 64, blob.len() as u64, "uint8", &[len], "zstd")],
    )
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

/// Returns the bytes of the tensor with this name.
pub(crate) fn read(file: &[u8], name: &str) -> Vec<u8> {
    let reader = open(file).unwrap();
    let index = reader.find(name).unwrap();
    reader.tensor(index).unwrap().bytes().to_vec()
}
