//! The capabilities of zTensor 0.1: what its files can contain.

use fmt_core::{Capabilities, Texts};

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    shares_bytes: true,
    attributes: Texts::Any,
    rules: &[
        (Capabilities::METADATA, "Z27"),
        (Capabilities::NAMES, "Z24"),
        (Capabilities::DUPLICATES, "Z9"),
        (Capabilities::DTYPES, "Z14"),
        (Capabilities::LAYOUTS, "Z20"),
        (Capabilities::LIMITS, "Z12"),
        (Capabilities::SIZES, "Z10"),
    ],
    ..Capabilities::NUMBERS
};
