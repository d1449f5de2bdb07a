//! Builds files record by record, including invalid files that this crate's writer would never write.

use std::sync::Arc;

use fmt_btf::{BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::{Error, ErrorKind, ReadOptions};
use tensor_core::{Bytes, DType, Shape, SparseCoo, Tensor, TensorSpec};

pub(crate) const I8: u8 = 0;
pub(crate) const I32: u8 = 2;
pub(crate) const F32: u8 = 4;
pub(crate) const F64: u8 = 5;

/// Opens bytes with a strict reader.
pub(crate) fn open(bytes: &[u8]) -> Result<BtfReader, Error> {
    BtfReader::from_bytes(bytes.to_vec())
}

/// Opens bytes with a lenient reader.
pub(crate) fn open_leniently(bytes: &[u8]) -> Result<BtfReader, Error> {
    let options = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    BtfReader::open(Arc::new(Bytes::copy_from_slice(bytes)), &options)
}

/// Returns the kind and the rule of the error for invalid bytes.
pub(crate) fn refusal(bytes: &[u8]) -> (ErrorKind, &'static str) {
    let error = open(bytes).unwrap_err();
    (error.kind(), error.broken_rule().unwrap())
}

pub(crate) fn spec(dtype: DType, dims: &[u64]) -> TensorSpec {
    TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap()
}

/// Returns a tensor whose bytes are 0, 1, 2 and so on.
pub(crate) fn counting(dtype: DType, dims: &[u64]) -> Tensor {
    let spec = spec(dtype, dims);
    let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| byte as u8).collect();
    Tensor::new(spec, bytes).unwrap()
}

pub(crate) fn sparse(dims: &[u64], indices: &[u64], values: &[i32]) -> SparseCoo {
    let nnz = values.len() as u64;
    let indices = Tensor::from_vec(Shape::new(&[nnz, dims.len() as u64]).unwrap(), indices.to_vec());
    let values = Tensor::from_vec(Shape::vector(nnz), values.to_vec());
    SparseCoo::new(Shape::new(dims).unwrap(), indices.unwrap(), values.unwrap()).unwrap()
}

/// Returns the file that this crate's writer writes for `tensors`.
pub(crate) fn written(tensors: &[&Tensor]) -> Vec<u8> {
    let records = tensors.iter().map(|tensor| RecordSpec::from(*tensor)).collect();
    let mut writer = BtfWriter::new(Vec::new(), records, WriteOptions::default()).unwrap();
    for tensor in tensors {
        writer.tensor(tensor).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the file that this crate's writer writes for one sparse tensor.
pub(crate) fn written_sparse(sparse: &SparseCoo, options: WriteOptions) -> Vec<u8> {
    let mut writer = BtfWriter::new(Vec::new(), vec![sparse.into()], options).unwrap();
    writer.sparse(sparse).unwrap();
    writer.finish().unwrap()
}

/// A record to build, whose fields may be wrong.
#[derive(Clone, Debug)]
pub(crate) struct ForgedRecord {
    pub(crate) rank: u64,
    pub(crate) dtype: u8,
    pub(crate) layout: u8,
    pub(crate) reserved: [u8; 6],
    pub(crate) dims: Vec<u64>,
    /// The bytes after the dimensions.
    pub(crate) payload: Vec<u8>,
    /// The bytes after the payload; by default the necessary padding.
    pub(crate) padding: Option<Vec<u8>>,
}

impl ForgedRecord {
    pub(crate) fn new(dtype: u8, layout: u8, dims: &[u64], payload: &[u8]) -> Self {
        Self {
            rank: dims.len() as u64,
            dtype,
            layout,
            reserved: [0; 6],
            dims: dims.to_vec(),
            payload: payload.to_vec(),
            padding: None,
        }
    }

    /// Creates a dense tensor of `len` bytes: 1, 2, 3 and so on.
    pub(crate) fn dense(dtype: u8, dims: &[u64], len: u8) -> Self {
        Self::new(dtype, 0, dims, &(1..=len).collect::<Vec<u8>>())
    }

    /// Creates `i32[2, 2]`, a record of 48 bytes.
    pub(crate) fn plain() -> Self {
        Self::dense(I32, &[2, 2], 16)
    }

    /// Creates a sparse tensor of i32 with these coordinates and values, which need not be valid.
    pub(crate) fn coo(dims: &[u64], indices: &[u64], values: &[i32]) -> Self {
        let rank = dims.len() as u64;
        let count = values.len() as u64;
        Self::coo_claiming(dims, [count, rank, count], indices, values)
    }

    /// Creates a sparse tensor that declares `claims`: the two dimensions of its indices, and the length of
    /// its values.
    pub(crate) fn coo_claiming(dims: &[u64], claims: [u64; 3], indices: &[u64], values: &[i32]) -> Self {
        let mut payload = words(&claims[..2]);
        payload.extend(words(indices));
        payload.extend(words(&claims[2..]));
        payload.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        Self::new(I32, 2, dims, &payload)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.rank.to_le_bytes().to_vec();
        out.extend([self.dtype, self.layout]);
        out.extend(self.reserved);
        out.extend(words(&self.dims));
        out.extend(&self.payload);
        let zeros = vec![0; out.len().next_multiple_of(8) - out.len()];
        out.extend(self.padding.as_ref().unwrap_or(&zeros));
        out
    }

    /// Returns a file with only this record.
    pub(crate) fn file(&self) -> Vec<u8> {
        file(std::slice::from_ref(self))
    }
}

/// Returns a file with one record: [`ForgedRecord::plain`], modified by `change`.
pub(crate) fn with(change: impl FnOnce(&mut ForgedRecord)) -> Vec<u8> {
    let mut record = ForgedRecord::plain();
    change(&mut record);
    record.file()
}

/// Returns a file with these records in order.
pub(crate) fn file(records: &[ForgedRecord]) -> Vec<u8> {
    let mut offset = 8 + 8 * records.len() as u64;
    let mut offsets = Vec::new();
    let mut body = Vec::new();
    for record in records {
        offsets.push(offset);
        let bytes = record.bytes();
        offset += bytes.len() as u64;
        body.extend(bytes);
    }
    at_offsets(&offsets, &body)
}

/// Returns a file with a count, an offset table, and `body` after it.
pub(crate) fn at_offsets(offsets: &[u64], body: &[u8]) -> Vec<u8> {
    let mut out = words(&[offsets.len() as u64]);
    out.extend(words(offsets));
    out.extend(body);
    out
}

pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns `bytes` without the last `last` bytes.
pub(crate) fn cut(mut bytes: Vec<u8>, last: usize) -> Vec<u8> {
    bytes.truncate(bytes.len() - last);
    bytes
}
