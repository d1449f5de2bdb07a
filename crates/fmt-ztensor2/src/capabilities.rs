//! The capabilities of zTensor 2.x: what files written by this crate can contain.

use fmt_core::{Capabilities, Names, StoredDType, Texts};

use crate::{manifest::check_name_v2, types::names_of};

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    opaque: |dtype, _| names_of(&StoredDType::Opaque(dtype.clone())).is_some(),
    metadata: Texts::Any,
    attributes: Texts::Any,
    names: Names::Checked(|name, _| check_name_v2(name)),
    rules: &[
        (Capabilities::NAMES, "O6"),
        (Capabilities::DUPLICATES, "O6"),
        (Capabilities::DTYPES, "O9"),
        (Capabilities::LAYOUTS, "O18"),
        (Capabilities::LIMITS, "O2"),
        (Capabilities::SIZES, "O5"),
    ],
    ..Capabilities::NUMBERS
};
