//! The operator `PRelu`, for floats in one pass, and for integers.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::{binary::broadcast, vector::vectorized};
use onnx_tensor::{
    cancelling::Pace,
    faults::{Limit, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{Real, copied, elements, tensor, with_real},
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `PRelu`.
pub fn prelu(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(PRelu {
        is_by_channel: node.opset < 7,
    }))
}

#[derive(Debug)]
struct PRelu {
    /// Whether a one-dimensional slope applies per channel, as in operator sets before 7.
    is_by_channel: bool,
}

impl Kernel for PRelu {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [x, slope] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(slope.element_type == x.element_type, "inputs of different types");
        if self.is_by_channel && slope.rank() == 1 && !slope.shape[0].is_one() && x.rank() != 2 {
            bail!(Limit(
                "with a slope for each channel is supported from operator set 7 on".to_owned()
            ));
        }
        // A size that is unknown before the run is checked when the node runs.
        let may_fit = |slope: &Dim, x: &Dim| {
            slope == x || slope.is_one() || [slope, x].iter().any(|dim| dim.to_i64().is_none())
        };
        ensure!(
            is_broadcast(&slope.shape, &x.shape, may_fit),
            "the slope cannot be broadcast to the input"
        );
        Ok(vec![x.with(x.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let [shape, slopes] = [inputs[0].shape(), inputs[1].shape()];
        ensure_input!(
            is_broadcast(slopes, shape, |&slope, &x| slope == x || slope == 1),
            "slopes of {slopes:?} for values of {shape:?}, expected equal sizes or 1"
        );
        macro_rules! whole {
            ($T:ty) => {
                broadcast::<$T, false>(&inputs[0], &inputs[1], |x, slope| {
                    if x < (0 as $T) {
                        x.wrapping_mul(slope)
                    } else {
                        x
                    }
                })
            };
        }
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::I8 => whole!(i8)?,
            ElementType::I16 => whole!(i16)?,
            ElementType::I32 => whole!(i32)?,
            ElementType::I64 => whole!(i64)?,
            // Unsigned values are never negative, so they stay unchanged.
            element_type if element_type.is_unsigned() => inputs[0].copied()?,
            element_type => return with_real!(element_type, T => curved::<T>(inputs)),
        }])
    }
}

/// Returns whether slopes broadcast to the shape of `x` without enlarging it.
fn is_broadcast<D>(slope: &[D], x: &[D], fits: impl Fn(&D, &D) -> bool) -> bool {
    let mut dims = slope.iter().rev().zip(x.iter().rev());
    slope.len() <= x.len() && dims.all(|(slope, x)| fits(slope, x))
}

fn curved<T: Real>(inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
    let zero = T::of(0.0);
    let shape = inputs[0].shape();
    let mut values = copied::<T>(&inputs[0])?;
    let slopes = elements::<T>(&inputs[1])?;
    if values.is_empty() {
        return Ok(smallvec![tensor(shape, values)?]);
    }
    // Each slope applies to `inner` consecutive elements, which cover the trailing dimensions in which the
    // slopes have size 1. The list of slopes repeats along the leading dimensions.
    let dims = inputs[1].shape();
    let behind = dims.iter().rev().take_while(|&&dim| dim == 1).count();
    let inner: usize = shape[shape.len() - behind.min(shape.len())..].iter().product();
    let before: usize = dims.iter().take_while(|&&dim| dim == 1).count();
    let is_run = before + behind >= dims.len()
        || dims[before..dims.len() - behind]
            .iter()
            .zip(&shape[shape.len() - dims.len() + before..])
            .all(|(dim, size)| dim == size);
    let spread;
    let (slopes, inner) = match is_run {
        true => (slopes, inner),
        false => {
            spread = inputs[1].broadcast_to(shape)?;
            (elements::<T>(&spread)?, 1)
        }
    };
    let mut pace = Pace::default();
    if slopes.len() == 1 {
        let slope = slopes[0];
        pace.over(&mut values, |values| bend(values, slope))?;
    } else if inner > 1 {
        for (part, &slope) in values.chunks_exact_mut(inner).zip(slopes.iter().cycle()) {
            pace.over(part, |part| bend(part, slope))?;
        }
    } else {
        for part in values.chunks_exact_mut(slopes.len()) {
            pace.pairs(slopes, part, |slopes, part| {
                for (x, slope) in part.iter_mut().zip(slopes) {
                    *x = if *x < zero { *slope * *x } else { *x + zero };
                }
            })?;
        }
    }
    Ok(smallvec![tensor(shape, values)?])
}

/// Multiplies negative values by `slope`, in a vectorized loop. Adding zero to the others keeps LLVM from masked
/// stores, as in [`vector::stored`](super::vector::stored).
fn bend<T: Real>(values: &mut [T], slope: T) {
    let zero = T::of(0.0);
    vectorized(
        #[inline(always)]
        || {
            for x in &mut *values {
                *x = if *x < zero { slope * *x } else { *x + zero };
            }
        },
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn slopes_that_do_not_fit_are_the_requests_fault() {
        let inputs = [tensor(&[2, 1], vec![-3.0f32, 4.0]), tensor(&[2], vec![2.0, 7.0])];
        let inputs = inputs.map(|input| Arc::new(input.unwrap()));
        let error = PRelu { is_by_channel: false }.run(&inputs).unwrap_err();
        assert!(error.is::<onnx_tensor::faults::BadInput>(), "{error}");
    }

    #[test]
    fn slopes_of_whole_numbers_are_broadcast() {
        let inputs = [tensor(&[2, 2], vec![-3i32, 4, -5, 0]), tensor(&[2], vec![2, 7])];
        let inputs = inputs.map(|input| Arc::new(input.unwrap()));
        let found = PRelu { is_by_channel: false }.run(&inputs).unwrap();
        assert_eq!(elements::<i32>(&found[0]).unwrap(), [-6, 4, -10, 0]);
    }

    #[test]
    fn slopes_of_all_shapes_are_broadcast() {
        let x: Vec<f32> = (0..24).map(|index| index as f32 - 12.0).collect();
        for dims in [
            &[][..],
            &[1],
            &[4],
            &[3, 1],
            &[3, 4],
            &[2, 1, 1],
            &[2, 1, 4],
            &[1, 3, 1],
            &[2, 3, 4],
        ] {
            let count = dims.iter().product::<usize>();
            let slope: Vec<f32> = (1..=count).map(|index| index as f32 * 0.5).collect();
            let slope = tensor(dims, slope).unwrap();
            let spread = slope.broadcast_to(&[2, 3, 4]).unwrap();
            let inputs = [tensor(&[2, 3, 4], x.clone()).unwrap(), slope].map(Arc::new);
            let found = PRelu { is_by_channel: false }.run(&inputs).unwrap();
            let wanted = x.iter().zip(elements::<f32>(&spread).unwrap());
            let wanted: Vec<f32> = wanted
                .map(|(&x, slope)| if x < 0.0 { slope * x } else { x })
                .collect();
            assert_eq!(elements::<f32>(&found[0]).unwrap(), wanted, "{dims:?}");
        }
    }
}
