//! The capabilities of NumPy's formats: what their files can hold.

use fmt_core::{Capabilities, Error, ErrorKind, Limits, Names};

use crate::header::descr_of_opaque;

/// A `.npy` file: one array without a name.
pub(crate) const NPY: Capabilities = Capabilities {
    names: Names::Numbers,
    tensors: Some(1),
    ..ARRAYS
};

/// A `.npz` archive: arrays with names.
pub(crate) const NPZ: Capabilities = Capabilities {
    names: Names::Checked(check_name),
    ..ARRAYS
};

const ARRAYS: Capabilities = Capabilities {
    opaque: |dtype, _| descr_of_opaque(dtype).is_some(),
    rules: &[
        (Capabilities::METADATA, "N13"),
        (Capabilities::ATTRIBUTES, "N13"),
        (Capabilities::NAMES, "N13"),
        (Capabilities::DUPLICATES, "N10"),
        (Capabilities::DTYPES, "N13"),
        (Capabilities::LAYOUTS, "N13"),
        (Capabilities::LIMITS, "N13"),
        (Capabilities::SIZES, "N13"),
    ],
    ..Capabilities::NUMBERS
};

/// Rejects names that would escape the target directory, since unpacking an archive turns names into paths.
fn check_name(name: &str, limits: &Limits) -> Result<(), Error> {
    let most = limits.name_bytes;
    let bad = |expected: String| Err(Error::new(ErrorKind::BadName, "the name").expected(expected));
    if name.is_empty() || name.len() as u64 > most {
        return bad(format!("1 to {most} bytes"));
    }
    let is_odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if name.split('/').any(is_odd) || name.contains(['\\', '\0']) {
        return bad("one that is a path inside a directory, without '..', '\\' and zero bytes".to_owned());
    }
    Ok(())
}
