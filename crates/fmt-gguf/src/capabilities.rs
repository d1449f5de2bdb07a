//! The capabilities of GGUF: what its files can hold.

use fmt_core::{Capabilities, Error, ErrorKind, Limits, Names, Texts};
use tensor_core::DType;

use crate::{header::MOST_DIMS, types::GgmlType};

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    dtypes: &[
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
    ],
    dtypes_in_words: "f16, bf16, f32, f64, i8 to i64, or a block type of GGML",
    opaque: |dtype, _| GgmlType::of_opaque(dtype).is_some(),
    metadata: Texts::Any,
    names: Names::Checked(check_name),
    rank: Some(MOST_DIMS as u64),
    rules: &[
        (Capabilities::ATTRIBUTES, "G8"),
        (Capabilities::NAMES, "G8"),
        (Capabilities::DUPLICATES, "G2"),
        (Capabilities::DTYPES, "G8"),
        (Capabilities::LAYOUTS, "G8"),
        (Capabilities::LIMITS, "G2"),
        (Capabilities::SIZES, "G8"),
    ],
    ..Capabilities::NUMBERS
};

fn check_name(name: &str, limits: &Limits) -> Result<(), Error> {
    if !name.is_empty() && name.len() as u64 <= limits.name_bytes {
        return Ok(());
    }
    let error = Error::new(ErrorKind::BadName, "the length of the name");
    Err(error
        .expected(format_args!("1 to {} bytes", limits.name_bytes))
        .found(name.len()))
}
