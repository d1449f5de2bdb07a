//! Elementwise functions of two tensors, and their left folds over any number of tensors (`Sum`, `Max`, ...).

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::elementwise::{
    binary::{Function, combined},
    remainder::has_zero,
};
use onnx_tensor::{
    faults::ensure_input,
    node::Node,
    operator::{Compute, Fact},
    shapes,
};

/// Builds an element-wise function of two tensors, such as `Add`.
pub fn pair(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Pair::of(&node.op_type)?))
}

/// The operators `Add`, `And`, `Div`, `Max`, `Min`, `Mul`, `Or`, `Sub`, `Sum` and `Xor`.
#[derive(Debug)]
pub(crate) struct Pair(Function);

impl Pair {
    pub(crate) fn of(name: &str) -> Result<Self> {
        Ok(Self(match name {
            "Add" | "Sum" => Function::Sum,
            "And" => Function::And,
            "Div" => Function::Quotient,
            "Max" => Function::Maximum,
            "Min" => Function::Minimum,
            "Mul" => Function::Product,
            "Or" => Function::Or,
            "Sub" => Function::Difference,
            "Xor" => Function::Xor,
            other => bail!("{other} is not a function of pairs"),
        }))
    }

    /// Returns whether this is the operator `Add` or `Sum`.
    pub(crate) fn is_sum(&self) -> bool {
        self.0 == Function::Sum
    }
}

/// Returns the broadcast shape of inputs of one type.
pub(crate) fn joined(inputs: &[Fact]) -> Result<ShortVec<Dim>> {
    for input in inputs {
        ensure_input!(
            input.element_type == inputs[0].element_type,
            "the inputs have the types {} and {}, expected one type",
            inputs[0].element_type,
            input.element_type
        );
    }
    let shapes: ShortVec<&[Dim]> = inputs.iter().map(|input| &input.shape[..]).collect();
    shapes::broadcast(&shapes)
}

