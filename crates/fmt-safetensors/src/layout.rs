//! Constants of the format: lengths, names, widths.

use safetensors::Dtype;
use serde::{
    Deserialize,
    de::{IntoDeserializer, value},
};

/// The format's short name.
pub(crate) const FORMAT: &str = "safetensors";

/// Size in bytes of the field at the start of the file that holds the header's length.
pub(crate) const LENGTH: u64 = 8;

/// Maximum header size that the reference crate reads and writes.
pub(crate) const LONGEST_HEADER: u64 = 100_000_000;

/// The header's key for the metadata of the file.
pub(crate) const METADATA: &str = "__metadata__";

/// Returns the bits per element of a dtype; `None` if the reference crate does not know the dtype.
pub(crate) fn bits_of(dtype: &str) -> Option<u64> {
    let name: value::StrDeserializer<'_, value::Error> = dtype.into_deserializer();
    let dtype = Dtype::deserialize(name).ok()?;
    u64::try_from(dtype.bitsize()).ok()
}

#[cfg(test)]
mod tests {
    use tensor_core::{DType, Naming};

    use super::*;

    #[test]
    fn widths_are_those_of_the_home_crate() {
        for dtype in DType::ALL {
            let bits = bits_of(dtype.name_in(Naming::Safetensors));
            assert_eq!(bits, Some(8 * dtype.size() as u64), "{dtype}");
        }
        assert_eq!(bits_of("F4"), Some(4));
        assert_eq!(bits_of("F8_E4M3"), Some(8));
        assert_eq!(bits_of("f32"), None);
    }
}
