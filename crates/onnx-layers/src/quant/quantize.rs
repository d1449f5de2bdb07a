//! Quantization to 8 and 16 bits. Elements are divided by the scale, since multiplying by its reciprocal
//! would round differently.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;

use onnx_tensor::{
    axis,
    elements::{copied, elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    split,
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};

/// Builds the operator `QuantizeLinear`, which computes `saturate(round(x / scale) + zero_point)`, ties to
/// even.
pub fn quantize(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let to = match attributes.int("output_dtype", 0) {
        0 => None,
        code => Some(
            i32::try_from(code)
                .ok()
                .and_then(element_type_of)
                .ok_or_else(|| {
                    Unsupported::Here(format!(
                        "the output_dtype is {code}, only integers of 8 and 16 bits are supported"
                    ))
                })?,
        ),
    };
    Ok(kernel(Quantize {
        axis: attributes.int("axis", 1),
        to,
    }))
}

fn element_type_of(code: i32) -> Option<ElementType> {
    let element_type = ElementType::from_code(code)?;
    expect_quantized(element_type, false).ok()?;
    Some(element_type)
}

/// Builds the operator `DequantizeLinear`, which computes `(x - zero_point) * scale`.
pub fn dequantize(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let block = usize::try_from(attributes.int("block_size", 0)).ok();
    Ok(kernel(Dequantize {
        axis: attributes.int("axis", 1),
        block: block.context("the attribute 'block_size' is negative")?,
    }))
}

/// Builds the requantization of integer sums: `saturate(round(sums * scale) + zero_point)`, ties to even.
/// There is one scale for all elements, or one per index of an axis.
pub fn requantize(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Requantize {
        axis: Attributes(node).int("axis", 1),
    }))
}

/// Builds the operator `DynamicQuantizeLinear`, which quantizes to UINT8 with a scale and a zero point
/// computed from the input's range.
pub fn quantize_dynamically(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(QuantizeDynamically))
}

#[derive(Debug)]
struct Quantize {
    axis: i64,
    /// The type of the result, if no zero point determines it.
    to: Option<ElementType>,
}

