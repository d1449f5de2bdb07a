//! ONNX Runtime's `QLinearAdd` and `QLinearMul`. They round at the same steps as ONNX Runtime, since many
//! quantized results are ties.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{least_work::ELEMENTS, quant::quantize::low_bits};
use onnx_kernels::elementwise::broadcast;
use onnx_tensor::{
    cancelling::PART,
    elements::{elements, written},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    split::{self, LINE},
};
use onnx_tensor::{node::Node, operator::Compute};

/// Builds the operator `QLinearAdd` or `QLinearMul`.
pub fn quantized_pair(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let operand = |first: usize| -> Result<Operand> {
        let position = |index: usize| attributes.position(index).context("an input is not given");
        Ok(Operand {
            scale: position(first)?,
            zero_point: attributes.position(first + 1),
        })
    };
    Ok(kernel(QuantizedPair {
        is_product: node.op_type.ends_with("Mul"),
        b: attributes.position(3).context("an input is not given")?,
        operands: [operand(1)?, operand(4)?, operand(6)?],
    }))
}

#[derive(Debug)]
struct QuantizedPair {
    is_product: bool,
    /// Input index of the second tensor.
    b: usize,
    /// The quantization of both inputs and of the result.
    operands: [Operand; 3],
}

/// The input indices of an operand's scale and zero point.
#[derive(Debug)]
struct Operand {
    scale: usize,
    zero_point: Option<usize>,
}

impl Kernel for QuantizedPair {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let (a, b) = (&inputs[0], &inputs[self.b]);
        ensure!(
            matches!(a.element_type, ElementType::U8 | ElementType::I8) && a.element_type == b.element_type,
            "expected two tensors of UINT8 or of INT8"
        );
        let shape = onnx_tensor::shapes::broadcast(&[&a.shape, &b.shape])?;
        Ok(vec![Fact::new(a.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        macro_rules! computed {
            ($T:ty) => {{
                let mut numbers = [(0.0f32, 0.0f32); 3];
                for (number, operand) in numbers.iter_mut().zip(&self.operands) {
                    let scale = elements::<f32>(&inputs[operand.scale])?;
                    let zero_point = match operand.zero_point {
                        Some(place) => elements::<$T>(&inputs[place])?,
                        None => &[0],
                    };
                    let ([scale], [zero_point]) = (scale, zero_point) else {
                        bail!("expected one scale and one zero point for all");
                    };
                    *number = (*scale, f32::from(*zero_point));
                }
                let [(a_scale, a_zero), (b_scale, b_zero), (scale, zero)] = numbers;
                // NaN becomes zero.
                let rounded = |x: f32| {
                    let whole = x
                        .clamp(<$T>::MIN.into(), <$T>::MAX.into())
                        .round_ties_even();
                    low_bits(if whole.is_nan() { 0.0 } else { whole }) as $T
                };
                let (a, b) = (&inputs[0], &inputs[self.b]);
                if self.is_product {
                    let ratio = a_scale * b_scale / scale;
                    combined::<$T>(a, b, move |a, b| {
                        rounded((f32::from(a) - a_zero) * (f32::from(b) - b_zero) * ratio + zero)
                    })?
                } else {
                    let (a_ratio, b_ratio) = (a_scale / scale, b_scale / scale);
                    let fixed = zero - (a_ratio * a_zero + b_ratio * b_zero);
                    combined::<$T>(a, b, move |a, b| {
                        rounded(f32::from(a).mul_add(a_ratio, f32::from(b).mul_add(b_ratio, fixed)))
                    })?
                }
            }};
        }
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::U8 => computed!(u8),
            _ => computed!(i8),
        }])
    }
}

/// Computes one number per pair of elements of two tensors, which are broadcast together.
fn combined<T: Element + Copy>(
    a: &Tensor,
    b: &Tensor,
    function: impl Fn(T, T) -> T + Copy + Sync,
) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return broadcast::<T, true>(a, b, function);
    }
    let (shape, a, b) = (a.shape(), elements::<T>(a)?, elements::<T>(b)?);
    written(shape, |made: &mut [T]| {
        let work = [made.len() as u64, ELEMENTS];
        split::lines(made, LINE, work, |first, made, pace| {
            let b = &b[first * LINE..][..made.len()];
            let mut parts = b.chunks(PART);
            pace.pairs(&a[first * LINE..], made, |a, made| {
                let b = parts.next().unwrap_or_default();
                pulp::Arch::new().dispatch(Pairs { a, b, made, function });
            })
        })
    })
}

/// A loop over elements of two tensors. It owns the function, so that its captured numbers stay in registers.
struct Pairs<'p, T, F> {
    a: &'p [T],
    b: &'p [T],
    made: &'p mut [T],
    function: F,
}

impl<T: Copy, F: Fn(T, T) -> T> pulp::WithSimd for Pairs<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { a, b, made, function } = self;
        for ((made, &a), &b) in made.iter_mut().zip(a).zip(b) {
            *made = function(a, b);
        }
    }
}
