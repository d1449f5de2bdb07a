//! Builds files byte by byte, and with the crate's writers.

use fmt_core::{Error, ErrorKind, Format, Plan, PlannedEntry};
use fmt_npy::{NpyReader, Npz, NpzReader};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

/// Returns a `.npy` file with a version 1 header and these bytes.
pub(crate) fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Returns the header that NumPy writes, without padding.
pub(crate) fn header(descr: &str, is_column_major: bool, shape: &str) -> String {
    let order = if is_column_major { "True" } else { "False" };
    format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
}

pub(crate) fn open(bytes: &[u8]) -> Result<NpyReader, Error> {
    NpyReader::from_bytes(bytes.to_vec())
}

pub(crate) fn open_archive(bytes: &[u8]) -> Result<NpzReader, Error> {
    NpzReader::from_bytes(bytes.to_vec())
}

pub(crate) fn verdict<T>(opened: Result<T, Error>) -> Result<(), (ErrorKind, &'static str)> {
    opened
        .map(drop)
        .map_err(|error| (error.kind(), error.broken_rule().unwrap_or("no rule")))
}

pub(crate) fn counting(dtype: DType, dims: &[u64]) -> Tensor {
    let spec = TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| byte as u8).collect();
    Tensor::new(spec, bytes).unwrap()
}

/// Writes tensors in pieces of `piece` bytes and returns the file.
pub(crate) fn written(format: &dyn Format, tensors: &[(&str, &Tensor)], piece: usize) -> Vec<u8> {
    let entries = tensors
        .iter()
        .map(|(name, tensor)| PlannedEntry::dense(*name, tensor.spec().clone()));
    let plan = Plan {
        entries: entries.collect(),
        ..Plan::default()
    };
    let mut out = Vec::new();
    let mut writer = format.create(Box::new(&mut out), plan).unwrap();
    let bytes: Vec<u8> = tensors
        .iter()
        .flat_map(|(_, tensor)| tensor.bytes().to_vec())
        .collect();
    for piece in bytes.chunks(piece) {
        writer.write(piece).unwrap();
    }
    let len = writer.finish().unwrap();
    assert_eq!(len, out.len() as u64);
    out
}

/// Returns an archive with two arrays.
pub(crate) fn small_archive() -> Vec<u8> {
    let (a, b) = (counting(DType::F32, &[2, 3]), counting(DType::U8, &[5]));
    written(&Npz, &[("a", &a), ("b", &b)], usize::MAX)
}

/// Returns an archive with these members, deflated or not.
pub(crate) fn archive(members: &[(&str, &[u8])], is_deflated: bool) -> Vec<u8> {
    use std::io::Write;
    let method = if is_deflated {
        zip::CompressionMethod::Deflated
    } else {
        zip::CompressionMethod::Stored
    };
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
