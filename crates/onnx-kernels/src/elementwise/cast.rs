//! The operators `Cast` and `CastLike`. Numbers are formatted and parsed as in ONNX Runtime.

use std::{fmt, sync::Arc};

use half::slice::HalfFloatSliceExt;
use num_traits::AsPrimitive;
use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
    split::{self, LINE},
};
use onnx_tensor::{
    elements::{elements, filled, tensor},
    node::Attributes,
    operator::Fact,
};

/// Builds the operator `Cast` to the type in its attribute `to`.
pub fn cast(node: &Node) -> Result<Box<dyn Compute>> {
    let code = i32::try_from(Attributes(node).int("to", 0))?;
    let to = ElementType::from_code(code);
    let to = to.ok_or_else(|| {
        Unsupported::Here(format!(
            "the attribute 'to' is {}, which is not supported",
            ElementType::name_of_code(code)
        ))
    })?;
    Ok(Box::new(Cast { to: Some(to) }))
}

/// Builds the operator `CastLike`, which casts to the type of its second input.
pub fn cast_like(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Cast { to: None }))
}

#[derive(Debug)]
struct Cast {
    to: Option<ElementType>,
}

impl Compute for Cast {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let to = match (self.to, inputs) {
            (Some(to), [_]) => to,
            (None, [_, like]) => like.element_type,
            _ => bail!("expected 1 or 2 inputs, found {}", inputs.len()),
        };
        Ok(Some(vec![inputs[0].with(to)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let to = self.to.unwrap_or_else(|| inputs[inputs.len() - 1].element_type());
        let input = inputs.swap_remove(0);
        Ok(smallvec![match (input.element_type(), to) {
            (same, to) if same == to => input,
            (ElementType::I32, ElementType::F32) => Arc::new(match Arc::try_unwrap(input) {
                Ok(input) => floats_in_place(input)?,
                Err(input) => convert(&input, to)?,
            }),
            (_, to) => Arc::new(convert(&input, to)?),
        }])
    }
}

/// Converts INT32 to FP32 in place. The sums of 8-bit products are converted in this way.
fn floats_in_place(mut numbers: Tensor) -> Result<Tensor> {
    let units = numbers.as_units_mut::<u32>()?;
    let work = [units.len() as u64, ELEMENTS];
    split::lines(units, LINE, work, |_, units, pace| {
        pace.over(units, |units| {
            units
                .iter_mut()
                .for_each(|unit| *unit = (unit.cast_signed() as f32).to_bits());
        })
    })?;
    numbers.into_bits_of(ElementType::F32)
}

/// Converts a value to another type by ONNX's rules.
pub fn convert(from: &Tensor, to: ElementType) -> Result<Tensor> {
    let shape = from.shape();
    let mut pace = Pace::default();
    match (from.element_type(), to) {
        (same, to) if same == to => from.copied(),
        (ElementType::String, to) => {
            let texts = elements::<String>(from)?;
            match to {
                ElementType::Bool => tensor(shape, pace.map(&parsed::<f64>(texts)?, |&x| x != 0.0)?),
                to => with_number!(to, T => tensor(shape, parsed::<T>(texts)?)),
            }
        }
        (ElementType::Bool, ElementType::String) => {
            let text = |&bool: &bool| if bool { "1" } else { "0" }.to_owned();
            tensor(shape, pace.map(elements::<bool>(from)?, text)?)
        }
        (ElementType::Bool, to) => {
            let truths = elements::<bool>(from)?;
            with_number!(to, T => mapped(truths, shape, |truth| AsPrimitive::<T>::as_(u8::from(truth))))
        }
        // The conversion is vectorized if the processor has the instructions.
        (ElementType::F32, ElementType::F16) => {
            let from = elements::<f32>(from)?;
            filled(shape, |halves: &mut [f16]| {
                split::mapped(from, halves, ELEMENTS, |from, halves| {
                    halves.convert_from_f32_slice(from);
                })
            })
        }
        (ElementType::F16, ElementType::F32) => {
            let from = elements::<f16>(from)?;
            filled(shape, |numbers| {
                split::mapped(from, numbers, ELEMENTS, HalfFloatSliceExt::convert_to_f32_slice)
            })
        }
        (number, to) => with_number!(number, F => numbers::<F>(elements::<F>(from)?, shape, to)),
    }
}

/// Numbers that can be converted to all types.
trait Number: Element + Copy + AsPrimitive<f64> {
    fn text(&self) -> String;
}

fn numbers<F>(from: &[F], shape: &[usize], to: ElementType) -> Result<Tensor>
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
        ElementType::Bool => mapped(from, shape, |x| AsPrimitive::<f64>::as_(x) != 0.0),
        ElementType::String => tensor(shape, Pace::default().map(from, F::text)?),
        // Out-of-range values keep their low bits, as in ONNX Runtime and NumPy.
        ElementType::U8 | ElementType::U16 | ElementType::I8 | ElementType::I16
            if F::element_type().is_float() =>
        {
            let whole = |x: F| {
                let wide = AsPrimitive::<i64>::as_(x);
                i32::try_from(wide).unwrap_or(0)
            };
            with_number!(to, T => mapped(from, shape, |x| AsPrimitive::<T>::as_(whole(x))))
        }
        ElementType::U32 if F::element_type().is_float() => {
            mapped(from, shape, |x| AsPrimitive::<i64>::as_(x) as u32)
        }
        ElementType::U64 if F::element_type().is_float() => {
            mapped(from, shape, |x| match AsPrimitive::<f64>::as_(x) < 0.0 {
                true => AsPrimitive::<i64>::as_(x) as u64,
                false => AsPrimitive::<u64>::as_(x),
            })
        }
        to => with_number!(to, T => mapped(from, shape, |x| AsPrimitive::<T>::as_(x))),
    }
}

