//! Element-wise comparisons.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::binary::pairs;
use crate::elementwise::pairs::joined;
use onnx_tensor::shapes;
use onnx_tensor::{
    node::Node,
    operator::{Compute, Fact},
};

/// Builds the operator `Equal`, `Greater`, `GreaterOrEqual`, `Less` or `LessOrEqual`.
pub fn compare(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Compare::of(&node.op_type)?))
}

/// The operators `Equal`, `Greater`, `GreaterOrEqual`, `Less` and `LessOrEqual`. NaN is unequal to all
/// numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Compare {
    pub(crate) fn of(name: &str) -> Result<Self> {
        Ok(match name {
            "Equal" => Self::Equal,
            "Greater" => Self::Greater,
            "GreaterOrEqual" => Self::GreaterOrEqual,
            "Less" => Self::Less,
            "LessOrEqual" => Self::LessOrEqual,
            other => bail!("{other} is not a comparison"),
        })
    }

    /// Compares elements of rare types, with one loop for all comparisons.
    fn compared_apart<T: Element + PartialOrd>(
        self,
        a: &Tensor,
        b: &Tensor,
        shape: &[usize],
    ) -> Result<Tensor> {
        let holds: fn(&T, &T) -> bool = match self {
            Self::Equal => T::eq,
            Self::Greater => T::gt,
            Self::GreaterOrEqual => T::ge,
            Self::Less => T::lt,
            Self::LessOrEqual => T::le,
        };
        pairs::<T, bool, false>(a, b, shape, holds)
    }

    /// Compares elements of usual types. See [`broadcast`](crate::elementwise::binary::broadcast) for `IS_WIDE`.
    fn compared<T: Element + PartialOrd, const IS_WIDE: bool>(
        self,
        a: &Tensor,
        b: &Tensor,
        shape: &[usize],
    ) -> Result<Tensor> {
        match self {
            Self::Equal => pairs::<T, bool, IS_WIDE>(a, b, shape, |a, b| a == b),
            Self::Greater => pairs::<T, bool, IS_WIDE>(b, a, shape, |b, a| b < a),
            Self::GreaterOrEqual => pairs::<T, bool, IS_WIDE>(b, a, shape, |b, a| b <= a),
            Self::Less => pairs::<T, bool, IS_WIDE>(a, b, shape, |a, b| a < b),
            Self::LessOrEqual => pairs::<T, bool, IS_WIDE>(a, b, shape, |a, b| a <= b),
        }
    }
}

fn equal<T: Element + PartialEq>(a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
    pairs::<T, bool, false>(a, b, shape, |a, b| a == b)
}

impl Compute for Compare {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        ensure!(inputs.len() == 2, "expected 2 inputs, found {}", inputs.len());
        Ok(Some(vec![Fact::new(ElementType::Bool, joined(inputs)?)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let [a, b] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let shape = shapes::broadcast(&[a.shape(), b.shape()])?;
        let made = match (a.element_type(), self) {
            (ElementType::Bool, Self::Equal) => equal::<bool>(a, b, &shape),
            (ElementType::String, Self::Equal) => equal::<String>(a, b, &shape),
            (ElementType::F32, _) => self.compared::<f32, false>(a, b, &shape),
            (ElementType::I32, _) => self.compared::<i32, false>(a, b, &shape),
            // Unlike sums, comparisons of 64-bit integers are not in the baseline of x86-64.
            (ElementType::I64, _) => self.compared::<i64, true>(a, b, &shape),
            (ElementType::U8, _) => self.compared::<u8, false>(a, b, &shape),
            (number, _) => with_number!(number, T => self.compared_apart::<T>(a, b, &shape)),
        }?;
        Ok(smallvec![Arc::new(made)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{elements::elements, faults::BadInput};

    const ALL: [&str; 5] = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

    fn of(name: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let compare = Compare::of(name)?;
        let mut inputs: ShortVec<Arc<Tensor>> = smallvec![Arc::new(a.clone()), Arc::new(b.clone())];
        compare.outputs(&Fact::of_values(&inputs))?;
        Ok((*compare.run(&mut inputs)?[0]).clone())
    }

    fn all_of(a: &Tensor, b: &Tensor) -> [Vec<bool>; 5] {
        ALL.map(|name| elements::<bool>(&of(name, a, b).unwrap()).unwrap().to_vec())
    }

    #[test]
    fn numbers_of_all_types_are_compared() {
        let expected = [
            vec![false, true, false],
            vec![false, false, true],
            vec![false, true, true],
            vec![true, false, false],
            vec![true, true, false],
        ];
        for element_type in [
            ElementType::F16,
            ElementType::F32,
            ElementType::F64,
            ElementType::U8,
            ElementType::U64,
            ElementType::I16,
            ElementType::I64,
        ] {
            let [a, b] = [Tensor::vector(&[1u8, 2, 3]), Tensor::vector(&[2u8])]
                .map(|numbers| numbers.cast_to_type(element_type).unwrap().into_owned());
            assert_eq!(all_of(&a, &b), expected, "{element_type:?}");
        }
        // The two INT64 numbers differ only in the last bit.
        let close = [Tensor::scalar((1i64 << 53) + 1), Tensor::scalar(1i64 << 53)];
        assert_eq!(
            all_of(&close[0], &close[1]).concat(),
            [false, true, true, false, false]
        );
        let large = [Tensor::scalar(u64::MAX), Tensor::scalar(1u64)];
        assert_eq!(
            all_of(&large[0], &large[1]).concat(),
            [false, true, true, false, false]
        );
    }

    #[test]
    fn nan_is_like_nothing_and_zeros_are_equal() {
        let a = Tensor::vector(&[f32::NAN, f32::NAN, 0.0, f32::INFINITY]);
        let b = Tensor::vector(&[f32::NAN, 1.0, -0.0, f32::INFINITY]);
        let (never, equals) = (vec![false; 4], vec![false, false, true, true]);
        assert_eq!(
            all_of(&a, &b),
            [equals.clone(), never.clone(), equals.clone(), never, equals]
        );
    }

    #[test]
    fn truths_and_texts_are_equal_or_not() {
        let texts =
            |texts: &[&str]| Tensor::vector(&texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        let found = of("Equal", &texts(&["a", "", "ä"]), &texts(&["a", "b", "ä"])).unwrap();
        assert_eq!(found, Tensor::vector(&[true, false, true]));
        let found = of("Equal", &Tensor::vector(&[true, false]), &Tensor::scalar(false)).unwrap();
        assert_eq!(found, Tensor::vector(&[false, true]));
        assert!(of("Less", &texts(&["a"]), &texts(&["b"])).is_err());
    }

    #[test]
    fn inputs_that_do_not_fit_together_are_refused() {
        for (a, b) in [
            (Tensor::vector(&[1i64, 2]), Tensor::vector(&[1i64, 2, 3])),
            (Tensor::vector(&[1i64]), Tensor::vector(&[1i32])),
        ] {
            assert!(of("Equal", &a, &b).unwrap_err().is::<BadInput>());
        }
    }
}
