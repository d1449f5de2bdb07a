//! The entry that a reader lists for each tensor: name, dtype, shape, layout, encoding and byte range.

use std::{collections::BTreeMap, fmt, ops::Range};

use tensor_core::{DType, Shape, TensorSpec};

use crate::{Attributes, OpaqueDType};

/// A file's metadata, as strings by key.
pub type Metadata = BTreeMap<String, String>;

/// A tensor as described in its file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The tensor's name; formats without names use the index, from `0`.
    pub name: String,
    /// The type of the elements.
    pub dtype: StoredDType,
    /// The dimensions; none for a scalar.
    pub shape: Shape,
    /// Layout of the elements: dense or sparse.
    pub layout: Layout,
    /// Encoding of the stored bytes, such as raw or compressed.
    pub encoding: Encoding,
    /// Whether bytes are stored big-endian.
    pub is_big_endian: bool,
    /// The range of the tensor's bytes in the file.
    pub range: Range<u64>,
    /// The checksum, as written in the file; `None` if the file has none for this tensor.
    pub checksum: Option<String>,
    /// Format-specific attributes.
    pub attributes: Attributes,
    /// The reason why the tensor cannot be read; `None` if it can be read. Readers list the tensor in both
    /// cases.
    pub unsupported: Option<String>,
}

impl Entry {
    /// Describes a dense tensor with raw bytes.
    #[must_use]
    pub fn new(name: String, dtype: StoredDType, shape: Shape, range: Range<u64>) -> Self {
        Self {
            name,
            dtype,
            shape,
            layout: Layout::Dense,
            encoding: Encoding::Raw,
            is_big_endian: false,
            range,
            checksum: None,
            attributes: Attributes::default(),
            unsupported: None,
        }
    }

    /// Returns the dtype and shape, if the dtype is known.
    #[must_use]
    pub fn spec(&self) -> Option<TensorSpec> {
        TensorSpec::new(self.dtype.known()?, self.shape.clone()).ok()
    }

    /// Returns whether the tensor's bytes are available from
    /// [`TensorReader::stream`](crate::TensorReader::stream), although they cannot be read as numbers.
    #[must_use]
    pub fn is_copied_only(&self) -> bool {
        matches!(self.dtype, StoredDType::Opaque(_)) && self.layout == Layout::Dense
    }

    /// Returns the number of bytes that the tensor occupies in the file.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the number of decoded bytes, if the dtype is known: all elements of a dense tensor, or the
    /// indices and values of a sparse tensor.
    #[must_use]
    pub fn byte_len(&self) -> Option<u64> {
        match self.layout {
            Layout::Coo { nnz } => {
                let per_entry = (self.shape.rank() as u64)
                    .checked_mul(8)?
                    .checked_add(self.dtype.known()?.size() as u64)?;
                nnz.checked_mul(per_entry)
            }
            _ => match &self.dtype {
                StoredDType::Opaque(dtype) => dtype.byte_len(self.shape.element_count()),
                _ => self.spec().map(|spec| spec.byte_len()),
            },
        }
    }
}

/// A dtype as named in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredDType {
    /// A numeric dtype, whose elements programs can compute with.
    Known(DType),
    /// A dtype whose elements are copied but not computed with.
    Opaque(OpaqueDType),
    /// An unknown dtype, with its name or number in the file.
    Unknown(String),
}

impl StoredDType {
    /// Returns the dtype, if it is known.
    #[must_use]
    pub fn known(&self) -> Option<DType> {
        match self {
            Self::Known(dtype) => Some(*dtype),
            Self::Opaque(_) | Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for StoredDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(dtype) => f.pad(dtype.name()),
            Self::Opaque(dtype) => dtype.fmt(f),
            Self::Unknown(name) => f.pad(name),
        }
    }
}

/// The layout of a tensor's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// All elements, row-major.
    Dense,
    /// Coordinates and values.
    Coo {
        /// The number of stored entries.
        nnz: u64,
    },
    /// An unknown layout, with its name in the file.
    Unknown(String),
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Coo { nnz } => write!(f, "coo of {nnz}"),
            Self::Unknown(name) => f.write_str(name),
        }
    }
}

/// The encoding of a tensor's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Unencoded, in row-major order.
    Raw,
    /// Unencoded, in column-major order: the first axis changes fastest.
    ColumnMajor,
    /// Unencoded but strided, in a part of the file that other tensors may share.
    Strided,
    /// The bytes are in Zstandard frames.
    Zstd,
    /// A raw deflate stream, possibly preceded by a header that is compressed with it.
    Deflate,
    /// An unknown encoding, with its name in the file.
    Unknown(String),
}
