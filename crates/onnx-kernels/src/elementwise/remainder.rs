//! The operator `Mod` of integers and floats.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::binary::broadcast;
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::BadInput,
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `Mod`.
pub fn remainder(node: &Node) -> Result<Box<dyn Compute>> {
    let truncates = Attributes(node).int("fmod", 0) != 0;
    Ok(kernel(Remainder { truncates }))
}

#[derive(Debug)]
struct Remainder {
    /// Whether the result has the sign of the dividend, as in C (`fmod`), instead of the sign of the divisor.
    truncates: bool,
}

impl Kernel for Remainder {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [a, b] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(
            a.element_type == b.element_type,
            "the inputs have different types"
        );
        let shape = onnx_tensor::shapes::broadcast(&[&a.shape, &b.shape])?;
        Ok(vec![Fact::new(a.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        macro_rules! integer {
            ($T:ty) => {{
                broadcast::<$T, false>(a, b, |a, b| {
                    // The only overflow is `MIN % -1`, whose remainder is 0.
                    let remainder = a.checked_rem(b).unwrap_or(0);
                    match self.truncates || remainder == 0 || (remainder < 0 as $T) == (b < 0 as $T) {
                        true => remainder,
                        false => remainder.wrapping_add(b),
                    }
                })
            }};
        }
        macro_rules! float {
            ($T:ty) => {
                broadcast::<$T, false>(a, b, |a, b| a % b)
            };
        }
        if has_zero(b)? {
            bail!(BadInput(
                "a remainder of a division by zero is not defined".to_owned()
            ));
        }
        Ok(smallvec![match a.element_type() {
            ElementType::U8 => integer!(u8)?,
            ElementType::U16 => integer!(u16)?,
            ElementType::U32 => integer!(u32)?,
            ElementType::U64 => integer!(u64)?,
            ElementType::I8 => integer!(i8)?,
            ElementType::I16 => integer!(i16)?,
            ElementType::I32 => integer!(i32)?,
            ElementType::I64 => integer!(i64)?,
            ElementType::F16 => float!(f16)?,
            ElementType::F32 => float!(f32)?,
            _ => float!(f64)?,
        }])
    }
}

/// Returns whether an integer tensor contains a zero.
pub(crate) fn has_zero(tensor: &Tensor) -> Result<bool> {
    if !tensor.element_type().is_integer() {
        return Ok(false);
    }
    let size = tensor.element_type().size_of().max(1);
    let mut pace = Pace::default();
    for part in tensor.as_bytes()?.chunks(PART * size) {
        pace.spend(part.len() as u64)?;
        let mut numbers = part.chunks_exact(size);
        if numbers.any(|bytes| bytes.iter().all(|&byte| byte == 0)) {
            return Ok(true);
        }
    }
    Ok(false)
}
