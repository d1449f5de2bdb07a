//! Dtypes whose elements are copied but not computed with.

use std::{fmt, sync::Arc};

/// A dtype of which only the name and the block size are known: eight-bit floats, complex numbers, the blocks
/// of quantized formats. Its tensors are listed, copied, hashed and compared byte by byte.
///
/// ```
/// use fmt_core::OpaqueDType;
///
/// // 32 elements take 18 bytes.
/// let blocks = OpaqueDType::new("Q4_0", 32, 18);
/// assert_eq!(blocks.byte_len(64), Some(36));
/// assert_eq!(blocks.byte_len(33), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpaqueDType(Arc<Inner>);

/// Shared, so that an entry's dtype stays small: files may have millions of entries, and few are opaque.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Inner {
    name: String,
    block_elements: u32,
    block_bytes: u32,
}

impl OpaqueDType {
    /// Creates a dtype with `block_bytes` bytes per `block_elements` elements, both at least 1.
    #[must_use]
    pub fn new(name: impl Into<String>, block_elements: u32, block_bytes: u32) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            block_elements: block_elements.max(1),
            block_bytes: block_bytes.max(1),
        }))
    }

    /// Creates a dtype with `bits` bits per element.
    #[must_use]
    pub fn of_bits(name: impl Into<String>, bits: u32) -> Self {
        // The smallest number of elements that fill whole bytes: 1, 2, 4 or 8.
        let elements = [1, 2, 4]
            .into_iter()
            .find(|count| (bits * count).is_multiple_of(8));
        let elements = elements.unwrap_or(8);
        Self::new(name, elements, bits * elements / 8)
    }

    /// Returns the dtype's name, such as `F8_E4M3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the number of elements per block.
    #[must_use]
    pub fn block_elements(&self) -> u32 {
        self.0.block_elements
    }

    /// Returns the number of bytes per block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.0.block_bytes
    }

    /// Returns the number of bytes of `elements` elements; `None` if they do not fill whole blocks, or the
    /// result overflows 64 bits.
    #[must_use]
    pub fn byte_len(&self, elements: u64) -> Option<u64> {
        let block = u64::from(self.0.block_elements);
        let blocks = elements.is_multiple_of(block).then_some(elements / block)?;
        blocks.checked_mul(self.0.block_bytes.into())
    }

    /// Returns the reason why a tensor of this dtype cannot be read as numbers.
    #[must_use]
    pub fn reason(&self) -> String {
        format!("elements of the dtype {self} can be copied, but not computed with")
    }
}

impl fmt::Display for OpaqueDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.name)
    }
}
