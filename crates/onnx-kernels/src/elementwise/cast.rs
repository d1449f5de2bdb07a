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
    elements::{elements, tensor},
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
            // As bytes, which are 0 or 1: a slice of BOOL would check each element.
            numbers(from.as_units::<u8>()?, shape, to)
        }
        // The conversion is vectorized if the processor has the instructions.
        (ElementType::F32, ElementType::F16) => {
            let from = elements::<f32>(from)?;
            split::converted(from, shape, ELEMENTS, |from, halves: &mut [f16]| {
                halves.convert_from_f32_slice(from);
            })
        }
        (ElementType::F16, ElementType::F32) => {
            let from = elements::<f16>(from)?;
            split::converted(from, shape, ELEMENTS, HalfFloatSliceExt::convert_to_f32_slice)
        }
        (number, to) => with_number!(number, F => numbers::<F>(elements::<F>(from)?, shape, to)),
    }
}

/// Numbers that can be converted to all types.
trait Number: Element + Copy + AsPrimitive<f64> {
    /// Whether the type is FP32.
    const IS_SINGLE: bool = false;

    fn text(&self) -> String;

    /// Converts FP32 to INT64 as Rust does: rounds towards zero, saturates, and converts NaN to 0. Other types
    /// do not implement it.
    fn whole(self) -> i64 {
        0
    }
}

/// Returns the part of a number that its narrower type is cut from: 0 if the number does not fit into INT32.
#[inline(always)]
fn low_bits(number: i64) -> i32 {
    match number == i64::from(number as i32) {
        true => number as i32,
        false => 0,
    }
}

/// Converts FP32 to INT64 from the bits. Unlike the processor's conversion, which saturates otherwise, this
/// has vector instructions.
#[inline(always)]
fn whole(x: f32) -> i64 {
    const MANTISSA: u32 = (1 << 23) - 1;
    let bits = x.to_bits();
    let exponent = bits >> 23 & 0xff;
    let mantissa = u64::from(bits & MANTISSA | (MANTISSA + 1));
    // The mantissa is an integer if the exponent is 150. Numbers with an exponent from 190 on do not fit.
    let left = mantissa << (exponent.wrapping_sub(150) & 63);
    let right = mantissa
        >> if exponent < 100 {
            50
        } else {
            150u32.wrapping_sub(exponent) & 63
        };
    let magnitude = if exponent >= 150 { left } else { right }.cast_signed();
    let is_negative = bits >> 31 != 0;
    let fits = if is_negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    let most = if is_negative { i64::MIN } else { i64::MAX };
    let number = if exponent >= 190 { most } else { fits };
    if x.is_nan() { 0 } else { number }
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
        ElementType::I64 if F::IS_SINGLE => {
            mapped_apart(from, shape, |x| AsPrimitive::<i64>::as_(x), Number::whole)
        }
        ElementType::I32 if F::IS_SINGLE => mapped_apart(
            from,
            shape,
            |x| AsPrimitive::<i32>::as_(x),
            |x| x.whole().clamp(i32::MIN.into(), i32::MAX.into()) as i32,
        ),
        // Out-of-range values keep their low bits, as in ONNX Runtime and NumPy.
        ElementType::U8 if F::IS_SINGLE => mapped_apart(
            from,
            shape,
            |x| low_bits(AsPrimitive::<i64>::as_(x)) as u8,
            |x| low_bits(x.whole()) as u8,
        ),
        ElementType::U8 | ElementType::U16 | ElementType::I8 | ElementType::I16
            if F::element_type().is_float() =>
        {
            let low = |x: F| low_bits(AsPrimitive::<i64>::as_(x));
            with_number!(to, T => mapped(from, shape, |x| AsPrimitive::<T>::as_(low(x))))
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
        ElementType::F16 => halves(from, shape),
        to => with_number!(to, T => mapped(from, shape, |x| AsPrimitive::<T>::as_(x))),
    }
}

/// Converts numbers to FP16 through FP32, as ONNX Runtime does. Slices are converted with vector instructions.
fn halves<F: Element + Copy + AsPrimitive<f32>>(from: &[F], shape: &[usize]) -> Result<Tensor> {
    const TOGETHER: usize = 256;
    split::converted(from, shape, ELEMENTS, |from, halves: &mut [f16]| {
        let mut singles = [0.0; TOGETHER];
        for (from, halves) in from.chunks(TOGETHER).zip(halves.chunks_mut(TOGETHER)) {
            let singles = &mut singles[..from.len()];
            let pairs = singles.iter_mut().zip(from);
            pairs.for_each(|(single, number)| *single = number.as_());
            halves.convert_from_f32_slice(singles);
        }
    })
}

/// Converts each number separately. Between usual types, the loop is compiled for each vector width.
fn mapped<F: Element + Copy, T: Element + Copy>(
    from: &[F],
    shape: &[usize],
    function: impl Fn(F) -> T + Copy + Sync,
) -> Result<Tensor> {
    mapped_apart(from, shape, function, function)
}

