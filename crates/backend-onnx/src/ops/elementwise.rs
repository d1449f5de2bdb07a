//! Element by element: what tract lacks for some types, or gets wrong.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    binary::broadcast,
    elements::elements,
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    cancelling::{PART, Pace},
    faults::BadInput,
    lowered::OnnxNode,
    ops::kernel::Compute,
};

/// `Mod`: tract's is wrong for unsigned integers.
pub(crate) fn remainder(node: &OnnxNode) -> TractResult<Box<dyn Compute>> {
    let truncates = Attributes(node).int("fmod", 0) != 0;
    Ok(kernel(Remainder { truncates }))
}

#[derive(Debug)]
struct Remainder {
    /// Whether the sign is the dividend's, as C has it, rather than the divisor's.
    truncates: bool,
}

impl Kernel for Remainder {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [a, b] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(a.datum_type == b.datum_type, "the inputs have different types");
        let shape = tract_core::broadcast::multi_broadcast(&[&a.shape, &b.shape])?;
        Ok(vec![Fact::new(a.datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        macro_rules! integer {
            ($T:ty) => {{
                broadcast::<$T, false>(a, b, |a, b| {
                    // The one overflow, MIN % -1, is 0.
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
        Ok(tvec![match a.datum_type() {
            DatumType::U8 => integer!(u8)?,
            DatumType::U16 => integer!(u16)?,
            DatumType::U32 => integer!(u32)?,
            DatumType::U64 => integer!(u64)?,
            DatumType::I8 => integer!(i8)?,
            DatumType::I16 => integer!(i16)?,
            DatumType::I32 => integer!(i32)?,
            DatumType::I64 => integer!(i64)?,
            DatumType::F16 => float!(f16)?,
            DatumType::F32 => float!(f32)?,
            _ => float!(f64)?,
        }])
    }
}

/// Whether any element of a tensor is an integer, or a dimension, that is zero.
pub(crate) fn has_zero(tensor: &Tensor) -> TractResult<bool> {
    if let Ok(dims) = elements::<TDim>(tensor) {
        return Ok(dims.iter().any(|dim| *dim == TDim::Val(0)));
    }
    if !tensor.datum_type().is_integer() {
        return Ok(false);
    }
    let size = tensor.datum_type().size_of().max(1);
    let mut pace = Pace::default();
    for part in tensor.as_bytes().chunks(PART * size) {
        pace.spend(part.len() as u64)?;
        let mut numbers = part.chunks_exact(size);
        if numbers.any(|bytes| bytes.iter().all(|&byte| byte == 0)) {
            return Ok(true);
        }
    }
    Ok(false)
}
