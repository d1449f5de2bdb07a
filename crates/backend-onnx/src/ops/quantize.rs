//! Quantization to 8 and 16 bits. tract multiplies with the reciprocal of the scale, which rounds some numbers the
//! other way, and wants scales to be constant.

use std::sync::Arc;

use tract_onnx::{model::ParsingContext, pb::NodeProto, tract_hir::internal::*};

use super::{
    access::{elements, tensor},
    attributes::Attributes,
    kernel::{Fact, Kernel, kernel},
};
use crate::faults::Limit;

/// `QuantizeLinear`: `saturate(round(x / scale) + zero_point)`, ties to even.
pub(crate) fn quantize(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let axis = Attributes(node).int("axis", 1);
    Ok(kernel(Quantize { axis }))
}

/// `DequantizeLinear`: `(x - zero_point) * scale`.
pub(crate) fn dequantize(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Box<dyn InferenceOp>> {
    let axis = Attributes(node).int("axis", 1);
    Ok(kernel(Dequantize { axis }))
}

/// `DynamicQuantizeLinear`: to UINT8 with a scale and zero point from the input's own range.
pub(crate) fn quantize_dynamically(
    _: &ParsingContext<'_>,
    _: &NodeProto,
) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(QuantizeDynamically))
}

#[derive(Debug)]
struct Quantize {
    axis: i64,
}

