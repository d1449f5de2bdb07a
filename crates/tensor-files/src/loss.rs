//! Losses of conversions, and which are allowed.

use std::fmt;

use tensor_core::QuotedName;

/// A part of the source that the target cannot store, or stores differently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// A tensor that cannot be read or stored, with the reason.
    Tensor(String, String),
    /// A sparse tensor becomes dense.
    Sparsity(String),
    /// The names of all tensors, which become `0`, `1` and so on.
    Names,
    /// A metadata entry of the file, by key.
    Metadata(String),
    /// An attribute of a tensor, by tensor name and key.
    Attribute(String, String),
    /// Content that is neither a tensor nor metadata, by its name.
    ForeignPart(String),
    /// The number of finite elements of a tensor that became infinite, because they exceed the range of the
    /// new dtype.
    Range(String, u64),
    /// The dtype of a tensor that is stored, on request, as unsigned integers with the same bits.
    DType(String, String),
    /// Shared bytes that the target cannot share, so they are written again. Fields: both tensor names, and
    /// the number of bytes.
    Sharing(String, String, u64),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(name, why) => write!(f, "tensor {} ({why})", QuotedName(name)),
            Self::Sparsity(name) => write!(f, "that tensor {} is sparse", QuotedName(name)),
            Self::Names => f.write_str("the names of the tensors"),
            Self::Metadata(key) => write!(f, "the metadata {}", QuotedName(key)),
            Self::Attribute(name, key) => {
                write!(
                    f,
                    "the attribute {} of tensor {}",
                    QuotedName(key),
                    QuotedName(name)
                )
            }
            Self::ForeignPart(name) => write!(f, "{}, which is not a tensor", QuotedName(name)),
            Self::Range(name, count) => {
                let plural = if *count == 1 { "number" } else { "numbers" };
                write!(
                    f,
                    "{count} {plural} of tensor {}, beyond the range of the dtype",
                    QuotedName(name)
                )
            }
            Self::DType(name, dtype) => {
                write!(
                    f,
                    "the dtype {dtype} of tensor {}: it is stored as bits",
                    QuotedName(name)
                )
            }
            Self::Sharing(name, of, bytes) => write!(
                f,
                "that tensor {} has the bytes of {}: they are written again, {bytes} bytes",
                QuotedName(name),
                QuotedName(of)
            ),
        }
    }
}

/// The losses that are allowed in a conversion.
///
/// ```
/// use tensor_files::{AllowedLoss, Loss};
///
/// let allowed = AllowedLoss { metadata: true, ..AllowedLoss::NONE };
/// assert!(allowed.allows(&Loss::Metadata("license".to_owned())));
/// assert!(!allowed.allows(&Loss::Names));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedLoss {
    /// Whether to leave out tensors that cannot be read or stored.
    pub tensors: bool,
    /// Whether sparse tensors may become dense.
    pub sparsity: bool,
    /// Whether names may be lost.
    pub names: bool,
    /// Whether metadata of the file and attributes of tensors may be lost.
    pub metadata: bool,
    /// Whether content that is neither a tensor nor metadata may be lost.
    pub foreign_parts: bool,
    /// Whether finite numbers beyond the range of a new dtype may become infinite.
    pub range: bool,
}

impl AllowedLoss {
    /// Allows no losses.
    pub const NONE: Self = Self {
        tensors: false,
        sparsity: false,
        names: false,
        metadata: false,
        foreign_parts: false,
        range: false,
    };

    /// Allows all losses.
    pub const ALL: Self = Self {
        tensors: true,
        sparsity: true,
        names: true,
        metadata: true,
        foreign_parts: true,
        range: true,
    };

    /// Returns whether `loss` is allowed.
    #[must_use]
    pub fn allows(&self, loss: &Loss) -> bool {
        match loss {
            Loss::Tensor(..) => self.tensors,
            Loss::Sparsity(_) => self.sparsity,
            Loss::Names => self.names,
            Loss::Metadata(_) | Loss::Attribute(..) => self.metadata,
            Loss::ForeignPart(_) => self.foreign_parts,
            Loss::Range(..) => self.range,
            // `DType` only results from `Recast::as_bits`; `Sharing` does not change tensors.
            Loss::DType(..) | Loss::Sharing(..) => true,
        }
    }
}
