//! The interface of writers: the plan of a file, followed by the bytes of its tensors.

use std::collections::BTreeMap;

use tensor_core::{DType, Shape, TensorSpec};

use crate::{Error, ErrorKind, Layout, Metadata, OpaqueDType};

/// The planned contents of a file, complete before its first byte is written, so that anything the format
/// cannot store is refused before the file exists.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The tensors, in the order of their bytes.
    pub entries: Vec<PlannedEntry>,
    /// Metadata of the file.
    pub metadata: Metadata,
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct PlannedEntry {
    /// The tensor's name.
    pub name: String,
    /// The dtype and shape; for a sparse tensor, the dtype and shape of the dense tensor.
    pub spec: TensorSpec,
    /// [`Layout::Dense`] or [`Layout::Coo`]. A COO tensor's bytes are its indices (`u64[nnz, rank]`) and then
    /// its values.
    pub layout: Layout,
    /// Attributes of the tensor, as strings by key.
    pub attributes: BTreeMap<String, String>,
    /// The actual dtype of the bytes, if it is opaque; `spec` then describes plain bytes.
    pub opaque: Option<(OpaqueDType, Shape)>,
    /// The index in the plan of an earlier tensor with the same bytes, which are then written only once. Only
    /// some formats support this ([`Format::shares_bytes`](crate::Format::shares_bytes)).
    pub same_as: Option<usize>,
}

impl PlannedEntry {
    /// Plans a dense tensor.
    pub fn dense(name: impl Into<String>, spec: TensorSpec) -> Self {
        Self {
            name: name.into(),
            spec,
            layout: Layout::Dense,
            attributes: BTreeMap::new(),
            opaque: None,
            same_as: None,
        }
    }

    /// Plans a dense tensor of an opaque dtype; `None` when its elements do not fill whole blocks.
    pub fn opaque(name: impl Into<String>, dtype: OpaqueDType, shape: Shape) -> Option<Self> {
        let len = dtype.byte_len(shape.element_count())?;
        let bytes = TensorSpec::new(DType::U8, Shape::vector(len)).ok()?;
        Some(Self {
            opaque: Some((dtype, shape)),
            ..Self::dense(name, bytes)
        })
    }

    /// Plans a sparse tensor with this number of entries.
    pub fn coo(name: impl Into<String>, spec: TensorSpec, nnz: u64) -> Self {
        Self {
            layout: Layout::Coo { nnz },
            ..Self::dense(name, spec)
        }
    }

    /// Returns the name of the tensor whose bytes this tensor shares; `None` if this tensor has its own
    /// bytes. `number` is the index of this tensor in `plan`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when the other tensor does not come before this tensor in the plan, or
    /// itself shares bytes.
    pub fn sharer<'p>(&self, plan: &'p Plan, number: usize) -> Result<Option<&'p str>, Error> {
        let Some(same_as) = self.same_as else {
            return Ok(None);
        };
        let other = plan.entries[..number].get(same_as);
        let other = other.filter(|other| other.same_as.is_none()).ok_or_else(|| {
            let error =
                Error::new(ErrorKind::OutOfBounds, "the tensor whose bytes it shares").of_tensor(&self.name);
            error
                .expected(format_args!("one before number {number} with bytes of its own"))
                .found(format_args!("number {same_as}"))
        })?;
        Ok(Some(&other.name))
    }

    /// Returns the number of bytes to write for the tensor; `None` if that overflows 64 bits.
    #[must_use]
    pub fn byte_len(&self) -> Option<u64> {
        match self.layout {
            _ if self.same_as.is_some() => Some(0),
            Layout::Coo { nnz } => {
                let rank = self.spec.shape().rank() as u64;
                nnz.checked_mul(
                    rank.checked_mul(8)?
                        .checked_add(self.spec.dtype().size() as u64)?,
                )
            }
            _ => Some(self.spec.byte_len()),
        }
    }
}

/// Writes a file of any format: takes the bytes of the planned tensors in order, in pieces of any size.
///
/// Memory holds only the index and one piece, whatever the file's size.
pub trait TensorWriter: Send {
    /// Writes the next bytes, row-major and little-endian. A piece may span several tensors.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](crate::ErrorKind::SizeMismatch) for bytes beyond the last tensor;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Completes the file after the last tensor, for example with an index, and returns the file's length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](crate::ErrorKind::SizeMismatch) when bytes are missing;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    fn finish(self: Box<Self>) -> Result<u64, Error>;
}
