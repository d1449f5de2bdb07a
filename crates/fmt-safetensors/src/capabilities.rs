//! The capabilities of safetensors: what its files can hold.

use fmt_core::{Capabilities, Error, ErrorKind, Limits, Names, Texts};

use crate::layout::{METADATA, bits_of};

pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    // A file can hold an opaque dtype only if the reference crate knows it with the same width.
    opaque: |dtype, shape| {
        let count = shape.element_count();
        let bits = bits_of(dtype.name()).and_then(|bits| count.checked_mul(bits));
        bits.is_some_and(|bits| bits.is_multiple_of(8) && Some(bits / 8) == dtype.byte_len(count))
    },
    metadata: Texts::Any,
    names: Names::Checked(check_name),
    rules: &[
        (Capabilities::ATTRIBUTES, "S7"),
        (Capabilities::NAMES, "S3"),
        (Capabilities::DUPLICATES, "S3"),
        (Capabilities::DTYPES, "S4"),
        (Capabilities::LAYOUTS, "S4"),
        (Capabilities::LIMITS, "S8"),
        (Capabilities::SIZES, "S6"),
    ],
    ..Capabilities::NUMBERS
};

fn check_name(name: &str, limits: &Limits) -> Result<(), Error> {
    let bad = |what: &str| Error::new(ErrorKind::BadName, what);
    if name == METADATA {
        return Err(bad("the name").expected("another: the format has a meaning for this one"));
    }
    if name.len() as u64 > limits.name_bytes {
        return Err(bad("the length of the name")
            .expected(format_args!("at most {} bytes", limits.name_bytes))
            .found(name.len()));
    }
    Ok(())
}
