//! Coordinates of elements in row-major order.

use onnx_tensor::prelude::*;

/// Returns the coordinates of a row-major index.
pub(crate) fn coordinates(index: usize, shape: &[usize]) -> ShortVec<usize> {
    let (mut at, mut left): (ShortVec<usize>, usize) = (smallvec![0; shape.len()], index);
    for (at, &size) in at.iter_mut().zip(shape).rev() {
        (*at, left) = (left % size.max(1), left / size.max(1));
    }
    at
}

/// Advances to the next coordinates in row-major order.
pub(crate) fn advance(at: &mut [usize], shape: &[usize]) {
    for (at, &size) in at.iter_mut().zip(shape).rev() {
        *at += 1;
        if *at < size {
            break;
        }
        *at = 0;
    }
}
