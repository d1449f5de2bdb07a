//! The functions `Sigmoid` and `Tanh`, computed with ONNX Runtime's rational approximations, bit for bit.
//!
//! They are less accurate than this crate's functions. But if a result is quantized, its last bit can change
//! the rounding, and deep networks amplify the difference to a few thousandths of the result.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{cancelling::Pace, node::Node, operator::Compute};
use onnx_tensor::{
    elements::{copied, elements, tensor},
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `CoarseSigmoid` or `CoarseTanh`.
pub fn coarse(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Coarse {
        is_tanh: node.op_type.ends_with("Tanh"),
    }))
}

#[derive(Debug)]
struct Coarse {
    is_tanh: bool,
}

impl Kernel for Coarse {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        ensure!(
            matches!(input.element_type, ElementType::F32 | ElementType::F64),
            "expected floats, found {:?}",
            input.element_type
        );
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        if inputs[0].element_type() == ElementType::F64 {
            let made = Pace::default().map(elements::<f64>(&inputs[0])?, |&x| match self.is_tanh {
                true => x.tanh(),
                false => 1.0 / (1.0 + (-x).exp()),
            })?;
            return Ok(smallvec![tensor(shape, made)?]);
        }
        let mut values = copied::<f32>(&inputs[0])?;
        let function = if self.is_tanh { tanh } else { sigmoid };
        Pace::default().over(&mut values, function)?;
        Ok(smallvec![tensor(shape, values)?])
    }
}

/// Replaces each value with its sigmoid.
pub fn sigmoid(values: &mut [f32]) {
    pulp::Arch::new().dispatch(Quotients {
        values,
        limit: 18.0,
        above: [
            4.370_31e-11,
            1.156_273_2e-7,
            6.085_749e-5,
            8.513_771e-3,
            2.482_879_5e-1,
        ],
        below: [
            6.102_473_7e-13,
            5.761_021_4e-9,
            6.291_068e-6,
            1.701_988_2e-3,
            1.168_176_5e-1,
            9.931_519e-1,
        ],
        added: 0.5,
    });
}

/// Replaces each value with its hyperbolic tangent.
pub fn tanh(values: &mut [f32]) {
    pulp::Arch::new().dispatch(Quotients {
        values,
        limit: 9.0,
        above: [
            -2.760_768_4e-16,
            2.000_188e-13,
            -8.604_672e-11,
            5.122_297_3e-8,
            1.485_722_35e-5,
            6.372_619_5e-4,
            4.893_524_6e-3,
        ],
        below: [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3],
        added: 0.0,
    });
}

/// Computes `x * above(x * x) / below(x * x) + added`, with `x` clamped to the limit.
struct Quotients<'v, const ABOVE: usize, const BELOW: usize> {
    values: &'v mut [f32],
    limit: f32,
    /// Coefficients of the numerator and the denominator, highest power first.
    above: [f32; ABOVE],
    below: [f32; BELOW],
    added: f32,
}

impl<const ABOVE: usize, const BELOW: usize> Quotients<'_, ABOVE, BELOW> {
    #[inline(always)]
    fn all<const IS_FUSED: bool>(self) {
        let add = |product: [f32; 2], sum: f32| match IS_FUSED {
            true => product[0].mul_add(product[1], sum),
            false => product[0] * product[1] + sum,
        };
        for value in self.values {
            let x = if *value < -self.limit { -self.limit } else { *value };
            let x = if x > self.limit { self.limit } else { x };
            let square = x * x;
            let (mut above, mut below) = (self.above[0], self.below[0]);
            for factor in &self.above[1..] {
                above = add([above, square], *factor);
            }
            for factor in &self.below[1..] {
                below = add([below, square], *factor);
            }
            let quotient = above * x / below + self.added;
            let is_between = self.added != 0.0;
            *value = match quotient {
                below if is_between && below < 0.0 => 0.0,
                above if is_between && above > 1.0 => 1.0,
                quotient => quotient,
            };
        }
    }
}

impl<const ABOVE: usize, const BELOW: usize> pulp::WithSimd for Quotients<'_, ABOVE, BELOW> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        // ONNX Runtime uses fused multiply-add on processors that support it. All processors with wide
        // vectors do.
        match S::F32_LANES >= 8 {
            true => self.all::<true>(),
            false => self.all::<false>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_close_to_mathematics_and_end_at_their_limits() {
        for at in -4000..=4000 {
            let x = at as f32 / 100.0;
            let (mut one, mut other) = ([x], [x]);
            sigmoid(&mut one);
            tanh(&mut other);
            let x = f64::from(x);
            assert!((f64::from(one[0]) - 1.0 / (1.0 + (-x).exp())).abs() < 2e-7, "{x}");
            assert!((f64::from(other[0]) - x.tanh()).abs() < 5e-7, "{x}");
        }
        let mut nothing = [f32::NAN];
        sigmoid(&mut nothing);
        assert!(nothing[0].is_nan());
    }
}
