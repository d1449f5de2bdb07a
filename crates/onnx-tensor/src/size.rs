//! Limits on the size of single values: a few bytes of a request can ask for terabytes.

use std::cell::Cell;

use machine_memory::available_memory;

use crate::prelude::*;

use crate::{
    cancelling::Pace,
    elements::elements,
    faults::{BadInput, NoRoom, ensure_input},
    room,
};

pub use crate::faults::gib;

/// Maximum bytes of a value: an input, an output or an intermediate value.
pub const MAX_BYTES: u64 = 4 << 30;

/// Maximum bytes of an empty input, computed with dimensions of 0 replaced by 1. Such an input takes no bytes
/// in the request, but operators allocate memory according to its other dimensions. For empty intermediate
/// values, the maximum is [`MAX_BYTES`].
pub const MAX_EMPTY_BYTES: u64 = 256 << 20;

/// Maximum rank. Operators may recurse over axes, and their running time may grow with the square of the
/// rank.
pub const MAX_RANK: usize = 64;

/// Values of at least this many bytes are checked against the free memory. The check takes longer than a
/// small run.
const LARGE: u64 = 256 << 20;

/// Refuses a value that does not fit into the free memory of the machine or of this process's control group.
///
/// # Errors
/// Returns [`NoRoom`] with both sizes.
pub fn admit_now(bytes: u64) -> Result<()> {
    if bytes < LARGE {
        return Ok(());
    }
    match available_memory() {
        Some(free) if free < bytes => Err(NoRoom(format!(
            "the model needs {} MiB at once, and {} MiB of memory are free",
            bytes >> 20,
            free >> 20
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Refuses a rank above the maximum.
///
/// # Errors
/// Returns [`BadInput`] with the rank.
pub fn admit_rank(rank: usize) -> Result<()> {
    ensure_input!(
        rank <= MAX_RANK,
        "a value would have {rank} dimensions, expected {MAX_RANK} at most"
    );
    Ok(())
}

thread_local! {
    /// Maximum size of a value that this thread computes, in bytes.
    static MOST: Cell<u64> = const { Cell::new(MAX_BYTES) };
}

/// Calls `run` with a limit of `bytes` bytes for each value, at most [`MAX_BYTES`].
pub fn limited<T>(bytes: u64, run: impl FnOnce() -> T) -> T {
    struct Reset(u64);
    impl Drop for Reset {
        fn drop(&mut self) {
            MOST.set(self.0);
        }
    }
    let _reset = Reset(MOST.replace(bytes.min(MAX_BYTES)));
    run()
}

/// Refuses a shape whose value is too large. Also reserves the memory ([`room::ask_for_shape`]) if the sizes
/// of the current node's outputs depend on values.
///
/// # Errors
/// Returns [`BadInput`] with the size, and the errors of [`admit_now`].
pub fn admit_shape(element_type: ElementType, shape: &[usize]) -> Result<()> {
    let bytes = admit_size(element_type, shape)?;
    room::ask_for_shape(bytes)?;
    admit_now(bytes)
}

/// Refuses a shape that is too large regardless of free memory, and returns its bytes.
///
/// # Errors
/// Returns [`BadInput`] with the size.
pub fn admit_size(element_type: ElementType, shape: &[usize]) -> Result<u64> {
    let dims = shape.iter().map(|&dim| Some(dim as i128));
    let bytes = bytes(element_type.size_of(), dims).unwrap_or(0);
    let most = MOST.get();
    if bytes > most {
        bail!(BadInput(format!(
            "a value between two operators takes {}, which is beyond the limit of {}",
            gib(bytes),
            gib(most)
        )));
    }
    Ok(bytes)
}

/// Bytes of a string in addition to its contents, including allocation overhead.
pub const TEXT: u64 = 40;

/// Maximum bytes of all strings of a value.
const MAX_TEXTS: u64 = 1 << 30;

/// Refuses strings whose total size is too large, and reserves their memory ([`room::ask_for_more`]).
///
/// # Errors
/// Returns [`BadInput`] with both sizes, and the errors of [`admit_now`].
pub fn admit_texts(bytes: u64) -> Result<()> {
    let most = MOST.get().min(MAX_TEXTS);
    ensure_input!(
        bytes <= most,
        "the strings together take {bytes} bytes, which is beyond the limit of {}",
        gib(most)
    );
    room::ask_for_more(bytes)?;
    admit_now(bytes)
}

/// Refuses strings whose contents take too much memory. Each element comes with the number of its copies.
/// Only strings have contents; for other types, [`admit_shape`] checks the size.
///
/// # Errors
/// Returns the errors of [`admit_texts`].
pub fn admit_contents<'e, T: Element>(elements: impl IntoIterator<Item = (&'e T, usize)>) -> Result<()> {
    if !T::HAS_CONTENTS {
        return Ok(());
    }
    let mut pace = Pace::default();
    let mut bytes = 0u64;
    for (element, times) in elements {
        pace.spend(4)?;
        let each = TEXT + element.contents() as u64;
        bytes = bytes.saturating_add(each.saturating_mul(times as u64));
    }
    admit_texts(bytes)
}

/// Approximate bytes of a tensor in addition to its elements.
pub const TENSOR: u64 = 320;

/// Returns the bytes of a value, including the contents of strings.
pub fn of_value(value: &Tensor) -> u64 {
    if value.element_type() != ElementType::String {
        return (value.len() * value.element_type().size_of()) as u64;
    }
    let texts = elements::<String>(value).unwrap_or_default().iter();
    texts.map(|text| TEXT + text.len() as u64).sum()
}

/// Returns the bytes of a tensor in a list: its elements, the tensor itself and the reference to it.
pub fn of_listed(value: &Tensor) -> u64 {
    TENSOR + of_value(value)
}

/// Returns the bytes of a value with these dimensions; `u64::MAX` on overflow, `None` if a dimension is
/// unknown.
fn bytes(element: usize, dims: impl Iterator<Item = Option<i128>>) -> Option<u64> {
    let mut bytes = element as u64;
    let mut is_empty = false;
    for dim in dims {
        let dim = u64::try_from(dim?.min(u64::MAX.into())).ok()?;
        is_empty |= dim == 0;
        bytes = bytes.saturating_mul(dim.max(1));
    }
    // For a large empty value, dimensions of 0 count as 1, since operators allocate intermediate data
    // according to the other dimensions.
    Some(if is_empty && bytes <= MAX_EMPTY_BYTES {
        0
    } else {
        bytes
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn values_without_elements_are_counted_by_their_other_dimensions() {
        let bytes = |dims: &[i128]| bytes(4, dims.iter().copied().map(Some));
        assert_eq!(bytes(&[0, 1 << 20]), Some(0));
        assert_eq!(bytes(&[3, 0, 1 << 46]), Some(3 << 48));
        assert!(admit_shape(ElementType::F32, &[0, 1 << 20]).is_ok());
        assert!(admit_shape(ElementType::F32, &[0, 1 << 46]).is_err());
    }

    #[test]
    fn values_of_constants_have_a_limit_of_their_own() {
        let admits = |count| admit_shape(ElementType::F32, &[count]).is_ok();
        assert!(limited(100, || admits(25) && !admits(26)));
        assert!(limited(100, || admit_texts(100).is_ok() && admit_texts(101).is_err()));
        assert!(admits(26) && admit_texts(101).is_ok());
        assert!(std::panic::catch_unwind(|| limited(100, || panic!("on its way"))).is_err());
        assert!(admits(26));
    }

    #[test]
    fn what_no_memory_is_free_for_is_refused() {
        admit_now(LARGE - 1).unwrap();
        if available_memory().is_some() {
            let error = admit_now(1 << 60).unwrap_err();
            let text = error.downcast_ref::<NoRoom>().unwrap().to_string();
            assert!(
                text.starts_with("the model needs 1099511627776 MiB at once, and "),
                "{text}"
            );
        }
    }
}
