//! Losses of conversions, and which of them are allowed.

use std::fmt;

use tensor_core::Quoted;

/// Something that a target cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// A tensor that cannot be read, or that the target cannot store; with the reason.
    Tensor(String, String),
    /// A sparse tensor becomes dense.
    Sparsity(String),
    /// All names: tensors become `0`, `1` and so on.
    Names,
    /// What the file says about itself under a key.
    Metadata(String),
    /// What the file says about a tensor (its name) under a key.
    Attribute(String, String),
    /// Something that is neither a tensor nor metadata, by its name.
    ForeignPart(String),
    /// So many finite numbers of a tensor became infinite: they are beyond the range of its new dtype.
    Range(String, u64),
    /// The dtype of a tensor that is stored as unsigned integers with the same bits, which was asked for.
    DType(String, String),
    /// A tensor that has the bytes of another one, which the target has no way to say: they are written again. With the
    /// other's name and the number of bytes.
    Sharing(String, String, u64),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(name, why) => write!(f, "tensor {} ({why})", Quoted(name)),
            Self::Sparsity(name) => write!(f, "that tensor {} is sparse", Quoted(name)),
            Self::Names => f.write_str("the names of the tensors"),
            Self::Metadata(key) => write!(f, "the metadata {}", Quoted(key)),
            Self::Attribute(name, key) => {
                write!(f, "the attribute {} of tensor {}", Quoted(key), Quoted(name))
            }
            Self::ForeignPart(name) => write!(f, "{}, which is not a tensor", Quoted(name)),
            Self::Range(name, count) => {
                let plural = if *count == 1 { "number" } else { "numbers" };
                write!(
                    f,
                    "{count} {plural} of tensor {}, beyond the range of the dtype",
                    Quoted(name)
                )
            }
            Self::DType(name, dtype) => {
                write!(
                    f,
                    "the dtype {dtype} of tensor {}: it is stored as bits",
                    Quoted(name)
                )
            }
            Self::Sharing(name, of, bytes) => write!(
                f,
                "that tensor {} has the bytes of {}: they are written again, {bytes} bytes",
                Quoted(name),
                Quoted(of)
            ),
        }
    }
}

/// What a conversion may lose.
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
    /// Tensors that cannot be read or stored.
    pub tensors: bool,
    /// Sparse tensors become dense.
    pub sparsity: bool,
    /// Names.
    pub names: bool,
    /// What files and tensors say of themselves.
    pub metadata: bool,
    /// Content that is neither a tensor nor metadata.
    pub foreign_parts: bool,
    /// Finite numbers beyond the range of a new dtype: they become infinite.
    pub range: bool,
}

impl AllowedLoss {
    /// Nothing.
    pub const NONE: Self = Self {
        tensors: false,
        sparsity: false,
        names: false,
        metadata: false,
        foreign_parts: false,
        range: false,
    };

    /// Everything.
    pub const ALL: Self = Self {
        tensors: true,
        sparsity: true,
        names: true,
        metadata: true,
        foreign_parts: true,
        range: true,
    };

    /// Whether this may be lost.
    #[must_use]
    pub fn allows(&self, loss: &Loss) -> bool {
        match loss {
            Loss::Tensor(..) => self.tensors,
            Loss::Sparsity(_) => self.sparsity,
            Loss::Names => self.names,
            Loss::Metadata(_) | Loss::Attribute(..) => self.metadata,
            Loss::ForeignPart(_) => self.foreign_parts,
            Loss::Range(..) => self.range,
            // Only `Recast::as_bits` makes the first; of the second the tensors are the same.
            Loss::DType(..) | Loss::Sharing(..) => true,
        }
    }
}
