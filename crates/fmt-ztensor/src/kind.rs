//! Dtype, encoding, layout and byte order of the tensors in a file being written.

use fmt_core::{Encoding, StoredDType};
use tensor_core::DType;

use crate::{
    index::StoredLayout,
    layout::{RAW, ZSTD, dtype_name},
};

/// Dtype, encoding, layout and byte order of a tensor. The type is small, because a file may have millions of
/// tensors.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A tensor as this crate writes it.
    Known {
        dtype: DType,
        is_zstd: bool,
        says_layout: bool,
        says_big: Option<bool>,
    },
    /// A tensor of the edited file, as the file's index describes it.
    Other(Box<OtherKind>),
}

#[derive(Clone, Debug)]
pub(crate) struct OtherKind {
    pub(crate) dtype: StoredDType,
    pub(crate) encoding: Encoding,
    pub(crate) layout: StoredLayout,
    pub(crate) says_big: Option<bool>,
}

impl Kind {
    /// Returns the dtype, if the tensor's bytes are contiguous elements of a known dtype, raw or compressed.
    pub(crate) fn dtype_of_elements(&self) -> Option<DType> {
        match self {
            Self::Known { dtype, .. } => Some(*dtype),
            Self::Other(other) => {
                let is_known = matches!(other.encoding, Encoding::Raw | Encoding::Zstd)
                    && !matches!(other.layout, StoredLayout::Other(_));
                other.dtype.known().filter(|_| is_known)
            }
        }
    }

    pub(crate) fn says_big(&self) -> Option<bool> {
        match self {
            Self::Known { says_big, .. } => *says_big,
            Self::Other(other) => other.says_big,
        }
    }

    pub(crate) fn dtype_name(&self) -> &str {
        match self {
            Self::Known { dtype, .. } => dtype_name(*dtype),
            Self::Other(other) => match &other.dtype {
                StoredDType::Known(dtype) => dtype_name(*dtype),
                StoredDType::Opaque(dtype) => dtype.name(),
                StoredDType::Unknown(name) => name,
            },
        }
    }

    pub(crate) fn encoding_name(&self) -> &str {
        match self {
            Self::Known { is_zstd: true, .. } => ZSTD,
            Self::Known { .. } => RAW,
            Self::Other(other) => match &other.encoding {
                Encoding::Zstd => ZSTD,
                Encoding::Unknown(name) => name,
                _ => RAW,
            },
        }
    }

    /// Returns the value of the key `layout` as CBOR; `None` if the entry has no such key.
    pub(crate) fn layout(&self) -> Option<&[u8]> {
        const DENSE: &[u8] = b"\x65dense";
        match self {
            Self::Known { says_layout, .. } => says_layout.then_some(DENSE),
            Self::Other(other) => match &other.layout {
                StoredLayout::Absent => None,
                StoredLayout::Dense => Some(DENSE),
                StoredLayout::Other(value) => Some(value.as_bytes()),
            },
        }
    }
}