impl Kernel for Quantize {
    fn name(&self) -> &'static str {
        "QuantizeLinear"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input, scale, zero_point @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let to = zero_point
            .first()
            .map_or(DatumType::U8, |zero_point| zero_point.datum_type);
        expect_f32(&[input, scale])?;
        expect_quantized(to, false)?;
        Ok(vec![input.with(to)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let input = elements::<f32>(&inputs[0])?;
        let scales = elements::<f32>(&inputs[1])?;
        let shape = inputs[0].shape();
        let channels = Channels::new(shape, &inputs[1], self.axis)?;
        let zero_points = inputs.get(2).map(|tensor| integers(tensor)).transpose()?;
        let zero_points = zero_points.unwrap_or_else(|| vec![0; scales.len()]);
        ensure!(
            zero_points.len() == scales.len(),
            "as many zero points as scales are expected"
        );
        macro_rules! quantized {
            ($T:ty) => {{
                let quantized = |(index, &value): (usize, &f32)| {
                    let channel = channels.of(index);
                    let rounded = (value / scales[channel]).round_ties_even();
                    // Both saturate: a float beyond i32 becomes its largest, and the sum is clamped.
                    let shifted = i64::from(rounded as i32) + i64::from(zero_points[channel]);
                    shifted.clamp(<$T>::MIN.into(), <$T>::MAX.into()) as $T
                };
                tensor(shape, input.iter().enumerate().map(quantized).collect())
            }};
        }
        let to = inputs
            .get(2)
            .map_or(DatumType::U8, |zero_point| zero_point.datum_type());
        Ok(tvec![match to {
            DatumType::U8 => quantized!(u8)?,
            DatumType::I8 => quantized!(i8)?,
            DatumType::U16 => quantized!(u16)?,
            _ => quantized!(i16)?,
        }])
    }
}

#[derive(Debug)]
struct Dequantize {
    axis: i64,
}

impl Kernel for Dequantize {
    fn name(&self) -> &'static str {
        "DequantizeLinear"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input, scale, zero_point @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        expect_f32(&[scale])?;
        expect_quantized(input.datum_type, true)?;
        if let Some(zero_point) = zero_point.first() {
            ensure!(
                zero_point.datum_type == input.datum_type,
                "the zero point has another type"
            );
        }
        Ok(vec![input.with(DatumType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let input = integers(&inputs[0])?;
        let scales = elements::<f32>(&inputs[1])?;
        let shape = inputs[0].shape();
        let channels = Channels::new(shape, &inputs[1], self.axis)?;
        let zero_points = inputs.get(2).map(|tensor| integers(tensor)).transpose()?;
        let zero_points = zero_points.unwrap_or_else(|| vec![0; scales.len()]);
        ensure!(
            zero_points.len() == scales.len(),
            "as many zero points as scales are expected"
        );
        let value = |(index, &value): (usize, &i32)| {
            let channel = channels.of(index);
            (i64::from(value) - i64::from(zero_points[channel])) as f32 * scales[channel]
        };
        Ok(tvec![tensor(
            shape,
            input.iter().enumerate().map(value).collect()
        )?])
    }
}

#[derive(Debug)]
struct QuantizeDynamically;

impl Kernel for QuantizeDynamically {
    fn name(&self) -> &'static str {
        "DynamicQuantizeLinear"
    }

    fn output_count(&self) -> usize {
        3
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        expect_f32(&[input])?;
        Ok(vec![
            input.with(DatumType::U8),
            Fact::new(DatumType::F32, []),
            Fact::new(DatumType::U8, []),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let input = elements::<f32>(&inputs[0])?;
        let (scale, zero_point) = range(input);
        let quantized =
            |&value: &f32| ((value / scale).round_ties_even() + zero_point).clamp(0.0, 255.0) as u8;
        Ok(tvec![
            tensor(inputs[0].shape(), input.iter().map(quantized).collect())?,
            tensor0(scale),
            tensor0(zero_point as u8),
        ])
    }
}

/// The scale and the zero point for these values in 8 bits.
fn range(values: &[f32]) -> (f32, f32) {
    // The range always includes zero, so that zero is exact.
    let least = values.iter().copied().fold(0.0, f32::min);
    let greatest = values.iter().copied().fold(0.0, f32::max);
    let scale = if least == greatest {
        1.0
    } else {
        (greatest - least) / 255.0
    };
    (scale, (-least / scale).clamp(0.0, 255.0).round_ties_even())
}

/// Which scale an element has.
struct Channels {
    inner: usize,
    count: usize,
}

impl Channels {
    fn new(shape: &[usize], scales: &Tensor, axis: i64) -> TractResult<Self> {
        let count = scales.len();
        if count == 1 {
            return Ok(Self { inner: 1, count });
        }
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len());
        let axis = axis.context("the axis is outside of the input's dimensions")?;
        ensure!(
            shape[axis] == count && scales.rank() == 1,
            "{count} scales for {} channels",
            shape[axis]
        );
        let inner = shape[axis + 1..].iter().product();
        Ok(Self { inner, count })
    }

    fn of(&self, index: usize) -> usize {
        (index / self.inner) % self.count
    }
}

fn integers(tensor: &Tensor) -> TractResult<Vec<i32>> {
    Ok(match tensor.datum_type() {
        DatumType::U8 => elements::<u8>(tensor)?.iter().map(|&x| x.into()).collect(),
        DatumType::I8 => elements::<i8>(tensor)?.iter().map(|&x| x.into()).collect(),
        DatumType::U16 => elements::<u16>(tensor)?.iter().map(|&x| x.into()).collect(),
        DatumType::I16 => elements::<i16>(tensor)?.iter().map(|&x| x.into()).collect(),
        _ => elements::<i32>(tensor)?.to_vec(),
    })
}

fn expect_f32(facts: &[&Fact]) -> TractResult<()> {
    if facts.iter().all(|fact| fact.datum_type == DatumType::F32) {
        return Ok(());
    }
    bail!(Limit(
        "is supported with floats and scales of FP32 only".to_owned()
    ))
}

fn expect_quantized(datum_type: DatumType, or_i32: bool) -> TractResult<()> {
    use DatumType::{I8, I16, I32, U8, U16};
    if matches!(datum_type, U8 | I8 | U16 | I16) || (or_i32 && datum_type == I32) {
        return Ok(());
    }
    bail!(Limit(
        "is supported with integers of 8 and 16 bits only".to_owned()
    ))
}
