//! Opaque dtypes: files contain them, and NumPy (with `ml_dtypes`) or torch supports them, but this project
//! does not compute with them.

use fmt_core::OpaqueDType;

/// The opaque dtypes: NumPy's name, the name in files, and the number of bits per element.
const OPAQUE: [(&str, &str, u32); 7] = [
    ("float8_e4m3fn", "F8_E4M3", 8),
    ("float8_e5m2", "F8_E5M2", 8),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ", 8),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ", 8),
    ("float8_e8m0fnu", "F8_E8M0", 8),
    ("complex64", "C64", 64),
    ("complex128", "C128", 128),
];

/// Returns NumPy's name of a dtype, if it has one.
pub(crate) fn numpy_name(dtype: &OpaqueDType) -> Option<&'static str> {
    let found = OPAQUE.iter().find(|(_, name, _)| *name == dtype.name());
    found.map(|(numpy, ..)| *numpy)
}

/// Finds an opaque dtype by its NumPy name.
pub(crate) fn from_numpy(name: &str) -> Option<OpaqueDType> {
    let found = OPAQUE.iter().find(|(numpy, ..)| *numpy == name);
    found.map(|(_, name, bits)| OpaqueDType::of_bits(*name, *bits))
}
