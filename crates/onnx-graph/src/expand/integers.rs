//! Convolutions of 8-bit numbers by constant weights, as convolutions of FP32, and products of matrices with scales, as products without
//! and what follows them: on processors without instructions for 8 bits, convolutions of bytes take up to forty times as long.
//!
//! Sums of whole numbers are exact in FP32 up to 2^24, in any order. Where weights could give more, the channels are convolved in
//! parts, whose sums are added as INT32.

use std::{collections::HashMap, ops::Range};

use super::{
    graph::{any_graph, floats, int, onnx_opset},
    replacement::{Known, Replacement, replace_nodes},
};
use crate::{
    Error,
    payload::{Data, Payload},
    proto::{GraphProto, ModelProto, NodeProto, TensorProto, canonical_domain, tensor_proto::DataType},
};

/// Up to here all whole numbers are FP32.
const MAX_SUM: u64 = 1 << 24;

/// The largest difference of an 8-bit number and a zero point.
const MAX_INPUT: u64 = 255;

/// Parts of one convolution.
const MAX_PARTS: usize = 64;

pub(super) fn are_used(model: &ModelProto) -> bool {
    let uses = |graph: &GraphProto| graph.node.iter().any(is_replaceable);
    model.graph.as_ref().is_some_and(|graph| any_graph(graph, &uses))
}

fn is_replaceable(node: &NodeProto) -> bool {
    canonical_domain(&node.domain).is_empty()
        && matches!(
            node.op_type.as_str(),
            "ConvInteger" | "QLinearConv" | "QLinearMatMul"
        )
}

/// Replaces what can be.
pub(super) fn replace(model: &mut ModelProto) -> Result<(), Error> {
    if !are_used(model) {
        return Ok(());
    }
    let opset = onnx_opset(model);
    let Some(graph) = &mut model.graph else {
        return Ok(());
    };
    replace_nodes(
        graph,
        opset,
        &is_replaceable,
        &|new, converted: &mut Converted| {
            Ok(match new.node.op_type.as_str() {
                "QLinearMatMul" => product(new),
                _ => convolution(new, converted),
            })
        },
    )
}

/// A product of matrices, whose scales are one for the first factor and the result each.
fn product(new: &mut Replacement<'_>) -> Option<()> {
    let inputs: Option<Vec<String>> = (0..8).map(|place| new.input(place)).collect();
    let Ok([a, a_scale, a_zero, b, b_scale, b_zero, scale, zero]) = <[String; 8]>::try_from(inputs?) else {
        return None;
    };
    let count = |name: &str| -> Option<i64> {
        let dims = new.dims(name)?;
        (dims.len() < 2).then(|| dims.iter().product())
    };
    if count(&a_scale) != Some(1) || count(&scale) != Some(1) || count(&b_scale).is_none() {
        return None;
    }
    let sums = new.op("MatMulInteger", &[a, b, a_zero, b_zero], vec![]);
    requantized(new, sums, [a_scale, b_scale, scale], zero, -1)
}

