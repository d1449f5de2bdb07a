//! Comparisons of two values, element by element.

use std::sync::Arc;

use tract_hir::internal::*;

use super::pairs::joined;
use crate::{
    lowered::OnnxNode,
    ops::{
        binary::pairs,
        elements::{Element, with_number},
        kernel::{Compute, Fact},
        shapes,
    },
};

/// `Equal`, `Greater`, `GreaterOrEqual`, `Less` or `LessOrEqual`.
pub(crate) fn compare(node: &OnnxNode) -> TractResult<Box<dyn Compute>> {
    Ok(Box::new(Compare::of(&node.op_type)?))
}

/// `Equal`, `Greater`, `GreaterOrEqual`, `Less` and `LessOrEqual`. NaN is unequal to everything.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Compare {
    pub(super) fn of(name: &str) -> TractResult<Self> {
        Ok(match name {
            "Equal" => Self::Equal,
            "Greater" => Self::Greater,
            "GreaterOrEqual" => Self::GreaterOrEqual,
            "Less" => Self::Less,
            "LessOrEqual" => Self::LessOrEqual,
            other => bail!("{other} is not a comparison"),
        })
    }

    fn compared<T: Element + PartialOrd>(
        self,
        a: &Tensor,
        b: &Tensor,
        shape: &[usize],
    ) -> TractResult<Tensor> {
        match self {
            Self::Equal => equal::<T>(a, b, shape),
            Self::Greater => pairs::<T, bool, false>(b, a, shape, |b, a| b < a),
            Self::GreaterOrEqual => pairs::<T, bool, false>(b, a, shape, |b, a| b <= a),
            Self::Less => pairs::<T, bool, false>(a, b, shape, |a, b| a < b),
            Self::LessOrEqual => pairs::<T, bool, false>(a, b, shape, |a, b| a <= b),
        }
    }
}

fn equal<T: Element + PartialEq>(a: &Tensor, b: &Tensor, shape: &[usize]) -> TractResult<Tensor> {
    pairs::<T, bool, false>(a, b, shape, |a, b| a == b)
}

impl Compute for Compare {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        ensure!(inputs.len() == 2, "expected 2 inputs, found {}", inputs.len());
        Ok(Some(vec![Fact::new(DatumType::Bool, joined(inputs)?)]))
    }

    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<TVec<Arc<Tensor>>> {
        let [a, b] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let shape = shapes::broadcast(&[a.shape(), b.shape()])?;
        let made = match (a.datum_type(), self) {
            (DatumType::Bool, Self::Equal) => equal::<bool>(a, b, &shape),
            (DatumType::String, Self::Equal) => equal::<String>(a, b, &shape),
            (number, _) => with_number!(number, T => self.compared::<T>(a, b, &shape)),
        }?;
        Ok(tvec![Arc::new(made)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{faults::BadInput, ops::elements::elements};

    const ALL: [&str; 5] = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

    fn of(name: &str, a: &Tensor, b: &Tensor) -> TractResult<Tensor> {
        let compare = Compare::of(name)?;
        let mut inputs: TVec<Arc<Tensor>> = tvec![Arc::new(a.clone()), Arc::new(b.clone())];
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
        for datum_type in [
            DatumType::F16,
            DatumType::F32,
            DatumType::F64,
            DatumType::U8,
            DatumType::U64,
            DatumType::I16,
            DatumType::I64,
        ] {
            let [a, b] = [tensor1(&[1u8, 2, 3]), tensor1(&[2u8])]
                .map(|numbers| numbers.cast_to_dt(datum_type).unwrap().into_owned());
            assert_eq!(all_of(&a, &b), expected, "{datum_type:?}");
        }
        // They differ in the last bit.
        let close = [tensor0((1i64 << 53) + 1), tensor0(1i64 << 53)];
        assert_eq!(
            all_of(&close[0], &close[1]).concat(),
            [false, true, true, false, false]
        );
        let large = [tensor0(u64::MAX), tensor0(1u64)];
        assert_eq!(
            all_of(&large[0], &large[1]).concat(),
            [false, true, true, false, false]
        );
    }

    #[test]
    fn nan_is_like_nothing_and_zeros_are_equal() {
        let a = tensor1(&[f32::NAN, f32::NAN, 0.0, f32::INFINITY]);
        let b = tensor1(&[f32::NAN, 1.0, -0.0, f32::INFINITY]);
        let (never, equals) = (vec![false; 4], vec![false, false, true, true]);
        assert_eq!(
            all_of(&a, &b),
            [equals.clone(), never.clone(), equals.clone(), never, equals]
        );
    }

    #[test]
    fn truths_and_texts_are_equal_or_not() {
        let texts = |texts: &[&str]| tensor1(&texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        let found = of("Equal", &texts(&["a", "", "ä"]), &texts(&["a", "b", "ä"])).unwrap();
        assert_eq!(found, tensor1(&[true, false, true]));
        let found = of("Equal", &tensor1(&[true, false]), &tensor0(false)).unwrap();
        assert_eq!(found, tensor1(&[false, true]));
        assert!(of("Less", &texts(&["a"]), &texts(&["b"])).is_err());
    }

    #[test]
    fn inputs_that_do_not_fit_together_are_refused() {
        for (a, b) in [
            (tensor1(&[1i64, 2]), tensor1(&[1i64, 2, 3])),
            (tensor1(&[1i64]), tensor1(&[1i32])),
        ] {
            assert!(of("Equal", &a, &b).unwrap_err().is::<BadInput>());
        }
    }
}
