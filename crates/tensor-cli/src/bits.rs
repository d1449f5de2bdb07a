//! Elements of a dtype that a format lacks as unsigned integers of the same width (`--as-bits`).

use std::{io, ops::Range};

use fmt_core::{
    Entry, Error, Format, Layout, Lint, Metadata, Plan, PlannedEntry, StoredDType, TensorReader,
    TensorStream, Verification,
};
use tensor_core::{DType, SparseCoo, Tensor, TensorSpec};

/// A reader some of whose tensors have another dtype, and the same bytes.
pub(crate) struct AsBits<'r> {
    inner: &'r dyn TensorReader,
    entries: Vec<Entry>,
}

impl<'r> AsBits<'r> {
    /// Changes the dtypes that the format does not take as they are.
    pub(crate) fn new(inner: &'r dyn TensorReader, format: &dyn Format) -> Self {
        let is_taken = |spec: TensorSpec| {
            let plan = Plan {
                entries: vec![PlannedEntry::dense("0", spec)],
                ..Plan::default()
            };
            format.create(Box::new(io::sink()), plan).is_ok()
        };
        let mut entries = inner.entries().to_vec();
        for entry in entries.iter_mut().filter(|entry| entry.layout == Layout::Dense) {
            let Some(spec) = entry.spec() else { continue };
            if !is_taken(spec)
                && let Some(bits) = entry.dtype.known().and_then(bits_of)
            {
                entry.dtype = StoredDType::Known(bits);
            }
        }
        Self { inner, entries }
    }

    fn bits(&self, index: usize, tensor: Tensor) -> Result<Tensor, Error> {
        let Some(dtype) = self.entries[index].dtype.known() else {
            return Ok(tensor);
        };
        let spec = TensorSpec::new(dtype, tensor.shape().clone());
        let same = spec.and_then(|spec| Tensor::new(spec, tensor.into_bytes()));
        same.map_err(|error| Error::new(fmt_core::ErrorKind::SizeMismatch, error.to_string()))
    }
}

/// The unsigned integer of a dtype's width.
fn bits_of(dtype: DType) -> Option<DType> {
    match dtype.size() {
        1 => Some(DType::U8),
        2 => Some(DType::U16),
        4 => Some(DType::U32),
        8 => Some(DType::U64),
        _ => None,
    }
}

impl TensorReader for AsBits<'_> {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.bits(index, self.inner.tensor(index)?)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        self.inner.sparse(index)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.bits(index, self.inner.rows(index, rows)?)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        self.inner.stream(index)
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.inner.read_into(index, out)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.inner.verify(index)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        self.inner.lints()
    }

    fn foreign_parts(&self) -> &[String] {
        self.inner.foreign_parts()
    }
}
