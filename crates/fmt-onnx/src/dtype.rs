//! Converts ONNX's type codes to the dtypes of tensor files.

use fmt_core::{OpaqueDType, StoredDType};
use tensor_core::DType;

/// The type code of strings, which tensor files do not support.
pub(crate) const STRING: u64 = 8;

/// Converts a type code to a dtype.
pub(crate) fn dtype_of(number: u64) -> StoredDType {
    use StoredDType::{Known, Unknown};
    let opaque = |name, bits| StoredDType::Opaque(OpaqueDType::of_bits(name, bits));
    match number {
        1 => Known(DType::F32),
        2 => Known(DType::U8),
        3 => Known(DType::I8),
        4 => Known(DType::U16),
        5 => Known(DType::I16),
        6 => Known(DType::I32),
        7 => Known(DType::I64),
        STRING => Unknown("string".to_owned()),
        9 => Known(DType::Bool),
        10 => Known(DType::F16),
        11 => Known(DType::F64),
        12 => Known(DType::U32),
        13 => Known(DType::U64),
        14 => opaque("C64", 64),
        15 => opaque("C128", 128),
        16 => Known(DType::BF16),
        17 => opaque("F8_E4M3", 8),
        18 => opaque("F8_E4M3FNUZ", 8),
        19 => opaque("F8_E5M2", 8),
        20 => opaque("F8_E5M2FNUZ", 8),
        21 => opaque("U4", 4),
        22 => opaque("I4", 4),
        23 => opaque("F4", 4),
        24 => opaque("F8_E8M0", 8),
        other => Unknown(format!("dtype {other}")),
    }
}

/// Returns the name of a type code, for messages.
pub(crate) fn name_of(number: u64) -> String {
    dtype_of(number).to_string()
}
