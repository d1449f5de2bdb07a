//! GGML's tensor types: numbers, names and block sizes.

use fmt_core::{OpaqueDType, StoredDType};
use tensor_core::DType;

/// A GGML tensor type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GgmlType {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    /// Elements per block.
    pub(crate) elements: u32,
    /// Bytes per block.
    pub(crate) bytes: u32,
    /// The dtype, for types of plain elements.
    pub(crate) dtype: Option<DType>,
}

const fn plain(number: u32, name: &'static str, dtype: DType) -> GgmlType {
    GgmlType {
        number,
        name,
        elements: 1,
        bytes: dtype.size() as u32,
        dtype: Some(dtype),
    }
}

const fn blocks(number: u32, name: &'static str, elements: u32, bytes: u32) -> GgmlType {
    GgmlType {
        number,
        name,
        elements,
        bytes,
        dtype: None,
    }
}

/// All types that files may have. Missing numbers were retired by GGML.
pub(crate) const TYPES: [GgmlType; 34] = [
    plain(0, "F32", DType::F32),
    plain(1, "F16", DType::F16),
    blocks(2, "Q4_0", 32, 18),
    blocks(3, "Q4_1", 32, 20),
    blocks(6, "Q5_0", 32, 22),
    blocks(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 32, 34),
    blocks(9, "Q8_1", 32, 36),
    blocks(10, "Q2_K", 256, 84),
    blocks(11, "Q3_K", 256, 110),
    blocks(12, "Q4_K", 256, 144),
    blocks(13, "Q5_K", 256, 176),
    blocks(14, "Q6_K", 256, 210),
    blocks(15, "Q8_K", 256, 292),
    blocks(16, "IQ2_XXS", 256, 66),
    blocks(17, "IQ2_XS", 256, 74),
    blocks(18, "IQ3_XXS", 256, 98),
    blocks(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", 32, 18),
    blocks(21, "IQ3_S", 256, 110),
    blocks(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", 256, 136),
    plain(24, "I8", DType::I8),
    plain(25, "I16", DType::I16),
    plain(26, "I32", DType::I32),
    plain(27, "I64", DType::I64),
    plain(28, "F64", DType::F64),
    blocks(29, "IQ1_M", 256, 56),
    plain(30, "BF16", DType::BF16),
    blocks(34, "TQ1_0", 256, 54),
    blocks(35, "TQ2_0", 256, 66),
    blocks(39, "MXFP4", 32, 17),
    blocks(40, "NVFP4", 64, 36),
    blocks(41, "Q1_0", 128, 18),
];

impl GgmlType {
    /// Returns the type with this number.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        TYPES.into_iter().find(|known| known.number == number)
    }

    /// Returns the type for plain elements.
    pub(crate) fn of_dtype(dtype: DType) -> Option<Self> {
        TYPES.into_iter().find(|known| known.dtype == Some(dtype))
    }

    /// Returns the type whose blocks have this name and size.
    pub(crate) fn of_opaque(dtype: &OpaqueDType) -> Option<Self> {
        TYPES.into_iter().find(|known| {
            known.dtype.is_none()
                && known.name == dtype.name()
                && (known.elements, known.bytes) == (dtype.block_elements(), dtype.block_bytes())
        })
    }

    pub(crate) fn stored(self) -> StoredDType {
        match self.dtype {
            Some(dtype) => StoredDType::Known(dtype),
            None => StoredDType::Opaque(OpaqueDType::new(self.name, self.elements, self.bytes)),
        }
    }
}