/// Converts each number separately.
fn mapped<F: Copy + Sync, T: Element>(
    from: &[F],
    shape: &[usize],
    function: impl Fn(F) -> T + Sync,
) -> Result<Tensor> {
    filled(shape, |to| {
        split::mapped(from, to, ELEMENTS, |from, to| {
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = function(*from));
        })
    })
}

macro_rules! number {
    ($text:expr => $($type:ty),*) => {$(
        impl Number for $type {
            fn text(&self) -> String {
                $text(self)
            }
        }
    )*};
}

number!(|x: &f16| short_text(x.to_f32()) => f16);
number!(|x: &f32| short_text(*x) => f32);
number!(float_text => f64);
number!(ToString::to_string => u8, u16, u32, u64, i8, i16, i32, i64);

/// Parses strings as ONNX Runtime does; anything except a number is an error.
fn parsed<T>(texts: &[String]) -> Result<Vec<T>>
where
    T: Element + Copy + std::str::FromStr,
    f64: AsPrimitive<T>,
    i64: AsPrimitive<T>,
    u64: AsPrimitive<T>,
{
    let mut pace = Pace::default();
    let parse = |text: &String| {
        pace.spend(16 + text.len() as u64)?;
        let text = text.trim();
        // Parses integers without a detour through floats, since they may have more digits than a float can
        // represent.
        if !T::element_type().is_float() {
            if let Ok(number) = text.parse::<i64>() {
                return Ok(number.as_());
            }
            if let Ok(number) = text.parse::<u64>() {
                return Ok(number.as_());
            }
        }
        let number = text
            .parse::<f64>()
            .map_err(|_| BadInput(format!("{} is not a number", tensor_core::QuotedName(text))))?;
        Ok(number.as_())
    };
    texts.iter().map(parse).collect()
}

/// Formats a float with eight significant digits like C's `%.8g`, as ONNX Runtime does.
fn short_text(number: f32) -> String {
    let scientific = format!("{number:.7e}");
    match scientific.split_once('e') {
        Some((mantissa, exponent)) => {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            c_text(&format!("{mantissa}e{exponent}"))
        }
        None => c_text(&scientific),
    }
}

/// Formats a float like C's `%g`, with the fewest digits that round-trip. ONNX Runtime writes eight digits
/// instead.
fn float_text<F: fmt::LowerExp>(number: F) -> String {
    c_text(&format!("{number:e}"))
}

/// Converts scientific notation into C's `%.8g` notation.
fn c_text(scientific: &str) -> String {
    const DIGITS: i32 = 8;
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.to_uppercase().replace("NAN", "NaN");
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    if !(-4..DIGITS).contains(&exponent) {
        let exponent_sign = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{exponent_sign}{:02}", exponent.abs());
    }
    let digits = mantissa.replace('.', "");
    match usize::try_from(exponent) {
        Err(_) => format!(
            "{sign}0.{}{digits}",
            "0".repeat(exponent.unsigned_abs() as usize - 1)
        ),
        Ok(exponent) if digits.len() <= exponent + 1 => {
            format!("{sign}{digits:0<width$}", width = exponent + 1)
        }
        Ok(exponent) => {
            let (whole, fraction) = digits.split_at(exponent + 1);
            format!("{sign}{whole}.{fraction}")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn cast_to(to: ElementType, input: Arc<Tensor>) -> Arc<Tensor> {
        let cast = Cast { to: Some(to) };
        cast.run(&mut smallvec![input]).unwrap().remove(0)
    }

    #[test]
    fn whole_numbers_become_floats_in_place_where_nobody_else_reads_them() {
        let numbers = Tensor::vector(&[0, -1, 16_777_217, i32::MIN, i32::MAX]);
        let floats = Tensor::vector(&[0.0f32, -1.0, 16_777_216.0, -2_147_483_648.0, 2_147_483_648.0]);
        let shared = numbers.clone().into_arc();
        assert_eq!(*cast_to(ElementType::F32, shared.clone()), floats);
        assert_eq!(*shared, numbers);
        let place = shared.as_bytes().unwrap().as_ptr();
        let made = cast_to(ElementType::F32, shared);
        assert_eq!(*made, floats);
        assert_eq!(made.as_bytes().unwrap().as_ptr(), place);
    }

    #[test]
    fn what_has_the_type_is_not_copied() {
        let numbers = Tensor::vector(&[1.0f32]).into_arc();
        assert!(Arc::ptr_eq(&cast_to(ElementType::F32, numbers.clone()), &numbers));
    }

    #[test]
    fn floats_are_written_as_c_does_with_the_fewest_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-20.0, "-20"),
            (2.5, "2.5"),
            (314.15926, "314.15926"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (-1.5e-5, "-1.5e-05"),
            (123_456_789.0, "1.23456789e+08"),
            (12_345_678.0, "12345678"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-INF"),
        ] {
            assert_eq!(float_text(number), text);
        }
        assert_eq!(short_text(0.604_845_5), "0.60484552");
        assert_eq!(short_text(1e-5), "9.9999997e-06");
    }
}
