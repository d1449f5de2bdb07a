//! The declaration of a tensor to the writer, and the sizes of its record.

use std::fmt;

use fmt_core::{Error, ErrorKind};
use tensor_core::{SparseCoo, Tensor, TensorSpec};

use crate::{
    WriteOptions,
    capabilities::CAPABILITIES,
    layout::{FIRST_EXTENSION, HEADER, LONGEST, WORD, code_of, padding},
};

/// A tensor to be written.
///
/// ```
/// use fmt_btf::RecordSpec;
/// use tensor_core::{DType, Shape, Tensor, TensorSpec};
///
/// let spec = TensorSpec::new(DType::F32, Shape::new(&[1000, 1000])?)?;
/// assert_eq!(RecordSpec::coo(spec.clone(), 5).byte_len(), Some(5 * (2 * 8 + 4)));
/// assert_eq!(RecordSpec::from(&Tensor::scalar(1u8)).byte_len(), Some(1));
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSpec {
    spec: TensorSpec,
    pub(crate) nnz: Option<u64>,
}

impl RecordSpec {
    /// Describes a dense tensor, whose bytes are its elements, row-major and little-endian.
    #[must_use]
    pub fn dense(spec: TensorSpec) -> Self {
        Self { spec, nnz: None }
    }

    /// Describes a sparse tensor of `nnz` entries, whose bytes are `u64[nnz, rank]` indices, ascending in
    /// row-major order, followed by the values, all little-endian.
    #[must_use]
    pub fn coo(spec: TensorSpec, nnz: u64) -> Self {
        Self { spec, nnz: Some(nnz) }
    }

    /// Returns dtype and shape; for a sparse tensor, the dtype and shape of the dense tensor.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Returns the number of bytes to write for the tensor; `None` if the number overflows 64 bits.
    #[must_use]
    pub fn byte_len(&self) -> Option<u64> {
        match self.nnz {
            None => Some(self.spec.byte_len()),
            Some(nnz) => self.index_len()?.checked_add(self.values_len(nnz)?),
        }
    }

    /// Returns the size of the indices in bytes; 0 for a dense tensor.
    pub(crate) fn index_len(&self) -> Option<u64> {
        let rank = self.spec.shape().rank() as u64;
        self.nnz.unwrap_or(0).checked_mul(rank * WORD)
    }

    pub(crate) fn values_len(&self, nnz: u64) -> Option<u64> {
        nnz.checked_mul(self.spec.dtype().size() as u64)
    }

    /// Returns the size of the record up to its data: header, dimensions, and for a sparse tensor the
    /// dimensions of its indices.
    pub(crate) fn head_len(&self) -> u64 {
        let lengths = if self.nnz.is_some() { 2 * WORD } else { 0 };
        HEADER + WORD * self.spec.shape().rank() as u64 + lengths
    }

    /// Returns the size of the record with padding.
    pub(crate) fn record_len(&self) -> Option<u64> {
        let middle = if self.nnz.is_some() { WORD } else { 0 };
        let len = self.byte_len()?.checked_add(self.head_len() + middle)?;
        len.checked_add(padding(len)).filter(|len| *len <= LONGEST)
    }

    /// Checks that the format can store the tensor at index `number`.
    pub(crate) fn check(&self, number: usize, options: &WriteOptions) -> Result<(), Error> {
        let refuse = |kind, what: &str, rule| {
            let error = Error::new(kind, what).of_tensor(&number.to_string());
            error.rule(rule)
        };
        let checked = CAPABILITIES.check_tensor(&self.spec, &options.limits);
        checked.map_err(|error| error.of_tensor(&number.to_string()))?;
        let dtype = self.spec.dtype();
        if options.strict_spec && code_of(dtype).is_some_and(|code| code >= FIRST_EXTENSION) {
            let error = refuse(ErrorKind::Unsupported, "the dtype", "B2");
            return Err(error.expected("i8, i16, i32, i64, f32 or f64").found(dtype));
        }
        if self.record_len().is_none() {
            let error = refuse(ErrorKind::TooLarge, "the length of the tensor", "B19");
            return Err(error.expected("less than 2^63 bytes").found(&self.spec));
        }
        if let Some(nnz) = self.nnz.filter(|nnz| *nnz > self.spec.element_count()) {
            let error = refuse(ErrorKind::SizeMismatch, "the number of entries", "B13");
            return Err(error
                .expected(format_args!(
                    "at most {} for {}",
                    self.spec.element_count(),
                    self.spec
                ))
                .found(nnz));
        }
        Ok(())
    }
}

impl From<&Tensor> for RecordSpec {
    fn from(tensor: &Tensor) -> Self {
        Self::dense(tensor.spec().clone())
    }
}

impl From<&SparseCoo> for RecordSpec {
    fn from(sparse: &SparseCoo) -> Self {
        Self::coo(sparse.spec().clone(), sparse.nnz())
    }
}

impl fmt::Display for RecordSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nnz {
            None => self.spec.fmt(f),
            Some(nnz) => write!(f, "{} with {nnz} entries", self.spec),
        }
    }
}
