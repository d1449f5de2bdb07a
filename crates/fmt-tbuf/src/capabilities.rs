//! The capabilities of TensorBuffers: what its files can contain.

use fmt_core::{Capabilities, Texts};
use tensor_core::DType;

use crate::layout::MODEL;

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    dtypes: &[
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F32,
        DType::F64,
    ],
    dtypes_in_words: "one of i8, i16, i32, i64, u8, u16, u32, u64, f32, f64 (whose bits an unsigned integer could carry)",
    shares_bytes: true,
    metadata: Texts::Only(&[MODEL]),
    dim: u32::MAX as u64,
    tensor_bytes: u32::MAX as u64,
    rules: &[
        (Capabilities::METADATA, "T9"),
        (Capabilities::ATTRIBUTES, "T9"),
        (Capabilities::NAMES, "T19"),
        (Capabilities::DUPLICATES, "T7"),
        (Capabilities::DTYPES, "T14"),
        (Capabilities::LAYOUTS, "T14"),
        (Capabilities::LIMITS, "T20"),
        (Capabilities::SIZES, "T4"),
    ],
    ..Capabilities::NUMBERS
};
