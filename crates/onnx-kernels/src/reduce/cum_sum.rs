//! The operator `CumSum`, whose axis is an input.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis,
    elements::{copied, scalar, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
};

/// Builds the operator `CumSum`. Integers wrap.
pub fn cum_sum(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(CumSum {
        is_exclusive: attributes.int("exclusive", 0) != 0,
        is_reverse: attributes.int("reverse", 0) != 0,
    }))
}

#[derive(Debug)]
struct CumSum {
    /// Whether each element is excluded from its own sum (`exclusive`).
    is_exclusive: bool,
    is_reverse: bool,
}

impl Kernel for CumSum {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, axis] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(axis.rank() <= 1, "an axis of {} dimensions", axis.rank());
        if !input.element_type.is_number() {
            bail!(Unsupported::Anywhere("is supported for numbers only".to_owned()));
        }
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let (axis, rank) = (scalar::<i64>(&inputs[1])?, input.rank());
        let axis = axis::find(axis, rank)
            .ok_or_else(|| BadInput(format!("axis {axis} of a CumSum of {rank} dimensions")))?;
        macro_rules! sums {
            ($($name:ident $type:ty: $add:expr),*) => {
                match input.element_type() {
                    $(ElementType::$name => self.sums::<$type>(input, axis, $add)?,)*
                    other => bail!("{other:?} is not a number"),
                }
            };
        }
        let made = sums!(
            F16 f16: |a, b| a + b, F32 f32: |a, b| a + b, F64 f64: |a, b| a + b,
            U8 u8: u8::wrapping_add, U16 u16: u16::wrapping_add, U32 u32: u32::wrapping_add, U64 u64: u64::wrapping_add,
            I8 i8: i8::wrapping_add, I16 i16: i16::wrapping_add, I32 i32: i32::wrapping_add, I64 i64: i64::wrapping_add
        );
        Ok(smallvec![made])
    }
}

impl CumSum {
    fn sums<T: Element + Copy + Default>(
        &self,
        input: &Tensor,
        axis: usize,
        add: fn(T, T) -> T,
    ) -> Result<Tensor> {
        let shape = input.shape();
        let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let mut sums = copied::<T>(input)?;
        let mut before = vec![T::default(); inner];
        let rows = (PART / inner.max(1)).max(1);
        let mut pace = Pace::default();
        for block in sums.chunks_exact_mut((size * inner).max(1)) {
            before.fill(T::default());
            for step in 0..size {
                if step % rows == 0 {
                    pace.spend((rows.min(size - step) * inner) as u64)?;
                }
                let row = if self.is_reverse { size - 1 - step } else { step };
                let row = &mut block[row * inner..][..inner];
                for (element, before) in row.iter_mut().zip(&mut before) {
                    let sum = add(*before, *element);
                    *element = if self.is_exclusive { *before } else { sum };
                    *before = sum;
                }
            }
        }
        tensor(shape, sums)
    }
}