fn convolution(new: &mut Replacement<'_>, converted: &mut Converted) -> Option<()> {
    let is_integer = new.node.op_type == "ConvInteger";
    let (weights, weights_zero) = if is_integer { (1, 3) } else { (3, 5) };
    let (image, weights) = (new.input(0)?, new.input(weights)?);
    let weights_zero = new.input(weights_zero).unwrap_or_default();
    let image_zero = new.input(2).filter(|name| {
        let zero = new.known.get(name.as_str()).and_then(|tensor| bytes(tensor));
        zero.is_none_or(|numbers| numbers.iter().any(|&number| number != 0))
    });
    let (scales, bias) = match is_integer {
        true => (None, None),
        false => {
            let scales = [new.input(1)?, new.input(4)?, new.input(6)?];
            (Some((scales, new.input(7)?)), new.input(8))
        }
    };
    let largest_bias = match &bias {
        None => 0,
        Some(bias) => {
            let numbers = numbers(new.known.get(bias.as_str())?, DataType::Int32)?;
            numbers
                .iter()
                .map(|number| number.unsigned_abs().into())
                .max()
                .unwrap_or(0)
        }
    };
    let weights = converted.weights(new.known, weights, &weights_zero)?;
    let is_whole = weights.parts.len() == 1;
    // The channels of groups are not beside each other in the input.
    if !is_whole && new.int("group", 1) != 1 {
        return None;
    }
    // The bias is one more term where there is room for it.
    let takes_bias = is_whole && weights.largest * MAX_INPUT + largest_bias <= MAX_SUM;
    let (bias_of_convolution, bias_of_sums) = bias.map_or((None, None), |bias| match takes_bias {
        true => (Some(bias), None),
        false => (None, Some(bias)),
    });

    let mut x = cast(new, image, DataType::Float);
    if let Some(zero) = image_zero {
        let zero = cast(new, zero, DataType::Float);
        x = new.op("Sub", &[x, zero], vec![]);
    }
    let mut sums: Option<String> = None;
    for part in &mut weights.parts {
        new.constants.extend(part.constant.take());
        let image = match is_whole {
            true => x.clone(),
            false => {
                let ends = [part.channels.start, part.channels.end, 1].map(|place| new.indices(&[place]));
                new.op("Slice", &[[x.clone()].as_slice(), &ends].concat(), vec![])
            }
        };
        let mut inputs = vec![image, part.name.clone()];
        inputs.extend(
            bias_of_convolution
                .clone()
                .map(|bias| cast(new, bias, DataType::Float)),
        );
        let mut sum = new.op("Conv", &inputs, new.node.attribute.clone());
        if !is_whole || is_integer || bias_of_sums.is_some() {
            sum = cast(new, sum, DataType::Int32);
        }
        sums = Some(match sums {
            Some(sums) => new.op("Add", &[sums, sum], vec![]),
            None => sum,
        });
    }
    let mut sums = sums?;
    if let Some(bias) = bias_of_sums {
        let mut shape = vec![1; weights.rank - 1];
        shape[0] = -1;
        let shape = new.indices(&shape);
        let bias = new.op("Reshape", &[bias, shape], vec![]);
        sums = new.op("Add", &[sums, bias], vec![]);
    }
    match scales {
        Some((scales, zero)) => requantized(new, sums, scales, zero, 1),
        None => {
            new.give(0, sums);
            Some(())
        }
    }
}

fn cast(new: &mut Replacement<'_>, x: String, to: DataType) -> String {
    new.op("Cast", &[x], vec![int("to", to as i64)])
}

/// Sums of products, brought to the scale of the result. The scale of the second factor may be one for each place of an axis.
fn requantized(
    new: &mut Replacement<'_>,
    sums: String,
    [first, second, result]: [String; 3],
    zero_point: String,
    axis: i64,
) -> Option<()> {
    let scale = new.op("Mul", &[first, second], vec![]);
    let scale = new.op("Div", &[scale, result], vec![]);
    let y = new.newer("Requantize", &[sums, scale, zero_point], vec![int("axis", axis)]);
    new.give(0, y);
    Some(())
}

/// Weights of a graph as FP32, by their names; with one zero point each, so that constants take no more than four times the memory.
#[derive(Default)]
struct Converted(HashMap<String, (String, Option<Weights>)>);

/// Weights as FP32, without their zero points.
struct Weights {
    rank: usize,
    /// Of all channels of the result, the largest sum of absolute values.
    largest: u64,
    parts: Vec<Part>,
}

/// Channels of the input that are convolved together.
struct Part {
    channels: Range<i64>,
    name: String,
    /// Until a node uses it.
    constant: Option<TensorProto>,
}

