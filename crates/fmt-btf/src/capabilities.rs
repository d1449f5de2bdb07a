//! The capabilities of BTF: what its files can contain.

use fmt_core::{Capabilities, Names};

use crate::layout::DTYPES;

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    dtypes: &DTYPES,
    dtypes_in_words: "i8, i16, i32, i64, f32, f64, u8, u16, u32 or u64",
    sparse: true,
    names: Names::Numbers,
    rules: &[
        (Capabilities::METADATA, "B14"),
        (Capabilities::ATTRIBUTES, "B14"),
        (Capabilities::NAMES, "B14"),
        (Capabilities::DTYPES, "B2"),
        (Capabilities::LAYOUTS, "B1"),
        (Capabilities::LIMITS, "B17"),
        (Capabilities::SIZES, "B19"),
    ],
    ..Capabilities::NUMBERS
};