impl Kernel for Quantize {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, scale, zero_point @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let to = match zero_point.first() {
            Some(zero_point) => zero_point.element_type,
            None => self.to.unwrap_or(ElementType::U8),
        };
        expect_f32(&[input, scale])?;
        expect_quantized(to, false)?;
        Ok(vec![input.with(to)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = elements::<f32>(&inputs[0])?;
        let scales = elements::<f32>(&inputs[1])?;
        let shape = inputs[0].shape();
        let channels = Channels::new(shape, &inputs[1], self.axis)?;
        let zero_points = zero_points(inputs.get(2), scales.len())?;
        macro_rules! quantized {
            ($T:ty) => {{
                let mut made = vec![0 as $T; input.len()];
                channels.each(input, &mut made, |from, to, channel| {
                    let (scale, zero_point) = (scales[channel], zero_points[channel] as f32);
                    let (least, most) = (f32::from(<$T>::MIN), f32::from(<$T>::MAX));
                    each_to(from, to, |x| {
                        let shifted = (x / scale).round_ties_even() + zero_point;
                        // ONNX Runtime maps NaN to the smallest number.
                        let shifted = if shifted > least { shifted } else { least };
                        low_bits(if shifted < most { shifted } else { most }) as $T
                    });
                })?;
                tensor(shape, made)
            }};
        }
        let to = match inputs.get(2) {
            Some(zero_point) => zero_point.element_type(),
            None => self.to.unwrap_or(ElementType::U8),
        };
        Ok(smallvec![match to {
            ElementType::U8 => quantized!(u8)?,
            ElementType::I8 => quantized!(i8)?,
            ElementType::U16 => quantized!(u16)?,
            _ => quantized!(i16)?,
        }])
    }
}

#[derive(Debug)]
struct Requantize {
    axis: i64,
}

impl Kernel for Requantize {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [sums, scale, zero_point] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        expect_f32(&[scale])?;
        let is_byte = matches!(zero_point.element_type, ElementType::U8 | ElementType::I8);
        ensure!(
            is_byte && matches!(sums.element_type, ElementType::F32 | ElementType::I32),
            "expected sums and a zero point of 8 bits"
        );
        Ok(vec![sums.with(zero_point.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let scales = elements::<f32>(&inputs[1])?;
        let shape = inputs[0].shape();
        let channels = Channels::new(shape, &inputs[1], self.axis)?;
        let [zero_point] = zero_points(Some(&inputs[2]), 1)?[..] else {
            bail!("expected one zero point");
        };
        let zero_point = zero_point as f32;
        let sums = inputs[0].cast_to::<f32>()?;
        let sums = elements::<f32>(&sums)?;
        macro_rules! quantized {
            ($T:ty) => {{
                let mut made = vec![0 as $T; sums.len()];
                channels.each(sums, &mut made, |from, to, channel| {
                    let scale = scales[channel];
                    let (least, most) = (f32::from(<$T>::MIN), f32::from(<$T>::MAX));
                    each_to(from, to, |sum| {
                        let shifted = (sum * scale).round_ties_even() + zero_point;
                        // NaN becomes zero.
                        let shifted = if shifted.is_nan() { 0.0 } else { shifted };
                        low_bits(shifted.clamp(least, most)) as $T
                    });
                })?;
                tensor(shape, made)
            }};
        }
        Ok(smallvec![match inputs[2].element_type() {
            ElementType::U8 => quantized!(u8)?,
            _ => quantized!(i8)?,
        }])
    }
}

#[derive(Debug)]
struct Dequantize {
    axis: i64,
    /// `block_size`: number of elements of the axis per scale. With 0, there is one scale per index of the
    /// axis or per tensor.
    block: usize,
}

impl Kernel for Dequantize {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, scale, zero_point @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        expect_f32(&[scale])?;
        expect_quantized(input.element_type, true)?;
        if let Some(zero_point) = zero_point.first() {
            ensure!(
                zero_point.element_type == input.element_type,
                "the zero point has another type"
            );
        }
        Ok(vec![input.with(ElementType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let scales = elements::<f32>(&inputs[1])?;
        let shape = inputs[0].shape();
        let zero_points = zero_points(inputs.get(2), scales.len())?;
        if self.block > 0 {
            let blocks = Blocks::new(shape, inputs[1].shape(), self.axis, self.block)?;
            return Ok(smallvec![blocks.scaled(&inputs[0], scales, &zero_points)?]);
        }
        let channels = Channels::new(shape, &inputs[1], self.axis)?;
        let mut made = vec![0.0f32; inputs[0].len()];
        macro_rules! floats {
            ($T:ty) => {
                channels.each(
                    elements::<$T>(&inputs[0])?,
                    &mut made,
                    |from, to, channel| {
                        let (scale, zero_point) = (scales[channel], zero_points[channel]);
                        each_to(from, to, |x| (i32::from(x) - zero_point) as f32 * scale);
                    },
                )?
            };
        }
        match inputs[0].element_type() {
            ElementType::U8 => floats!(u8),
            ElementType::I8 => floats!(i8),
            ElementType::U16 => floats!(u16),
            ElementType::I16 => floats!(i16),
            _ => channels.each(elements::<i32>(&inputs[0])?, &mut made, |from, to, channel| {
                let (scale, zero_point) = (scales[channel], i64::from(zero_points[channel]));
                each_to(from, to, |x| (i64::from(x) - zero_point) as f32 * scale);
            })?,
        }
        Ok(smallvec![tensor(shape, made)?])
    }
}

#[derive(Debug)]
struct QuantizeDynamically;

impl Kernel for QuantizeDynamically {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        expect_f32(&[input])?;
        Ok(vec![
            input.with(ElementType::U8),
            Fact::new(ElementType::F32, []),
            Fact::new(ElementType::U8, []),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = elements::<f32>(&inputs[0])?;
        let (scale, zero_point) = scale_of(ends(input)?);
        let mut made = vec![0u8; input.len()];
        split::mapped(input, &mut made, ELEMENTS, |from, to| {
            each_to(from, to, |x| {
                let shifted = (x / scale).round_ties_even() + zero_point;
                // NaN becomes zero.
                let shifted = if shifted > 0.0 { shifted } else { 0.0 };
                low_bits(if shifted < 255.0 { shifted } else { 255.0 }) as u8
            });
        })?;
        Ok(smallvec![
            tensor(inputs[0].shape(), made)?,
            Tensor::scalar(scale),
            Tensor::scalar(zero_point as u8),
        ])
    }
}

/// Quantizes values to 8 bits and subtracts the zero point; returns the scale.
///
/// # Errors
/// Fails if the request is cancelled.
pub(crate) fn rounded_to_bytes(values: &[f32], rounded: &mut [i16], pace: &mut Pace) -> Result<f32> {
    let mut ends = (0.0, 0.0);
    for values in values.chunks(PART) {
        pace.spend(values.len() as u64)?;
        ends = widened(ends, pulp::Arch::new().dispatch(Ends(values)));
    }
    let (scale, zero_point) = scale_of(ends);
    pace.pairs(values, rounded, |values, rounded| {
        each_to(values, rounded, |x| {
            let shifted = (x / scale).round_ties_even() + zero_point;
            let shifted = if shifted < 0.0 { 0.0 } else { shifted };
            let shifted = if shifted > 255.0 { 255.0 } else { shifted };
            (shifted - zero_point) as i32 as i16
        });
    })?;
    Ok(scale)
}

/// Returns the smallest range that contains both ranges.
fn widened(all: (f32, f32), part: (f32, f32)) -> (f32, f32) {
    (all.0.min(part.0), all.1.max(part.1))
}

/// Rounds a number from -32768 to 65535, with ties to even, and returns the low bits of the integer. A checked
/// conversion has twice as many instructions.
#[inline(always)]
pub(crate) fn low_bits(number: f32) -> u32 {
    // At this magnitude the last mantissa bit is 1, so that the sum is rounded to an integer.
    const ONES: f32 = (3 << 22) as f32;
    (number + ONES).to_bits()
}

/// Returns the minimum and the maximum of `values` and zero, like [`Ends`].
fn ends(values: &[f32]) -> Result<(f32, f32)> {
    let parts = values.len().div_ceil(PART);
    let mut ends = vec![(0.0, 0.0); parts];
    let work = [values.len() as u64, ELEMENTS];
    split::lines(&mut ends, 1, work, |first, ends, pace| {
        for (part, ends) in values[first * PART..].chunks(PART).zip(ends) {
            pace.spend(part.len() as u64)?;
            *ends = pulp::Arch::new().dispatch(Ends(part));
        }
        Ok(())
    })?;
    Ok(ends.into_iter().fold((0.0, 0.0), widened))
}

/// Returns the scale and the 8-bit zero point for a range of values.
fn scale_of((least, greatest): (f32, f32)) -> (f32, f32) {
    let scale = if least == greatest {
        1.0
    } else {
        (greatest - least) / 255.0
    };
    (scale, (-least / scale).clamp(0.0, 255.0).round_ties_even())
}

/// Finds the minimum and the maximum of numbers and zero. Zero is included, so that it is quantized exactly.
/// NaN is ignored.
struct Ends<'v>(&'v [f32]);

impl pulp::WithSimd for Ends<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> (f32, f32) {
        const LANES: usize = 16;
        let (mut least, mut greatest) = ([0.0f32; LANES], [0.0f32; LANES]);
        let mut widen = |chunk: &[f32]| {
            for ((least, greatest), &x) in least.iter_mut().zip(&mut greatest).zip(chunk) {
                *least = if x < *least { x } else { *least };
                *greatest = if x > *greatest { x } else { *greatest };
            }
        };
        let mut chunks = self.0.chunks_exact(LANES);
        for chunk in &mut chunks {
            widen(chunk);
        }
        widen(chunks.remainder());
        (
            least.into_iter().fold(0.0, f32::min),
            greatest.into_iter().fold(0.0, f32::max),
        )
    }
}

/// Maps elements to the scales of their channels.
struct Channels {
    inner: usize,
    count: usize,
}

impl Channels {
    fn new(shape: &[usize], scales: &Tensor, axis: i64) -> Result<Self> {
        let count = scales.len();
        if count == 1 {
            return Ok(Self { inner: 1, count });
        }
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len());
        let axis = axis.context("the axis is outside of the input's dimensions")?;
        ensure_input!(
            shape[axis] == count && scales.rank() == 1,
            "scales of {:?} for axis {axis} of {shape:?}, expected one, or one for each of its elements",
            scales.shape()
        );
        let inner = shape[axis + 1..].iter().product();
        Ok(Self { inner, count })
    }

    /// Calls `run` for each range of consecutive elements with the same scale, and passes the scale's index.
    fn each<A: Sync, B: Send>(
        &self,
        from: &[A],
        to: &mut [B],
        run: impl Fn(&[A], &mut [B], usize) + Sync,
    ) -> Result<()> {
        if self.count == 1 {
            return split::mapped(from, to, ELEMENTS, |from, to| run(from, to, 0));
        }
        // The length must not be 0. For an empty tensor, `run` is never called.
        let length = self.inner.max(1);
        let work = [to.len() as u64, ELEMENTS];
        split::lines(to, length, work, |first, to, pace| {
            let from = from[first * length..].chunks(length);
            for (index, (from, to)) in (first..).zip(from.zip(to.chunks_mut(length))) {
                pace.pairs(from, to, |from, to| run(from, to, index % self.count))?;
            }
            Ok(())
        })
    }
}

/// Blocks of elements along an axis, each of which has one scale.
struct Blocks {
    shape: Vec<usize>,
    /// Number of elements along the axis (`length`) and in a block (`block`).
    length: usize,
    block: usize,
    inner: usize,
}

impl Blocks {
    fn new(shape: &[usize], scales: &[usize], axis: i64, block: usize) -> Result<Self> {
        let axis = axis::axis(axis, shape.len())?;
        let mut expected = shape.to_vec();
        expected[axis] = shape[axis].div_ceil(block);
        ensure_input!(
            scales == expected,
            "scales of {scales:?} for blocks of {block} in a value of {shape:?}"
        );
        Ok(Self {
            shape: shape.to_vec(),
            length: shape[axis],
            block,
            inner: shape[axis + 1..].iter().product(),
        })
    }

    fn scaled(&self, input: &Tensor, scales: &[f32], zero_points: &[i32]) -> Result<Tensor> {
        let mut made: Vec<f32> = Vec::with_capacity(input.len());
        let blocks = self.length.div_ceil(self.block);
        let mut pace = Pace::default();
        macro_rules! floats {
            ($T:ty) => {
                for (line, row) in elements::<$T>(input)?
                    .chunks_exact(self.inner.max(1))
                    .enumerate()
                {
                    let (outer, at) = (line / self.length, line % self.length);
                    let first = (outer * blocks + at / self.block) * self.inner;
                    let scales = &scales[first..first + self.inner];
                    let zero_points = &zero_points[first..first + self.inner];
                    let scales = scales.chunks(PART).zip(zero_points.chunks(PART));
                    for (row, (scales, zero_points)) in row.chunks(PART).zip(scales) {
                        pace.spend(row.len() as u64)?;
                        let numbers = row.iter().zip(scales).zip(zero_points);
                        made.extend(numbers.map(|((&x, scale), &zero_point)| {
                            (i64::from(x) - i64::from(zero_point)) as f32 * scale
                        }));
                    }
                }
            };
        }
        match input.element_type() {
            ElementType::U8 => floats!(u8),
            ElementType::I8 => floats!(i8),
            ElementType::U16 => floats!(u16),
            ElementType::I16 => floats!(i16),
            _ => floats!(i32),
        }
        tensor(&self.shape, made)
    }
}

/// Reads `count` zero points; the default is 0.
pub(crate) fn zero_points(given: Option<&Arc<Tensor>>, count: usize) -> Result<Vec<i32>> {
    let zero_points = given.map(|tensor| integers(tensor)).transpose()?;
    let zero_points = zero_points.unwrap_or_else(|| vec![0; count]);
    ensure!(
        zero_points.len() == count,
        "as many zero points as scales are expected"
    );
    Ok(zero_points)
}

/// Maps elements with the processor's widest vectors.
pub(crate) fn each_to<A: Copy, B>(from: &[A], to: &mut [B], function: impl Fn(A) -> B) {
    struct EachTo<'v, A, B, F> {
        from: &'v [A],
        to: &'v mut [B],
        function: F,
    }
    impl<A: Copy, B, F: Fn(A) -> B> pulp::WithSimd for EachTo<'_, A, B, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            for (&from, to) in self.from.iter().zip(self.to) {
                *to = (self.function)(from);
            }
        }
    }
    pulp::Arch::new().dispatch(EachTo { from, to, function });
}

pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i32>> {
    let mut pace = Pace::default();
    match tensor.element_type() {
        ElementType::U8 => pace.map(elements::<u8>(tensor)?, |&x| x.into()),
        ElementType::I8 => pace.map(elements::<i8>(tensor)?, |&x| x.into()),
        ElementType::U16 => pace.map(elements::<u16>(tensor)?, |&x| x.into()),
        ElementType::I16 => pace.map(elements::<i16>(tensor)?, |&x| x.into()),
        _ => copied::<i32>(tensor),
    }
}

fn expect_f32(facts: &[&Fact]) -> Result<()> {
    if facts.iter().all(|fact| fact.element_type == ElementType::F32) {
        return Ok(());
    }
    bail!(Unsupported::Anywhere(
        "is supported with floats and scales of FP32 only".to_owned()
    ))
}

fn expect_quantized(element_type: ElementType, or_i32: bool) -> Result<()> {
    use ElementType::{I8, I16, I32, U8, U16};
    if matches!(element_type, U8 | I8 | U16 | I16) || (or_i32 && element_type == I32) {
        return Ok(());
    }
    bail!(Unsupported::Anywhere(
        "is supported with integers of 8 and 16 bits only".to_owned()
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_tensor::faults::BadInput;

    use super::*;

    #[test]
    fn low_bits_are_those_of_each_whole_number_of_up_to_16_bits() {
        for number in -32768..=65535 {
            let found = low_bits(number as f32);
            assert_eq!(
                (found as u16, found as u8),
                (number as u16, number as u8),
                "{number}"
            );
        }
        assert_eq!(low_bits(-0.0) as u16, 0);
    }

    #[test]
    fn what_is_not_finite_has_a_place_too() {
        let numbers = Tensor::vector(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -0.0]).into_arc();
        let (scale, zero_point) = (Tensor::scalar(0.5f32).into_arc(), Tensor::scalar(3i8).into_arc());
        let inputs = [numbers, scale, zero_point];
        let quantized = Quantize { axis: 1, to: None }.run(&inputs).unwrap();
        assert_eq!(quantized[0], Tensor::vector(&[-128i8, 127, -128, 127, 3]));
        let rounded = Requantize { axis: 1 }.run(&inputs).unwrap();
        assert_eq!(rounded[0], Tensor::vector(&[0i8, 127, -128, 127, 3]));
        let dynamic = QuantizeDynamically
            .run(&[Tensor::vector(&[f32::NAN, 51.0, -204.0]).into_arc()])
            .unwrap();
        assert_eq!(dynamic[0], Tensor::vector(&[0u8, 255, 0]));
        assert_eq!(dynamic[2], Tensor::scalar(204u8));
    }

    #[test]
    fn scales_that_do_not_fit_are_the_fault_of_the_input() {
        let quantize = Quantize { axis: 1, to: None };
        let run = |columns: usize| {
            let inputs = [
                Tensor::zero::<f32>(&[2, columns]).unwrap(),
                Tensor::vector(&[1f32; 4]),
            ];
            quantize.run(&inputs.map(Arc::new))
        };
        assert!(run(4).is_ok());
        let error = run(3).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
    }
}
