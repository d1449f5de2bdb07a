//! Elements of a dtype that a format lacks as unsigned integers of the same width (`--as-bits`).

use std::{io, ops::Range};

use fmt_core::{
    Entry, Error, Format, Layout, Lint, Metadata, OpaqueDType, Plan, PlannedEntry, StoredDType, TensorReader,
    TensorStream, Verification,
};
use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};

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
            if let StoredDType::Opaque(dtype) = &entry.dtype {
                let planned = PlannedEntry::opaque("0", dtype.clone(), entry.shape.clone());
                let is_taken = planned.is_some_and(|entry| {
                    let plan = Plan {
                        entries: vec![entry],
                        ..Plan::default()
                    };
                    format.create(Box::new(io::sink()), plan).is_ok()
                });
                if let (false, Some((dtype, shape))) = (is_taken, bytes_of(dtype, &entry.shape)) {
                    (entry.dtype, entry.shape, entry.unsupported) = (StoredDType::Known(dtype), shape, None);
                }
                continue;
            }
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

/// Elements or blocks that are copied only, as unsigned integers: of whole bytes one for each, else bytes along the last
/// axis.
fn bytes_of(dtype: &OpaqueDType, shape: &Shape) -> Option<(DType, Shape)> {
    let (elements, bytes) = (u64::from(dtype.block_elements()), u64::from(dtype.block_bytes()));
    if (elements, bytes) == (1, 1) {
        return Some((DType::U8, shape.clone()));
    }
    let mut dims = shape.dims().to_vec();
    let last = dims.last_mut()?;
    *last = last
        .is_multiple_of(elements)
        .then(|| (*last / elements).checked_mul(bytes))??;
    Some((DType::U8, Shape::new(&dims).ok()?))
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
