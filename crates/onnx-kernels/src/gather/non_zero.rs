//! The operator `NonZero`, which returns the coordinates of the elements that are not 0.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    node::Node,
    operator::Compute,
    size,
};
use onnx_tensor::{
    elements::{elements, tensor},
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `NonZero` for numbers and BOOL.
pub fn non_zero(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(NonZero {}))
}

#[derive(Debug)]
struct NonZero {}

impl Kernel for NonZero {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        Ok(vec![Fact::new(
            ElementType::I64,
            [input.rank().max(1).to_dim(), Dim::unknown()],
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        Ok(smallvec![match input.element_type() {
            ElementType::Bool => coordinates(input, elements::<bool>(input)?, |&truth| truth)?,
            element_type => with_number!(element_type, T => {
                let zero = T::default();
                coordinates(input, elements::<T>(input)?, |&number| number != zero)?
            }),
        }])
    }
}

/// Returns the coordinates of the elements for which `is_wanted` holds: one row per axis.
fn coordinates<T>(input: &Tensor, elements: &[T], is_wanted: impl Fn(&T) -> bool) -> Result<Tensor> {
    let mut pace = Pace::default();
    let mut count = 0;
    for part in elements.chunks(PART) {
        pace.spend(part.len() as u64)?;
        count += part.iter().filter(|element| is_wanted(element)).count();
    }
    // A scalar counts as a vector of size 1, as in ONNX Runtime.
    let sizes = if input.rank() == 0 { &[1] } else { input.shape() };
    let shape = [sizes.len(), count];
    size::admit_shape(ElementType::I64, &shape)?;
    let mut coordinates = Vec::with_capacity(sizes.len() * count);
    let mut inner = input.len();
    for &size in sizes {
        inner /= size.max(1);
        for (index, part) in elements.chunks(PART).enumerate() {
            pace.spend(part.len() as u64)?;
            let places = part.iter().zip(index * PART..);
            let wanted = places.filter(|(element, _)| is_wanted(element));
            coordinates.extend(wanted.map(|(_, place)| (place / inner.max(1) % size.max(1)) as i64));
        }
    }
    tensor(&shape, coordinates)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn coordinates_stand_axis_by_axis() {
        let op = NonZero {};
        let run = |input: Tensor| op.run(&[Arc::new(input)]).unwrap().remove(0);
        let found = run(tensor(&[2, 1, 3], vec![0.0f32, -0.0, f32::NAN, 4.0, 0.0, 5.0]).unwrap());
        assert_eq!(found.shape(), [3, 3]);
        assert_eq!(elements::<i64>(&found).unwrap(), [0, 1, 1, 0, 0, 0, 2, 0, 2]);
        let found = run(tensor(&[2], vec![false, true]).unwrap());
        assert_eq!(elements::<i64>(&found).unwrap(), [1]);
        assert_eq!(run(Tensor::scalar(3i64)).shape(), [1, 1]);
        assert_eq!(run(Tensor::scalar(0i64)).shape(), [1, 0]);
        assert_eq!(run(Tensor::zero::<i64>(&[2, 0]).unwrap()).shape(), [2, 0]);
        assert_eq!(run(Tensor::zero::<i64>(&[2, 4]).unwrap()).shape(), [2, 0]);
    }
}
