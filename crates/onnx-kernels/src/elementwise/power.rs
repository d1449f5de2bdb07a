//! The operators `Pow`, `Mean` and `BitShift`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::{
    binary::broadcast,
    powers::{self, raised},
};
use onnx_tensor::{cancelling::Pace, faults::Unsupported, node::Node, operator::Compute};
use onnx_tensor::{
    elements::of_type,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `Pow`.
pub fn power(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Pow))
}

fn broadcast_shape(inputs: &[Fact]) -> Result<ShortVec<Dim>> {
    let shapes: Vec<&[Dim]> = inputs.iter().map(|input| &*input.shape).collect();
    onnx_tensor::shapes::broadcast(&shapes)
}

#[derive(Debug)]
struct Pow;

impl Kernel for Pow {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [base, exponent] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(exponent.element_type.is_number(), "the exponent is not a number");
        Ok(vec![Fact::new(base.element_type, broadcast_shape(inputs)?)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (base, exponent) = (&inputs[0], &inputs[1]);
        let element_type = base.element_type();
        let powers = if element_type.is_integer() && exponent.element_type().is_integer() {
            broadcast::<_, false>(
                &*base.cast_to::<i64>()?,
                &*exponent.cast_to::<i64>()?,
                whole_power,
            )?
        } else if [base, exponent].map(|input| input.element_type()) == [ElementType::F32; 2] {
            powers::singles(base, exponent)?
        } else {
            broadcast::<_, false>(&*base.cast_to::<f64>()?, &*exponent.cast_to::<f64>()?, raised)?
        };
        Ok(smallvec![of_type(powers, element_type)?])
    }
}

/// Computes an integer power. Results that overflow or have a fraction are converted as in a cast from float.
fn whole_power(base: i64, exponent: i64) -> i64 {
    let exact = u32::try_from(exponent)
        .ok()
        .and_then(|exponent| base.checked_pow(exponent));
    exact.unwrap_or_else(|| (base as f64).powf(exponent as f64) as i64)
}

/// Builds the operator `Mean` for any number of tensors.
pub fn mean(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Mean))
}

#[derive(Debug)]
struct Mean;

impl Kernel for Mean {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let element_type = inputs[0].element_type;
        let is_same = inputs.iter().all(|input| input.element_type == element_type);
        ensure!(is_same, "the inputs have different types");
        Ok(vec![Fact::new(element_type, broadcast_shape(inputs)?)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        macro_rules! mean {
            ($T:ty) => {{
                let mut sum = inputs[0].copied()?;
                for other in &inputs[1..] {
                    sum = broadcast::<$T, true>(&sum, other, |a, b| a + b)?;
                }
                let count = inputs.len() as $T;
                let means = sum.as_slice_mut::<$T>()?;
                Pace::default().over(means, |sums| sums.iter_mut().for_each(|sum| *sum /= count))?;
                sum
            }};
        }
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::F64 => mean!(f64),
            _ => mean!(f32),
        }])
    }
}

/// Builds the operator `BitShift` for unsigned integers.
pub fn bit_shift(node: &Node) -> Result<Box<dyn Compute>> {
    let goes_left = match Attributes(node).text("direction", "") {
        "LEFT" => true,
        "RIGHT" => false,
        other => bail!("the direction is {other:?}, expected \"LEFT\" or \"RIGHT\""),
    };
    Ok(kernel(BitShift { goes_left }))
}

#[derive(Debug)]
struct BitShift {
    goes_left: bool,
}

impl Kernel for BitShift {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let element_type = inputs[0].element_type;
        let is_same = inputs.iter().all(|input| input.element_type == element_type);
        if !element_type.is_unsigned() {
            bail!(Unsupported::Anywhere(
                "is supported for unsigned integers only".to_owned()
            ));
        }
        ensure!(is_same, "the inputs have different types");
        Ok(vec![Fact::new(element_type, broadcast_shape(inputs)?)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        macro_rules! shifted {
            ($T:ty) => {
                broadcast::<$T, false>(&inputs[0], &inputs[1], |value, count| {
                    let count = u32::try_from(u64::from(count)).unwrap_or(u32::MAX);
                    let shifted = match self.goes_left {
                        true => value.checked_shl(count),
                        false => value.checked_shr(count),
                    };
                    shifted.unwrap_or(0)
                })?
            };
        }
        // Each type has its own loop, since a conversion of bytes to UINT64 would take eight times the
        // memory.
        Ok(smallvec![match inputs[0].element_type() {
            ElementType::U8 => shifted!(u8),
            ElementType::U16 => shifted!(u16),
            ElementType::U32 => shifted!(u32),
            _ => shifted!(u64),
        }])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::elements;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    fn run<T: Element + Copy>(kernel: &dyn Kernel, inputs: Vec<Tensor>) -> Vec<T> {
        let inputs: Vec<Arc<Tensor>> = inputs.into_iter().map(Arc::new).collect();
        let outputs = kernel.run(&inputs).unwrap();
        elements::<T>(&outputs[0]).unwrap().to_vec()
    }

    #[test]
    fn powers_have_the_type_of_their_base() {
        let whole = run::<i64>(
            &Pow,
            vec![
                Tensor::vector(&[2i64, -3, 0, 2, 10]),
                Tensor::vector(&[62i64, 3, 0, -1, 40]),
            ],
        );
        assert_eq!(whole, [1 << 62, -27, 1, 0, i64::MAX]);
        assert_eq!(
            run::<i32>(&Pow, vec![Tensor::vector(&[2i32, 9]), Tensor::vector(&[0.5f32])]),
            [1, 3]
        );
        assert_eq!(
            run::<f32>(
                &Pow,
                vec![Tensor::vector(&[1.5f32, -2.0]), Tensor::vector(&[2i64, 3])]
            ),
            [2.25, -8.0]
        );
    }

    #[test]
    fn powers_end_with_their_request() {
        let numbers = Tensor::zero::<f64>(&[1 << 19]).unwrap();
        let inputs = [&numbers, &numbers].map(|tensor| Arc::new(tensor.clone()));
        assert!(
            while_cancelled(|| Pow.run(&inputs))
                .unwrap_err()
                .is::<Cancelled>()
        );
    }

    #[test]
    fn means_are_of_all_that_is_repeated() {
        let inputs = vec![
            Tensor::matrix(&[[1.0f32], [3.0]]),
            Tensor::vector(&[3.0f32, 5.0]),
            Tensor::vector(&[2.0f32]),
        ];
        assert_eq!(run::<f32>(&Mean, inputs), [2.0, 8.0 / 3.0, 8.0 / 3.0, 10.0 / 3.0]);
    }

    #[test]
    fn signed_integers_are_shifted_by_no_runtime() {
        let signed = || Fact::new(ElementType::I32, [2.to_dim()]);
        let error = BitShift { goes_left: true }.outputs(&[signed(), signed()]);
        let error = error.unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(Unsupported::Anywhere(_))),
            "{error}"
        );
    }

    #[test]
    fn what_is_shifted_out_is_gone() {
        let left = BitShift { goes_left: true };
        assert_eq!(
            run::<u8>(
                &left,
                vec![Tensor::vector(&[255u8, 1, 7]), Tensor::vector(&[1u8, 8, 200])]
            ),
            [254, 0, 0]
        );
        let right = BitShift { goes_left: false };
        assert_eq!(
            run::<u64>(
                &right,
                vec![Tensor::vector(&[1u64 << 63]), Tensor::vector(&[63u64, 64])]
            ),
            [1, 0]
        );
    }
}