impl Converted {
    /// If they can be FP32, and for no other zero point before.
    fn weights(&mut self, known: &Known<'_>, name: String, zero_point: &str) -> Option<&mut Weights> {
        let found = self.0.entry(name).or_insert_with_key(|name| {
            let weights = Weights::new(known, name, zero_point);
            (zero_point.to_owned(), weights)
        });
        found.1.as_mut().filter(|_| found.0 == zero_point)
    }
}

impl Weights {
    fn new(known: &Known<'_>, name: &str, zero_point: &str) -> Option<Self> {
        let tensor = known.get(name)?;
        let mut values = bytes(tensor)?;
        let [rows, channels, kernel @ ..] = &*tensor.dims else {
            return None;
        };
        let (rows, channels) = (usize::try_from(*rows).ok()?, usize::try_from(*channels).ok()?);
        let depth = values.len().checked_div(rows)?;
        let taps = depth.checked_div(channels)?;
        if kernel.is_empty() || taps == 0 {
            return None;
        }
        if !zero_point.is_empty() {
            let zero_points = bytes(known.get(zero_point)?)?;
            if zero_points.len() != 1 && zero_points.len() != rows {
                return None;
            }
            for (row, values) in values.chunks_exact_mut(depth).enumerate() {
                let zero_point = zero_points[row % zero_points.len()];
                values.iter_mut().for_each(|value| *value -= zero_point);
            }
        }
        let of_channels = |channels: Range<usize>| {
            let rows = values.chunks_exact(depth);
            rows.map(move |row| &row[channels.start * taps..channels.end * taps])
        };
        let sums = |channels: Range<usize>| -> Vec<u64> {
            let sum = |values: &[i32]| values.iter().map(|value| u64::from(value.unsigned_abs())).sum();
            of_channels(channels).map(sum).collect()
        };
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let (mut start, mut so_far) = (0, vec![0; rows]);
        for channel in 0..channels {
            let more = sums(channel..channel + 1);
            let is_fine = |sum: u64| sum * MAX_INPUT <= MAX_SUM;
            if !more.iter().all(|&sum| is_fine(sum)) {
                return None;
            }
            let mut together = so_far.iter().zip(&more);
            if !together.all(|(sum, more)| is_fine(sum + more)) {
                ranges.push(start..channel);
                (start, so_far) = (channel, vec![0; rows]);
            }
            so_far.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
        }
        ranges.push(start..channels);
        if ranges.len() > MAX_PARTS {
            return None;
        }
        let parts = ranges.into_iter().enumerate().map(|(part, range)| {
            let mut dims = tensor.dims.clone();
            dims[1] = range.len() as i64;
            let values = of_channels(range.clone()).flatten();
            let values: Vec<f32> = values.map(|&value| value as f32).collect();
            let name = format!("{name}~fp32~{part}");
            Part {
                channels: range.start as i64..range.end as i64,
                constant: Some(floats(name.clone(), &values, dims)),
                name,
            }
        });
        Some(Self {
            rank: tensor.dims.len(),
            largest: sums(0..channels).into_iter().max()?,
            parts: parts.collect(),
        })
    }
}

/// The numbers of a constant of 8 bits.
fn bytes(tensor: &TensorProto) -> Option<Vec<i32>> {
    numbers(tensor, DataType::Int8).or_else(|| numbers(tensor, DataType::Uint8))
}

/// The numbers of a constant of this type. A damaged one is left to its reader, which says what is wrong.
fn numbers(tensor: &TensorProto, data_type: DataType) -> Option<Vec<i32>> {
    if tensor.data_type != data_type as i32 {
        return None;
    }
    let Data::Fixed(bytes) = Payload::read(tensor).ok()?.data else {
        return None;
    };
    Some(match data_type {
        DataType::Int8 => bytes.iter().map(|&byte| byte.cast_signed().into()).collect(),
        DataType::Uint8 => bytes.iter().map(|&byte| byte.into()).collect(),
        _ => {
            let (numbers, _) = bytes.as_chunks();
            numbers.iter().map(|&number| i32::from_le_bytes(number)).collect()
        }
    })
}
