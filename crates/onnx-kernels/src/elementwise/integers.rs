//! Functions of integers, whose overflow wraps around.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::binary::broadcast;
use onnx_tensor::{
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    node::Node,
    operator::Compute,
    split::{self, LINE},
};

/// Evaluates `$body` with `$T` bound to the Rust type of an integer element type.
macro_rules! with_whole {
    ($element_type:expr, $T:ident => $body:expr) => {
        with_whole!(@match $element_type, $T => $body, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (@match $element_type:expr, $T:ident => $body:expr, $($name:ident $type:ty),*) => {
        match $element_type {
            $(ElementType::$name => {
                type $T = $type;
                $body
            })*
            other => bail!("{other:?} is not an integer"),
        }
    };
}

pub(crate) use with_whole;

/// Builds the operator `Abs`, `Neg`, `Sign`, `Shrink` or `BitwiseNot`.
pub fn bitwise_not(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Function::new(node)?))
}

/// A function of one integer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    Magnitude,
    Negation,
    Sign,
    Complement,
    Shrink {
        lambd: f64,
        bias: f64,
    },
    /// Computes `max(x, 0)`.
    Positive,
}

impl Function {
    /// Finds the function by the operator's name.
    pub(crate) fn new(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        Ok(match node.op_type.as_str() {
            "Abs" => Self::Magnitude,
            "Neg" => Self::Negation,
            "Sign" => Self::Sign,
            "BitwiseNot" => Self::Complement,
            "Relu" => Self::Positive,
            "Shrink" => Self::Shrink {
                lambd: attributes.float("lambd", 0.5).into(),
                bias: attributes.float("bias", 0.0).into(),
            },
            other => bail!("{other} is not a function of integers"),
        })
    }

    /// Applies the function, in place where the tensor owns its elements.
    pub(crate) fn replaced(self, numbers: Arc<Tensor>) -> Result<Arc<Tensor>> {
        let work = [numbers.len() as u64, split::ELEMENTS];
        with_whole!(numbers.element_type(), T => {
            split::replaced(numbers, LINE, work, |_, numbers: &mut [T], pace| {
                pace.over(numbers, |numbers| {
                    numbers.iter_mut().for_each(|x| *x = self.of((*x).into()) as T);
                })
            })
        })
    }

    /// Computes the exact result for `x`. The caller keeps its low bits.
    #[inline(always)]
    fn of(self, x: i128) -> i128 {
        match self {
            Self::Magnitude => x.abs(),
            Self::Negation => -x,
            Self::Sign => x.signum(),
            Self::Complement => !x,
            Self::Positive => x.max(0),
            Self::Shrink { lambd, .. } if (x as f64).abs() <= lambd => 0,
            Self::Shrink { lambd, bias } if x as f64 > lambd => (x as f64 - bias) as i128,
            Self::Shrink { lambd, bias } if (x as f64) < -lambd => (x as f64 + bias) as i128,
            Self::Shrink { .. } => 0,
        }
    }
}

impl Compute for Function {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        Ok(Some(vec![input.with(input.element_type)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let numbers = inputs.pop().context("expected an input")?;
        Ok(smallvec![self.replaced(numbers)?])
    }
}

/// Builds the operator `BitwiseAnd`, `BitwiseOr` or `BitwiseXor`.
pub fn bits(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(match node.op_type.as_str() {
        "BitwiseAnd" => Bits::And,
        "BitwiseOr" => Bits::Or,
        "BitwiseXor" => Bits::Xor,
        other => bail!("{other} is not a function of bits"),
    }))
}

#[derive(Clone, Copy, Debug)]
enum Bits {
    And,
    Or,
    Xor,
}

impl Kernel for Bits {
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
        let made = with_whole!(a.element_type(), T => match self {
            Self::And => broadcast::<T, false>(a, b, |a, b| a & b)?,
            Self::Or => broadcast::<T, false>(a, b, |a, b| a | b)?,
            Self::Xor => broadcast::<T, false>(a, b, |a, b| a ^ b)?,
        });
        Ok(smallvec![made])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::elements;

    fn of<T: Element + Copy>(function: Function, numbers: &[T]) -> Vec<T> {
        let mut inputs = smallvec![Arc::new(Tensor::vector(numbers))];
        let made = function.run(&mut inputs).unwrap();
        elements::<T>(&made[0]).unwrap().to_vec()
    }

    #[test]
    fn the_least_number_has_no_magnitude_of_its_own() {
        assert_eq!(of(Function::Magnitude, &[i64::MIN, -5]), [i64::MIN, 5]);
        assert_eq!(of(Function::Negation, &[i8::MIN, 7]), [i8::MIN, -7]);
        assert_eq!(of(Function::Magnitude, &[u64::MAX]), [u64::MAX]);
    }

    #[test]
    fn signs_and_complements_are_of_all_types() {
        assert_eq!(of(Function::Sign, &[0u32, 5]), [0, 1]);
        assert_eq!(of(Function::Sign, &[-7i16, 0, 9]), [-1, 0, 1]);
        assert_eq!(of(Function::Complement, &[5u8, 0]), [250, 255]);
        assert_eq!(of(Function::Complement, &[5i64]), [-6]);
    }

    #[test]
    fn what_is_small_shrinks_to_nothing() {
        let shrink = Function::Shrink {
            lambd: 1.5,
            bias: 1.5,
        };
        assert_eq!(of(shrink, &[-3i32, -1, 0, 1, 4]), [-1, 0, 0, 0, 2]);
        assert_eq!(of(shrink, &[0u8, 1, 4]), [0, 0, 2]);
    }
}