/// Converts each number separately as [`mapped`] does, with `wide` if there are wide vectors.
fn mapped_apart<F: Element + Copy, T: Element + Copy>(
    from: &[F],
    shape: &[usize],
    plain: impl Fn(F) -> T + Copy + Sync,
    wide: impl Fn(F) -> T + Copy + Sync,
) -> Result<Tensor> {
    let arch = match const { is_usual(F::ELEMENT_TYPE) && is_usual(T::ELEMENT_TYPE) } {
        true => Some(pulp::Arch::new()),
        false => None,
    };
    split::converted(from, shape, ELEMENTS, |from, to: &mut [T]| {
        let each = Each {
            from,
            to,
            plain,
            wide,
        };
        match arch {
            Some(arch) => arch.dispatch(each),
            None => pulp::WithSimd::with_simd(each, pulp::Scalar),
        }
    })
}

/// Returns whether models often convert between this type and others. For other types, loops for each vector
/// width would only add code.
const fn is_usual(element_type: ElementType) -> bool {
    matches!(
        element_type,
        ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64 | ElementType::U8
    )
}

/// A loop that applies a function to each element: `wide` if there are wide vectors, and `plain` otherwise.
struct Each<'v, F, T, Plain, Wide> {
    from: &'v [F],
    to: &'v mut [T],
    plain: Plain,
    wide: Wide,
}

impl<F: Copy, T, Plain: Fn(F) -> T, Wide: Fn(F) -> T> pulp::WithSimd for Each<'_, F, T, Plain, Wide> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let pairs = self.to.iter_mut().zip(self.from);
        match S::F32_LANES >= 8 {
            true => pairs.for_each(|(to, from)| *to = (self.wide)(*from)),
            false => pairs.for_each(|(to, from)| *to = (self.plain)(*from)),
        }
    }
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
impl Number for f32 {
    const IS_SINGLE: bool = true;

    fn text(&self) -> String {
        short_text(*self)
    }

    #[inline(always)]
    fn whole(self) -> i64 {
        whole(self)
    }
}
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

    /// Compares each element of a cast with `expected`, for lengths with and without whole vectors.
    fn expect_each<F: Element + Copy, T: Element>(numbers: &[F], expected: impl Fn(F) -> T) {
        for length in [1, 7, 16, 33, numbers.len()] {
            let numbers: Vec<F> = numbers.iter().copied().cycle().take(length).collect();
            let made = convert(&Tensor::vector(&numbers), T::ELEMENT_TYPE).unwrap();
            let wanted: Vec<T> = numbers.iter().map(|x| expected(*x)).collect();
            assert_eq!(elements::<T>(&made).unwrap(), wanted);
        }
    }

    #[test]
    fn floats_become_integers_as_documented_in_all_vector_lanes() {
        let mut floats = vec![
            0.0f32,
            -0.0,
            0.9,
            -0.9,
            1.5,
            -1.5,
            255.0,
            256.5,
            -300.0,
            65_537.0,
            2_147_483_520.0,
            2_147_483_648.0,
            -2_147_483_648.0,
            -2_147_483_904.0,
            4_294_967_296.0,
            9.223_372e18,
            -9.223_372e18,
            1e19,
            1.844_674_4e19,
            3e38,
            -3e38,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE / 4.0,
        ];
        floats.extend((0..97u16).map(|at| (f32::from(at) - 48.0) * 12_345.67));
        let low = |x: f64| i32::try_from(x as i64).unwrap_or(0);
        expect_each(&floats, |x| x as i64);
        expect_each(&floats, |x| x as i32);
        expect_each(&floats, |x| low(x.into()) as u8);
        expect_each(&floats, |x| low(x.into()) as i8);
        expect_each(&floats, |x| low(x.into()) as u16);
        expect_each(&floats, |x| x as i64 as u32);
        expect_each(&floats, |x| if x < 0.0 { x as i64 as u64 } else { x as u64 });
        expect_each(&floats, |x| x != 0.0);
        let doubles: Vec<f64> = floats.iter().map(|x| f64::from(*x) * 1.000_000_01).collect();
        expect_each(&doubles, |x| x as i64);
        expect_each(&doubles, |x| low(x) as u8);
        expect_each(&doubles, |x| if x < 0.0 { x as i64 as u64 } else { x as u64 });
        let finite: Vec<f64> = doubles.into_iter().filter(|x| !x.is_nan()).collect();
        expect_each(&finite, |x| x as f32);
    }

    #[test]
    fn integers_and_truths_become_wider_numbers() {
        let wide: Vec<i64> = (0..200i64)
            .map(|at| at.wrapping_mul(0x0123_4567_89ab_cdef) ^ at << 60)
            .collect();
        expect_each(&wide, |x| x as f32);
        expect_each(&wide, |x| x as f64);
        expect_each(&wide, |x| x as i32);
        expect_each(&wide, |x| x as u8);
        expect_each(&wide, |x| f16::from_f32(x as f32));
        let small: Vec<i64> = (-70..70).map(|at| at * 1023).collect();
        expect_each(&small, |x| f16::from_f32(x as f32));
        let narrow: Vec<i32> = wide.iter().map(|x| *x as i32).collect();
        expect_each(&narrow, i64::from);
        expect_each(&narrow, f64::from);
        expect_each(&narrow, |x| x as f32);
        let bytes: Vec<u8> = wide.iter().map(|x| *x as u8).collect();
        expect_each(&bytes, f32::from);
        expect_each(&bytes, i64::from);
        let truths: Vec<bool> = bytes.iter().map(|x| x.is_multiple_of(3)).collect();
        expect_each(&truths, |x| f32::from(u8::from(x)));
        expect_each(&truths, i64::from);
        expect_each(&truths, |x| f16::from_f32(u8::from(x).into()));
        expect_each(&truths, |x| u8::from(x).to_string());
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
