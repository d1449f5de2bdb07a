//! Casts tensors between datatypes.

use std::fmt::Display;

use tensor_core::{DType, Element, Naming, Tensor, bf16, f16};

/// A value of any datatype.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Integer(i128),
    Float(f64),
}

/// Casts a tensor's elements. Floats are rounded to nearest; integers, and floats converted to integers, must
/// be exact.
pub(super) fn cast(tensor: &Tensor, to: DType) -> Result<Tensor, String> {
    if tensor.spec().dtype() == to {
        return Ok(tensor.clone());
    }
    let numbers = numbers(tensor)?;
    match to {
        DType::Bool => integers(tensor, &numbers, |number| match number {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }),
        DType::U8 => integers::<u8>(tensor, &numbers, |number| number.try_into().ok()),
        DType::U16 => integers::<u16>(tensor, &numbers, |number| number.try_into().ok()),
        DType::U32 => integers::<u32>(tensor, &numbers, |number| number.try_into().ok()),
        DType::U64 => integers::<u64>(tensor, &numbers, |number| number.try_into().ok()),
        DType::I8 => integers::<i8>(tensor, &numbers, |number| number.try_into().ok()),
        DType::I16 => integers::<i16>(tensor, &numbers, |number| number.try_into().ok()),
        DType::I32 => integers::<i32>(tensor, &numbers, |number| number.try_into().ok()),
        DType::I64 => integers::<i64>(tensor, &numbers, |number| number.try_into().ok()),
        DType::F16 => floats(tensor, &numbers, f16::from_f64, f16::is_infinite),
        DType::BF16 => floats(tensor, &numbers, bf16::from_f64, bf16::is_infinite),
        DType::F32 => floats(tensor, &numbers, |number| number as f32, f32::is_infinite),
        DType::F64 => floats(tensor, &numbers, |number| number, f64::is_infinite),
        _ => Err(format!("numbers are not converted to {to}")),
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<Number>, String> {
    let view = tensor.view();
    fn each<T: Element>(
        view: &tensor_core::TensorView<'_>,
        number: impl Fn(T) -> Number,
    ) -> Result<Vec<Number>, String> {
        Ok(view
            .iter::<T>()
            .map_err(|error| error.to_string())?
            .map(number)
            .collect())
    }
    let integer = Number::Integer;
    match tensor.spec().dtype() {
        DType::Bool => each::<bool>(&view, |value| integer(value.into())),
        DType::U8 => each::<u8>(&view, |value| integer(value.into())),
        DType::U16 => each::<u16>(&view, |value| integer(value.into())),
        DType::U32 => each::<u32>(&view, |value| integer(value.into())),
        DType::U64 => each::<u64>(&view, |value| integer(value.into())),
        DType::I8 => each::<i8>(&view, |value| integer(value.into())),
        DType::I16 => each::<i16>(&view, |value| integer(value.into())),
        DType::I32 => each::<i32>(&view, |value| integer(value.into())),
        DType::I64 => each::<i64>(&view, |value| integer(value.into())),
        DType::F16 => each::<f16>(&view, |value| Number::Float(value.to_f64())),
        DType::BF16 => each::<bf16>(&view, |value| Number::Float(value.to_f64())),
        DType::F32 => each::<f32>(&view, |value| Number::Float(value.into())),
        DType::F64 => each::<f64>(&view, Number::Float),
        other => Err(format!("{other} elements are not converted to other dtypes")),
    }
}

fn does_not_fit(index: usize, value: impl Display, to: DType) -> String {
    format!(
        "element {index}: {value} does not fit {}",
        to.name_in(Naming::Oip)
    )
}

fn integers<T: Element>(
    tensor: &Tensor,
    numbers: &[Number],
    narrow: impl Fn(i128) -> Option<T>,
) -> Result<Tensor, String> {
    let convert = |(index, number): (usize, &Number)| match *number {
        Number::Integer(value) => narrow(value).ok_or_else(|| does_not_fit(index, value, T::DTYPE)),
        // The cast saturates, which `narrow` detects.
        Number::Float(value) if value.fract() == 0.0 => {
            narrow(value as i128).ok_or_else(|| does_not_fit(index, value, T::DTYPE))
        }
        Number::Float(value) => Err(does_not_fit(index, value, T::DTYPE)),
    };
    finish(
        tensor,
        numbers
            .iter()
            .enumerate()
            .map(convert)
            .collect::<Result<_, _>>()?,
    )
}

fn floats<T: Element>(
    tensor: &Tensor,
    numbers: &[Number],
    round: impl Fn(f64) -> T,
    is_infinite: impl Fn(T) -> bool,
) -> Result<Tensor, String> {
    let convert = |(index, number): (usize, &Number)| {
        let value = match *number {
            Number::Integer(value) => value as f64,
            Number::Float(value) => value,
        };
        let rounded = round(value);
        match is_infinite(rounded) && value.is_finite() {
            true => Err(does_not_fit(index, value, T::DTYPE)),
            false => Ok(rounded),
        }
    };
    finish(
        tensor,
        numbers
            .iter()
            .enumerate()
            .map(convert)
            .collect::<Result<_, _>>()?,
    )
}

fn finish<T: Element>(tensor: &Tensor, elements: Vec<T>) -> Result<Tensor, String> {
    Tensor::from_vec(tensor.shape().clone(), elements).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use tensor_core::Shape;

    use super::*;

    fn tensor<T: Element>(values: &[T]) -> Tensor {
        Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
    }

    #[test]
    fn values_that_fit_are_kept_in_every_datatype() {
        for from in DType::ALL {
            for to in DType::ALL {
                let zero_one = cast(&tensor(&[0u8, 1]), from).unwrap();
                let there = cast(&zero_one, to).unwrap();
                assert_eq!(there.spec().dtype(), to);
                assert_eq!(
                    cast(&there, DType::U8).unwrap().to_vec::<u8>().unwrap(),
                    [0, 1],
                    "{from} {to}"
                );
            }
        }
        let doubles = cast(&tensor(&[0.1f64, f64::NAN, f64::NEG_INFINITY]), DType::F32).unwrap();
        let singles = doubles.to_vec::<f32>().unwrap();
        assert_eq!(singles[0], 0.1f32);
        assert!(singles[1].is_nan() && singles[2] == f32::NEG_INFINITY);
        let large = cast(&tensor(&[u64::MAX]), DType::F64).unwrap();
        assert_eq!(large.to_vec::<f64>().unwrap(), [1.8446744073709552e19]);
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        for (tensor, to, message) in [
            (
                tensor(&[1i64, 300]),
                DType::U8,
                "element 1: 300 does not fit UINT8",
            ),
            (tensor(&[-1i8]), DType::U64, "element 0: -1 does not fit UINT64"),
            (tensor(&[1.5f32]), DType::I32, "element 0: 1.5 does not fit INT32"),
            (
                tensor(&[f64::NAN]),
                DType::I32,
                "element 0: NaN does not fit INT32",
            ),
            (
                tensor(&[1e30f64]),
                DType::I64,
                "element 0: 1000000000000000000000000000000 does not fit INT64",
            ),
            (
                tensor(&[f32::INFINITY]),
                DType::I64,
                "element 0: inf does not fit INT64",
            ),
            (tensor(&[2u8]), DType::Bool, "element 0: 2 does not fit BOOL"),
            (
                tensor(&[65_520u32]),
                DType::F16,
                "element 0: 65520 does not fit FP16",
            ),
            (
                tensor(&[1e39f64]),
                DType::F32,
                "element 0: 1000000000000000000000000000000000000000 does not fit FP32",
            ),
        ] {
            assert_eq!(cast(&tensor, to).unwrap_err(), message);
        }
    }
}
