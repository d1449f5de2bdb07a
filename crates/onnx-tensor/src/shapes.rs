//! Broadcasts shapes, converts numbers to sizes, and makes tensors of a shape.

use crate::{Size, prelude::*};

use crate::{
    elements::elements,
    faults::{BadInput, ensure_input},
    size,
};

/// Broadcasts shapes. An unknown size that is broadcast with a known size other than 1 becomes the known
/// size.
///
/// # Errors
/// Returns [`BadInput`] if two sizes of one axis differ and neither is 1.
pub fn broadcast<D: Size>(shapes: &[&[D]]) -> Result<ShortVec<D>> {
    crate::broadcast(shapes).map_err(|error| BadInput(error.to_string()).into())
}

/// Returns the sizes of a shape; `None` if any of them is unknown.
pub fn known(shape: &[Dim]) -> Option<ShortVec<usize>> {
    let size = |dim: &Dim| match dim {
        Dim::Known(size) => usize::try_from(*size).ok(),
        _ => None,
    };
    shape.iter().map(size).collect()
}

/// Converts `numbers` to sizes.
///
/// # Errors
/// Returns [`BadInput`] if a number is negative.
pub fn sizes(numbers: &[i64]) -> Result<ShortVec<usize>> {
    let sizes: Option<ShortVec<usize>> = numbers
        .iter()
        .map(|&number| usize::try_from(number).ok())
        .collect();
    ensure_input!(
        sizes.is_some(),
        "dimensions {numbers:?} are wanted, expected none below 0"
    );
    Ok(sizes.unwrap_or_default())
}

/// Reshapes a tensor. Strings and few elements are copied if there are other references to them.
///
/// # Errors
/// Fails if the number of elements does not match the shape, or if there is no memory for copied strings.
pub fn reshaped(tensor: Arc<Tensor>, shape: &[usize]) -> Result<Arc<Tensor>> {
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    if tensor.element_type() == ElementType::String && Arc::strong_count(&tensor) > 1 {
        size::admit_contents(elements::<String>(&tensor)?.iter().map(|text| (text, 1)))?;
    }
    Ok(Arc::new(tensor.with_shape(shape)?))
}

/// Creates a zeroed tensor, after checking its size against the limits.
///
/// # Errors
/// Returns the errors of [`size::admit_shape`].
pub fn zeros(element_type: ElementType, shape: &[usize]) -> Result<Tensor> {
    size::admit_shape(element_type, shape)?;
    Tensor::zero_of(element_type, shape)
}

/// Creates a tensor for a kernel that writes each element, after checking its size against the limits; see
/// [`Tensor::unset_of`].
///
/// # Errors
/// Returns the errors of [`size::admit_shape`].
pub fn unset(element_type: ElementType, shape: &[usize]) -> Result<Tensor> {
    size::admit_shape(element_type, shape)?;
    Tensor::unset_of(element_type, shape)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn shapes_are_broadcast_from_the_last_axis() {
        for (shapes, expected) in [
            (&[&[][..], &[]][..], &[][..]),
            (&[&[5], &[2, 1]], &[2, 5]),
            (&[&[0], &[1]], &[0]),
            (&[&[3, 1, 2], &[4, 1], &[]], &[3, 4, 2]),
        ] {
            assert_eq!(broadcast(shapes).unwrap()[..], *expected, "{shapes:?}");
        }
        for shapes in [[&[2][..], &[3]], [&[0], &[2]], [&[2, 3], &[2, 1, 4]]] {
            let error = broadcast(&shapes).unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
    }

    #[test]
    fn sizes_that_are_unknown_follow_from_others() {
        let (n, m) = (Dim::unknown(), Dim::unknown());
        let dims = |a: &Dim, b: &Dim| broadcast(&[std::slice::from_ref(a), std::slice::from_ref(b)]);
        for (a, b, expected) in [
            (&n, &n, &n),
            (&n, &1.to_dim(), &n),
            (&n, &7.to_dim(), &7.to_dim()),
            (&7.to_dim(), &m, &7.to_dim()),
        ] {
            assert_eq!(dims(a, b).unwrap()[0], *expected);
        }
        assert!(known(&dims(&n, &m).unwrap()).is_none());
        assert!(dims(&2.to_dim(), &3.to_dim()).is_err());
    }
}