impl Compute for Pair {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        ensure!(!inputs.is_empty(), "expected an input");
        Ok(Some(vec![Fact::new(inputs[0].element_type, joined(inputs)?)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let mut inputs = inputs.drain(..);
        let mut made = inputs.next().context("expected an input")?;
        for mut other in inputs {
            ensure_input!(
                self.0 != Function::Quotient || !has_zero(&other)?,
                "an integer would be divided by zero"
            );
            let shape = shapes::broadcast(&[made.shape(), other.shape()])?;
            // The result is written in place of a value that has the result's shape and no other references.
            let is_free = |value: &mut Arc<Tensor>| {
                *value.shape() == *shape && Arc::get_mut(value).is_some_and(|value| value.is_owned())
            };
            if matches!(self.0, Function::Sum | Function::Product)
                && !is_free(&mut made)
                && is_free(&mut other)
            {
                std::mem::swap(&mut made, &mut other);
            }
            made = combined(self.0, made, &other, &shape)?;
        }
        Ok(smallvec![made])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{elements::elements, faults::BadInput};

    fn of(name: &str, inputs: &[Tensor]) -> Result<Tensor> {
        let pair = Pair::of(name)?;
        let mut inputs: ShortVec<Arc<Tensor>> = inputs.iter().cloned().map(Arc::new).collect();
        let facts = pair.outputs(&Fact::of_values(&inputs))?.unwrap();
        let made = pair.run(&mut inputs)?;
        assert_eq!(made[0].element_type(), facts[0].element_type);
        assert_eq!(shapes::known(&facts[0].shape).unwrap()[..], *made[0].shape());
        Ok((*made[0]).clone())
    }

    #[test]
    fn whole_numbers_wrap_and_are_rounded_towards_zero() {
        let of = |name: &str, a: &[i8], b: &[i8]| {
            let made = of(name, &[Tensor::vector(a), Tensor::vector(b)]).unwrap();
            elements::<i8>(&made).unwrap().to_vec()
        };
        assert_eq!(of("Add", &[127, -128], &[1]), [-128, -127]);
        assert_eq!(of("Sub", &[-128], &[1, -1]), [127, -127]);
        assert_eq!(of("Mul", &[64, 3], &[4, -3]), [0, -9]);
        assert_eq!(of("Div", &[-7, 7, -128], &[2, -2, -1]), [-3, -3, -128]);
        assert_eq!(of("Max", &[-7, 7], &[0]), [0, 7]);
    }

    #[test]
    fn sums_and_products_are_written_over_the_value_that_nobody_else_reads() {
        let (row, rows) = (
            Tensor::vector(&[1.0f32, 2.0]),
            Tensor::matrix(&[[3.0f32, 5.0], [7.0, 11.0]]),
        );
        for (name, wanted, is_in_place) in [
            ("Add", [[4.0f32, 7.0], [8.0, 13.0]], true),
            ("Mul", [[3.0, 10.0], [7.0, 22.0]], true),
            ("Sub", [[-2.0, -3.0], [-6.0, -9.0]], false),
        ] {
            let second = rows.clone().into_arc();
            let place = second.as_bytes().unwrap().as_ptr();
            let mut inputs = smallvec![row.clone().into_arc(), second];
            let made = Pair::of(name).unwrap().run(&mut inputs).unwrap().remove(0);
            assert_eq!(*made, Tensor::matrix(&wanted));
            assert_eq!(made.as_bytes().unwrap().as_ptr() == place, is_in_place, "{name}");
        }
        let held = rows.clone().into_arc();
        let mut inputs = smallvec![row.into_arc(), held.clone()];
        Pair::of("Add").unwrap().run(&mut inputs).unwrap();
        assert_eq!(*held, rows);
    }

    #[test]
    fn halves_are_numbers_of_their_own() {
        let half = |numbers: &[f32]| {
            let numbers: Vec<f16> = numbers.iter().map(|&number| f16::from_f32(number)).collect();
            Tensor::vector(&numbers)
        };
        let large = half(&[60_000.0, 1.0, -1.0]);
        let sum = of("Add", &[large.clone(), large.clone()]).unwrap();
        assert_eq!(sum, half(&[f32::INFINITY, 2.0, -2.0]));
        let quotient = of("Div", &[large, half(&[0.0])]).unwrap();
        assert_eq!(quotient, half(&[f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY]));
    }

    #[test]
    fn division_by_zero_is_refused_of_whole_numbers_only() {
        let error = of("Div", &[Tensor::vector(&[1u32]), Tensor::vector(&[1u32, 0])]).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
        let of_nothing = of("Div", &[Tensor::vector::<i64>(&[]), Tensor::vector(&[0i64])]);
        assert!(of_nothing.is_err());
        let quotient = of(
            "Div",
            &[Tensor::vector(&[1.0f32, -1.0, 0.0]), Tensor::vector(&[0.0f32])],
        )
        .unwrap();
        let quotient = elements::<f32>(&quotient).unwrap();
        assert!(quotient[0] == f32::INFINITY && quotient[1] == f32::NEG_INFINITY && quotient[2].is_nan());
    }

    #[test]
    fn lists_are_broadcast_together_and_keep_nan() {
        let lists = [
            Tensor::matrix(&[[1.0f32], [f32::NAN]]),
            Tensor::vector(&[0.5f32, 2.0, f32::NEG_INFINITY]),
            Tensor::scalar(1.5f32),
        ];
        let max = of("Max", &lists).unwrap();
        assert_eq!(max.shape(), [2, 3]);
        let max = elements::<f32>(&max).unwrap();
        assert_eq!(max[..3], [1.5, 2.0, 1.5]);
        assert!(max[3..].iter().all(|number| number.is_nan()), "{max:?}");
        let sum = of("Sum", &lists).unwrap();
        assert_eq!(elements::<f32>(&sum).unwrap()[..3], [3.0, 4.5, f32::NEG_INFINITY]);
        assert_eq!(of("Min", &lists[2..]).unwrap(), lists[2]);
        let whole = [Tensor::vector(&[i64::MAX, 3]), Tensor::vector(&[7i64])];
        assert_eq!(of("Min", &whole).unwrap(), Tensor::vector(&[7i64, 3]));
    }

    #[test]
    fn truths_are_combined() {
        let (a, b) = (
            Tensor::vector(&[true, true, false, false]),
            Tensor::vector(&[true, false, true, false]),
        );
        for (name, expected) in [
            ("And", [true, false, false, false]),
            ("Or", [true, true, true, false]),
            ("Xor", [false, true, true, false]),
        ] {
            assert_eq!(
                of(name, &[a.clone(), b.clone()]).unwrap(),
                Tensor::vector(&expected),
                "{name}"
            );
        }
        assert_eq!(
            of("Or", &[Tensor::scalar(true), Tensor::vector::<bool>(&[])])
                .unwrap()
                .len(),
            0
        );
    }

    #[test]
    fn truths_are_broadcast_in_both_directions() {
        let bits = |count: u32, step: u32| -> Vec<bool> {
            (0..count).map(|at| (at * at / step).is_multiple_of(2)).collect()
        };
        let (table, column, row) = (bits(3 * 37, 3), bits(3, 1), bits(37, 5));
        let of_shape = |values: &[bool], shape: &[usize]| Tensor::vector(values).into_shape(shape).unwrap();
        let whole = of_shape(&table, &[3, 37]);
        for (name, function) in [
            ("And", (|a, b| a & b) as fn(bool, bool) -> bool),
            ("Or", |a, b| a | b),
            ("Xor", |a, b| a ^ b),
        ] {
            for (other, at) in [
                (of_shape(&column, &[3, 1]), (|at| at / 37) as fn(usize) -> usize),
                (of_shape(&row, &[37]), |at| at % 37),
            ] {
                let values = elements::<bool>(&other).unwrap();
                let expected: Vec<bool> = (0..table.len())
                    .map(|index| function(table[index], values[at(index)]))
                    .collect();
                let expected = of_shape(&expected, &[3, 37]);
                assert_eq!(
                    of(name, &[whole.clone(), other.clone()]).unwrap(),
                    expected,
                    "{name}"
                );
                assert_eq!(
                    of(name, &[other.clone(), whole.clone()]).unwrap(),
                    expected,
                    "{name}"
                );
                // In place of an input without other references.
                let mut inputs = smallvec![whole.copied().unwrap().into_arc(), other.into_arc()];
                let made = Pair::of(name).unwrap().run(&mut inputs).unwrap();
                assert_eq!(*made[0], expected, "{name}");
            }
        }
        let numbers = Tensor::vector(&[1u8, 2]);
        assert!(of("And", &[numbers.clone(), numbers]).is_err());
    }

    #[test]
    fn quotients_of_whole_numbers_are_exact() {
        let ends = [
            i32::MIN,
            i32::MIN + 1,
            -1_000_003,
            -7,
            -1,
            1,
            2,
            3,
            7,
            65_537,
            i32::MAX - 1,
            i32::MAX,
        ];
        let dividends: Vec<i32> = (0..1000i32)
            .map(|at| at.wrapping_mul(2_147_001_325).wrapping_add(at))
            .chain(ends)
            .chain([0])
            .collect();
        for divisor in ends {
            for dividends in [&dividends[..], &dividends[..5]] {
                let expected: Vec<i32> = dividends.iter().map(|a| a.wrapping_div(divisor)).collect();
                let made = of("Div", &[Tensor::vector(dividends), Tensor::vector(&[divisor])]).unwrap();
                assert_eq!(made, Tensor::vector(&expected), "{divisor}");
                let expected: Vec<i64> = dividends
                    .iter()
                    .map(|a| i64::from(*a).wrapping_div(divisor.into()))
                    .collect();
                let wide: Vec<i64> = dividends.iter().map(|a| i64::from(*a)).collect();
                let made = of(
                    "Div",
                    &[Tensor::vector(&wide), Tensor::vector(&[i64::from(divisor)])],
                );
                assert_eq!(made.unwrap(), Tensor::vector(&expected), "{divisor}");
            }
        }
    }

    #[test]
    fn inputs_that_do_not_fit_together_are_refused() {
        for inputs in [
            [
                Tensor::vector(&[1.0f32, 2.0]),
                Tensor::vector(&[1.0f32, 2.0, 3.0]),
            ],
            [Tensor::vector(&[1.0f32]), Tensor::vector(&[1i32])],
        ] {
            let error = of("Add", &inputs).unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
    }
}
