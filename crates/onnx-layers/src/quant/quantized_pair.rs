//! ONNX Runtime's `QLinearAdd` and `QLinearMul`. They round at the same steps as ONNX Runtime, since many
//! quantized results are ties.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::quant::quantize::low_bits;
use onnx_kernels::elementwise::broadcast;
use onnx_tensor::{
    elements::elements,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
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
                    let inside = x.clamp(<$T>::MIN.into(), <$T>::MAX.into());
                    low_bits(if inside.is_nan() { 0.0 } else { inside }) as $T
                };
                let (a, b) = (&inputs[0], &inputs[self.b]);
                if self.is_product {
                    let ratio = a_scale * b_scale / scale;
                    broadcast::<$T, true>(a, b, move |a, b| {
                        rounded((f32::from(a) - a_zero) * (f32::from(b) - b_zero) * ratio + zero)
                    })?
                } else {
                    let (a_ratio, b_ratio) = (a_scale / scale, b_scale / scale);
                    let fixed = zero - (a_ratio * a_zero + b_ratio * b_zero);
                    broadcast::<$T, true>(a, b, move |a, b| {
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
