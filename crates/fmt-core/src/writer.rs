use std::collections::BTreeMap;

use tensor_core::{DType, Shape, TensorSpec};

use crate::{Error, ErrorKind, Layout, Metadata, OpaqueDType};

/// What a file is going to hold: known in full before its first byte is written, so that what a format cannot hold is
/// refused before anything exists.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The tensors, in the order their bytes will come.
    pub entries: Vec<PlannedEntry>,
    /// About the file as a whole.
    pub metadata: Metadata,
}

/// A tensor that is going to be written.
#[derive(Clone, Debug)]
pub struct PlannedEntry {
    /// Its name.
    pub name: String,
    /// Its dtype and shape; of the dense tensor for a sparse one.
    pub spec: TensorSpec,
    /// [`Layout::Dense`] or [`Layout::Coo`]. A COO tensor's bytes are its indices (`u64[nnz, rank]`) and then its values.
    pub layout: Layout,
    /// What else to say about it, as text by key.
    pub attributes: BTreeMap<String, String>,
    /// The real dtype of its bytes, if there is no arithmetic for it; `spec` is that of plain bytes then.
    pub opaque: Option<(OpaqueDType, Shape)>,
    /// The number of an earlier tensor in the plan whose bytes are this one's too: none are written for it. Only for formats
    /// that can say so ([`Format::shares_bytes`](crate::Format::shares_bytes)).
    pub same_as: Option<usize>,
}

impl PlannedEntry {
    /// A dense tensor.
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

    /// A dense tensor of a dtype that is copied and not computed with; `None` when its elements are no whole blocks.
    pub fn opaque(name: impl Into<String>, dtype: OpaqueDType, shape: Shape) -> Option<Self> {
        let len = dtype.byte_len(shape.element_count())?;
        let bytes = TensorSpec::new(DType::U8, Shape::vector(len)).ok()?;
        Some(Self {
            opaque: Some((dtype, shape)),
            ..Self::dense(name, bytes)
        })
    }

    /// A sparse tensor of so many entries.
    pub fn coo(name: impl Into<String>, spec: TensorSpec, nnz: u64) -> Self {
        Self {
            layout: Layout::Coo { nnz },
            ..Self::dense(name, spec)
        }
    }

    /// The name of the tensor in the plan whose bytes it has.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] unless that stands before `number`, this one's own, and has bytes of its own.
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

    /// How many bytes are to be written for it; `None` when that does not fit 64 bits.
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

/// A file of any format that is being written: the bytes of the planned tensors, one after the other, in any pieces.
///
/// Memory stays at the index and one piece, however large the file becomes.
pub trait TensorWriter: Send {
    /// Writes the next bytes, row-major and little-endian. They may end one tensor and begin the next.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](crate::ErrorKind::SizeMismatch) for bytes beyond the last tensor;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Writes what comes behind the last tensor, and returns the file's length.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`](crate::ErrorKind::SizeMismatch) when bytes are missing;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    fn finish(self: Box<Self>) -> Result<u64, Error>;
}
