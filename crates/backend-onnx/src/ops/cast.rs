//! Cast and CastLike, exactly: tract carries INT64 as symbolic dimensions, which are slow and lose large numbers, and
//! it writes and reads numbers as text in its own way.

use std::sync::Arc;

use tract_onnx::{
    model::ParsingContext,
    pb::NodeProto,
    tract_hir::{internal::*, tract_num_traits::AsPrimitive},
};

use super::{
    access::{elements, tensor, with_number},
    attributes::Attributes,
    guard::Refusal,
    kernel::{Fact, Kernel, kernel},
};
use crate::dtype;

/// `Cast`, to the type of its attribute `to`.
pub(crate) fn cast(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let code = i32::try_from(Attributes(node).int("to", 0))?;
    let to = dtype::from_onnx(code).and_then(dtype::to_tract);
    let to = to.ok_or_else(|| {
        Refusal(format!(
            "gives {}, which is not supported",
            dtype::onnx_name(code)
        ))
    })?;
    Ok(kernel(Cast { to: Some(to) }))
}

/// `CastLike`, to the type of its second input.
pub(crate) fn cast_like(_: &ParsingContext<'_>, _: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(Cast { to: None }))
}

#[derive(Debug)]
struct Cast {
    to: Option<DatumType>,
}

impl Kernel for Cast {
    fn name(&self) -> &'static str {
        "Cast"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let to = match (self.to, inputs) {
            (Some(to), [_]) => to,
            (None, [_, like]) => like.datum_type,
            _ => bail!("expected 1 or 2 inputs, found {}", inputs.len()),
        };
        Ok(vec![inputs[0].with(to)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let to = self.to.unwrap_or_else(|| inputs[inputs.len() - 1].datum_type());
        Ok(tvec![convert(&inputs[0], to)?])
    }
}

fn convert(from: &Tensor, to: DatumType) -> TractResult<Tensor> {
    let shape = from.shape();
    match (from.datum_type(), to) {
        (same, to) if same == to => Ok(from.clone()),
        (DatumType::String, to) => {
            let texts = elements::<String>(from)?;
            match to {
                DatumType::Bool => tensor(
                    shape,
                    parsed::<f64>(texts)?.into_iter().map(|x| x != 0.0).collect(),
                ),
                to => with_number!(to, T => tensor(shape, parsed::<T>(texts)?)),
            }
        }
        (DatumType::Bool, DatumType::String) => {
            let text = |&bool: &bool| if bool { "1" } else { "0" }.to_owned();
            tensor(shape, elements::<bool>(from)?.iter().map(text).collect())
        }
        (DatumType::Bool, to) => {
            let numbers: Vec<u8> = elements::<bool>(from)?
                .iter()
                .map(|&bool| u8::from(bool))
                .collect();
            with_number!(to, T => tensor(shape, numbers.iter().map(|&number| AsPrimitive::<T>::as_(number)).collect()))
        }
        (number, to) => with_number!(number, F => numbers::<F>(elements::<F>(from)?, shape, to)),
    }
}

/// What numbers can be turned into.
trait Number: Datum + Copy + AsPrimitive<f64> {
    const IS_FLOAT: bool;
}

fn numbers<F>(from: &[F], shape: &[usize], to: DatumType) -> TractResult<Tensor>
where
    F: Number
        + AsPrimitive<f16>
        + AsPrimitive<f32>
        + AsPrimitive<u8>
        + AsPrimitive<u16>
        + AsPrimitive<u32>
        + AsPrimitive<u64>
        + AsPrimitive<i8>
        + AsPrimitive<i16>
        + AsPrimitive<i32>
        + AsPrimitive<i64>,
{
    match to {
        DatumType::Bool => tensor(
            shape,
            from.iter().map(|&x| AsPrimitive::<f64>::as_(x) != 0.0).collect(),
        ),
        DatumType::String if F::IS_FLOAT => {
            tensor(shape, from.iter().map(|&x| float_text(x.as_())).collect())
        }
        DatumType::String => tensor(shape, from.iter().map(|x| x.to_string()).collect()),
        to => with_number!(to, T => tensor(shape, from.iter().map(|&x| AsPrimitive::<T>::as_(x)).collect())),
    }
}

macro_rules! number {
    ($is_float:literal: $($type:ty),*) => {$(
        impl Number for $type {
            const IS_FLOAT: bool = $is_float;
        }
    )*};
}

number!(true: f16, f32, f64);
number!(false: u8, u16, u32, u64, i8, i16, i32, i64);

/// Numbers from texts as ONNX Runtime reads them: what is no number ends the run.
fn parsed<T>(texts: &[String]) -> TractResult<Vec<T>>
where
    T: Datum + Copy + std::str::FromStr,
    f64: AsPrimitive<T>,
    i64: AsPrimitive<T>,
    u64: AsPrimitive<T>,
{
    let parse = |text: &String| {
        let text = text.trim();
        // Whole numbers first, as they may have more digits than a float keeps.
        if !T::datum_type().is_float() {
            if let Ok(number) = text.parse::<i64>() {
                return Ok(number.as_());
            }
            if let Ok(number) = text.parse::<u64>() {
                return Ok(number.as_());
            }
        }
        let number = text
            .parse::<f64>()
            .map_err(|_| super::BadInput(format!("{} is no number", tensor_core::Quoted(text))))?;
        Ok(number.as_())
    };
    texts.iter().map(parse).collect()
}

/// A float as C's `%.8g` writes it, which is what ONNX Runtime does for every type of float.
fn float_text(number: f64) -> String {
    const DIGITS: i32 = 8;
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_c_does() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (2.5, "2.5"),
            (314.15926, "314.15926"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (123_456_789.0, "1.2345679e+08"),
            (12_345_678.0, "12345678"),
            (99_999_999.9, "1e+08"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-INF"),
        ] {
            assert_eq!(float_text(number), text);
        }
    }
}
