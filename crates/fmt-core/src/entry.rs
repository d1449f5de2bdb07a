use std::{collections::BTreeMap, fmt, ops::Range};

use tensor_core::{DType, Shape, TensorSpec};

use crate::{Attributes, OpaqueDType};

/// What a file says about itself as a whole, by key.
pub type Metadata = BTreeMap<String, String>;

/// What a file says about one of its tensors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name; formats without names count from `0`.
    pub name: String,
    /// Its element type.
    pub dtype: StoredDType,
    /// Its dimensions.
    pub shape: Shape,
    /// How its elements are laid out.
    pub layout: Layout,
    /// How its bytes are stored.
    pub encoding: Encoding,
    /// Whether its bytes are stored most significant first.
    pub is_big_endian: bool,
    /// Where its bytes stand in the file.
    pub range: Range<u64>,
    /// Its checksum as the file has it.
    pub checksum: Option<String>,
    /// What else the file says about it.
    pub attributes: Attributes,
    /// Why it cannot be read, if it cannot: it is listed nevertheless.
    pub unsupported: Option<String>,
}

impl Entry {
    /// A dense tensor stored as it is.
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

    /// Dtype and shape, if the dtype is known.
    #[must_use]
    pub fn spec(&self) -> Option<TensorSpec> {
        TensorSpec::new(self.dtype.known()?, self.shape.clone()).ok()
    }

    /// Whether its bytes can be had by [`TensorReader::stream`](crate::TensorReader::stream) though it cannot be read as
    /// numbers.
    #[must_use]
    pub fn is_copied_only(&self) -> bool {
        matches!(self.dtype, StoredDType::Opaque(_)) && self.layout == Layout::Dense
    }

    /// Bytes in the file.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Bytes of the elements once decoded, if the dtype is known: of all elements for a dense tensor, of indices and
    /// values for a sparse one.
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

/// A dtype as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredDType {
    /// One that is known.
    Known(DType),
    /// One whose elements are copied and not computed with.
    Opaque(OpaqueDType),
    /// One that is not known, by the name or number that the file has for it.
    Unknown(String),
}

impl StoredDType {
    /// The dtype, if it is known.
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

/// How a tensor's elements are laid out.
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
    /// One that is not known, by the file's name for it.
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

/// How a tensor's bytes are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// As they are.
    Raw,
    /// As they are, but with the first axis changing fastest.
    ColumnMajor,
    /// Scattered over a part of the file that other tensors share.
    Strided,
    /// In Zstandard frames.
    Zstd,
    /// As a raw deflate stream, perhaps behind a header that it covers too.
    Deflate,
    /// In a way that is not known, by the file's name for it.
    Unknown(String),
}
