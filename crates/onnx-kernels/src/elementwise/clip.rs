//! The operator `Clip`. NaN stays NaN. If the upper bound is below the lower one, all values become the upper
//! bound.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::activation::Activation;
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    elements::elements,
    faults::ensure_input,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    split::{self, LINE},
};

/// Builds the operator `Clip`.
pub fn clip_of(node: &Node, constants: Constants<'_>) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Clip::of(node, constants)))
}

#[derive(Debug)]
pub(crate) struct Clip {
    /// The lower and the upper bound, if they are attributes.
    fixed: Option<[f32; 2]>,
    /// Input indices of the bounds.
    places: [Option<usize>; 2],
    /// The fused form, if the bounds are FP32 constants.
    activation: Option<Activation>,
}

impl Clip {
    pub(crate) fn of(node: &Node, constants: &[Option<Arc<Tensor>>]) -> Self {
        let attributes = Attributes(node);
        let bounds = || {
            [
                attributes.float("min", f32::MIN),
                attributes.float("max", f32::MAX),
            ]
        };
        let fixed = (node.opset < 11).then(bounds);
        let places = [1, 2].map(|place| attributes.position(place));
        let bound = |at: usize, most: f32| match (fixed, places[at]) {
            (Some(fixed), _) => Some(fixed[at]),
            (None, None) => Some(most),
            (None, Some(place)) => match elements::<f32>(constants.get(place)?.as_ref()?) {
                Ok(&[bound]) => Some(bound),
                _ => None,
            },
        };
        let bounds = bound(0, f32::MIN).zip(bound(1, f32::MAX));
        // Without bounds, nothing is fused, since the type is unknown.
        let bounds = bounds.filter(|_| fixed.is_some() || places != [None, None]);
        Self {
            fixed,
            places,
            activation: bounds.map(|(low, high)| Activation::clip(low, high)),
        }
    }
}

impl Clip {
    /// Returns the function to fuse, if the bounds are constants.
    pub(crate) fn activation(&self) -> Option<Activation> {
        self.activation.clone()
    }
}

/// Clamps numbers in place.
fn clip<T: Element + Copy + PartialOrd>(numbers: Arc<Tensor>, low: T, high: T) -> Result<Arc<Tensor>> {
    let work = [numbers.len() as u64, split::ELEMENTS];
    split::replaced(numbers, LINE, work, |_, numbers: &mut [T], pace| {
        pace.over(numbers, |numbers| {
            for number in numbers {
                let raised = if *number < low { low } else { *number };
                *number = if raised > high { high } else { raised };
            }
        })
    })
}

impl Compute for Clip {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        for bound in self
            .places
            .iter()
            .flatten()
            .filter_map(|&place| inputs.get(place))
        {
            ensure_input!(
                bound.element_type == inputs[0].element_type,
                "bounds of {:?} for numbers of {:?}",
                bound.element_type,
                inputs[0].element_type
            );
        }
        Ok(Some(vec![inputs[0].with(inputs[0].element_type)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let bounds = self.places.map(|place| place.map(|place| inputs[place].clone()));
        let numbers = inputs.swap_remove(0);
        let made = with_number!(numbers.element_type(), T => {
            let bound = |at: usize, most: T| -> Result<T> {
                match (&bounds[at], self.fixed) {
                    (Some(bound), _) => {
                        let bound = elements::<T>(bound)?;
                        ensure_input!(bound.len() == 1, "a bound of {} numbers, expected one", bound.len());
                        Ok(bound[0])
                    }
                    (None, Some(fixed)) => Tensor::scalar(fixed[at]).cast_to_scalar::<T>(),
                    (None, None) => Ok(most),
                }
            };
            let (low, high) = (bound(0, <T>::MIN)?, bound(1, <T>::MAX)?);
            clip(numbers, low, high)?
        });
        Ok(smallvec![made])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_stays_and_the_upper_bound_wins() -> Result<()> {
        let clip = Clip {
            fixed: None,
            places: [Some(1), Some(2)],
            activation: None,
        };
        let clipped = |values: Tensor, low: Tensor, high: Tensor| -> Result<Arc<Tensor>> {
            let mut inputs: ShortVec<Arc<Tensor>> = [values, low, high].into_iter().map(Arc::new).collect();
            Ok(clip.run(&mut inputs)?.remove(0))
        };
        let made = clipped(
            Tensor::vector(&[f32::NAN, -3.0, 0.5, f32::INFINITY]),
            Tensor::scalar(-1.0f32),
            Tensor::scalar(1.0f32),
        )?;
        let made = elements::<f32>(&made)?;
        assert!(made[0].is_nan() && made[1..] == [-1.0, 0.5, 1.0]);
        let made = clipped(
            Tensor::vector(&[i8::MIN, 4, 5]),
            Tensor::scalar(5i8),
            Tensor::scalar(3i8),
        )?;
        assert_eq!(elements::<i8>(&made)?, [3, 3, 3]);
        Ok(())
    }
}
