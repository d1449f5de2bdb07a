//! Convolutions of 8-bit numbers by constant weights, as convolutions of FP32, and products of matrices with scales, as products without and
//! what follows them: on processors without instructions for 8 bits, tract's take up to a hundred times as long.
//!
//! Sums of whole numbers are exact in FP32 up to 2^24, in any order. Where weights could give more, the channels are convolved in
//! parts, whose sums are added as INT32.

use std::{collections::HashMap, ops::Range};

use super::graph::{any_graph, floats, int, node};
use crate::{
    ops::{self, NEWEST},
    payload::{Data, Payload},
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, canonical_domain,
        tensor_proto::DataType,
    },
};

/// Up to here all whole numbers are FP32.
const MAX_SUM: u64 = 1 << 24;

/// The largest difference of an 8-bit number and a zero point.
const MAX_INPUT: u64 = 255;

/// Parts of one convolution.
const MAX_PARTS: usize = 64;

pub(super) fn are_used(model: &ModelProto) -> bool {
    let uses = |graph: &GraphProto| graph.node.iter().any(is_replaceable);
    ops::are_floats_quicker() && model.graph.as_ref().is_some_and(|graph| any_graph(graph, &uses))
}

fn is_replaceable(node: &NodeProto) -> bool {
    canonical_domain(&node.domain).is_empty()
        && matches!(
            node.op_type.as_str(),
            "ConvInteger" | "QLinearConv" | "QLinearMatMul"
        )
}

/// Replaces what can be.
pub(super) fn replace(model: &mut ModelProto) {
    if !are_used(model) {
        return;
    }
    if let Some(graph) = &mut model.graph {
        replace_in(graph);
    }
}

fn replace_in(graph: &mut GraphProto) {
    let constants = std::mem::take(&mut graph.initializer);
    let mut made = Made::default();
    let known: HashMap<&str, &TensorProto> = constants
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    for mut node in std::mem::take(&mut graph.node) {
        let inner = node.attribute.iter_mut();
        inner
            .filter_map(|attribute| attribute.g.as_mut())
            .for_each(replace_in);
        let written = match is_replaceable(&node) {
            true if node.op_type == "QLinearMatMul" => made.product(&node, &known),
            true => made.convolution(&node, &known),
            false => None,
        };
        if written.is_none() {
            made.nodes.push(node);
        }
    }
    graph.node = made.nodes;
    graph.initializer = constants;
    graph.initializer.extend(made.constants);
}

/// Which inputs of a node are what.
struct Places {
    weights: usize,
    input_zero_point: usize,
    weights_zero_point: usize,
}

/// Weights as FP32, without their zero points.
struct Weights {
    dims: Vec<i64>,
    /// Of all channels of the result, the largest sum of absolute values.
    largest: u64,
    /// Channels of the input that are convolved together, and the constant with their weights.
    parts: Vec<(Range<i64>, String)>,
}

/// What the nodes of a graph become.
#[derive(Default)]
struct Made {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// By the names of the weights; with one zero point each, so that constants take no more than four times the memory.
    weights: HashMap<String, (String, Option<Weights>)>,
}

impl Made {
    /// A product of matrices, whose scales are one for the first factor and the result each.
    fn product(&mut self, node: &NodeProto, known: &HashMap<&str, &TensorProto>) -> Option<()> {
        let [output] = &*node.output else {
            return None;
        };
        let inputs: Option<Vec<&str>> = (0..8).map(|place| input(node, place)).collect();
        let &[a, a_scale, a_zero, b, b_scale, b_zero, scale, zero] = &*inputs? else {
            return None;
        };
        let count = |name: &str| -> Option<i64> {
            let dims = &known.get(name)?.dims;
            (dims.len() < 2).then(|| dims.iter().product())
        };
        if count(a_scale) != Some(1) || count(scale) != Some(1) || count(b_scale).is_none() {
            return None;
        }
        let mut writer = Writer {
            made: self,
            node,
            output,
            count: 0,
        };
        let sums = writer.op("MatMulInteger", &[a, b, a_zero, b_zero], vec![]);
        writer.requantized(&sums, [a_scale, b_scale, scale], zero, -1);
        Some(())
    }

    fn convolution(&mut self, node: &NodeProto, known: &HashMap<&str, &TensorProto>) -> Option<()> {
        let is_integer = node.op_type == "ConvInteger";
        let places = match is_integer {
            true => Places {
                weights: 1,
                input_zero_point: 2,
                weights_zero_point: 3,
            },
            false => Places {
                weights: 3,
                input_zero_point: 2,
                weights_zero_point: 5,
            },
        };
        let [output] = &*node.output else {
            return None;
        };
        let bias = match input(node, 8).filter(|_| !is_integer) {
            Some(bias) => Some(numbers(known.get(bias)?, DataType::Int32)?),
            None => None,
        };
        let largest_bias = bias
            .iter()
            .flatten()
            .map(|&number| u64::from(number.unsigned_abs()))
            .max();
        let largest_bias = largest_bias.unwrap_or(0);
        let weights = self.weights(node, &places, known)?;
        let (parts, dims) = (weights.parts.clone(), weights.dims.clone());
        let is_grouped = node
            .attribute
            .iter()
            .any(|attribute| attribute.name == "group" && attribute.i != 1);
        // The channels of groups are not beside each other in the input.
        if parts.len() > 1 && is_grouped {
            return None;
        }
        // The bias is one more term where there is room for it.
        let takes_bias = parts.len() == 1 && weights.largest * MAX_INPUT + largest_bias <= MAX_SUM;
        let bias_of_sums = bias.as_ref().filter(|_| takes_bias);

        let image = input(node, 0)?;
        let scales = match is_integer {
            true => None,
            false => Some((
                [input(node, 1)?, input(node, 4)?, input(node, 6)?],
                input(node, 7)?,
            )),
        };

        let mut writer = Writer {
            made: self,
            node,
            output,
            count: 0,
        };
        let mut x = writer.op("Cast", &[image], vec![int("to", DataType::Float as i64)]);
        if let Some(zero_point) = input(node, places.input_zero_point)
            && !known
                .get(zero_point)
                .is_some_and(|zero_point| is_zero(zero_point))
        {
            let zero_point = writer.op("Cast", &[zero_point], vec![int("to", DataType::Float as i64)]);
            x = writer.op("Sub", &[&x, &zero_point], vec![]);
        }
        let mut sums: Option<String> = None;
        for (channels, weights) in &parts {
            let slice = match parts.len() {
                1 => x.clone(),
                _ => writer.slice(&x, channels),
            };
            let mut inputs = vec![slice, weights.clone()];
            if let Some(bias) = bias_of_sums {
                let bias: Vec<f32> = bias.iter().map(|&number| number as f32).collect();
                let dims = vec![bias.len() as i64];
                inputs.push(writer.constant(|name| floats(name, &bias, dims)));
            }
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            let mut part = writer.op("Conv", &inputs, node.attribute.clone());
            if parts.len() > 1 || is_integer || (bias.is_some() && !takes_bias) {
                part = writer.op("Cast", &[&part], vec![int("to", DataType::Int32 as i64)]);
            }
            sums = Some(match sums {
                Some(sums) => writer.op("Add", &[&sums, &part], vec![]),
                None => part,
            });
        }
        let mut sums = sums?;
        let Some((scales, zero_point)) = scales else {
            writer.give("Identity", "", &[&sums], vec![]);
            return Some(());
        };
        if let Some(bias) = bias.filter(|_| !takes_bias) {
            let mut shape = vec![1; dims.len() - 1];
            shape[0] = bias.len() as i64;
            let bias = writer.constant(|name| whole_numbers(name, &bias, shape));
            sums = writer.op("Add", &[&sums, &bias], vec![]);
        }
        writer.requantized(&sums, scales, zero_point, 1);
        Some(())
    }

    /// The weights of a node, if they can be FP32.
    fn weights(
        &mut self,
        node: &NodeProto,
        places: &Places,
        known: &HashMap<&str, &TensorProto>,
    ) -> Option<&Weights> {
        let name = input(node, places.weights)?;
        let zero_point = input(node, places.weights_zero_point).unwrap_or_default();
        if !self.weights.contains_key(name) {
            let made = self.converted(name, zero_point, known);
            self.weights
                .insert(name.to_owned(), (zero_point.to_owned(), made));
        }
        let (made_for, weights) = self.weights.get(name)?;
        weights.as_ref().filter(|_| made_for == zero_point)
    }

    fn converted(
        &mut self,
        name: &str,
        zero_point: &str,
        known: &HashMap<&str, &TensorProto>,
    ) -> Option<Weights> {
        let tensor = known.get(name)?;
        let mut values = bytes(tensor)?;
        let dims = tensor.dims.clone();
        let [rows, channels, kernel @ ..] = &*dims else {
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
        let sum = |row: &[i32], channels: Range<usize>| -> u64 {
            let values = &row[channels.start * taps..channels.end * taps];
            values.iter().map(|value| u64::from(value.unsigned_abs())).sum()
        };
        let sums = |channels: Range<usize>| {
            let rows = values.chunks_exact(depth);
            rows.map(|row| sum(row, channels.clone())).collect::<Vec<u64>>()
        };
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let (mut start, mut so_far) = (0, vec![0; rows]);
        for channel in 0..channels {
            let more = sums(channel..channel + 1);
            let fits = |(sum, more): (&u64, &u64)| (sum + more) * MAX_INPUT <= MAX_SUM;
            if !so_far.iter().zip(&more).all(fits) {
                if start == channel {
                    return None;
                }
                ranges.push(start..channel);
                (start, so_far) = (channel, vec![0; rows]);
                if !so_far.iter().zip(&more).all(fits) {
                    return None;
                }
            }
            so_far.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
        }
        ranges.push(start..channels);
        if ranges.len() > MAX_PARTS {
            return None;
        }
        let largest = sums(0..channels).into_iter().max()?;
        let parts = ranges.into_iter().enumerate().map(|(part, range)| {
            let mut dims = dims.clone();
            dims[1] = range.len() as i64;
            let rows = values.chunks_exact(depth);
            let part_values = rows.flat_map(|row| &row[range.start * taps..range.end * taps]);
            let part_values: Vec<f32> = part_values.map(|&value| value as f32).collect();
            let part_name = format!("{name}~fp32~{part}");
            self.constants.push(floats(part_name.clone(), &part_values, dims));
            (range.start as i64..range.end as i64, part_name)
        });
        Some(Weights {
            parts: parts.collect(),
            dims,
            largest,
        })
    }
}

/// Writes the nodes that replace one.
struct Writer<'w> {
    made: &'w mut Made,
    node: &'w NodeProto,
    output: &'w str,
    count: usize,
}

impl Writer<'_> {
    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}~{}~", self.output, self.count)
    }

    fn op(&mut self, op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let output = self.fresh();
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        let made = node(op_type, &self.node.name, inputs, output.clone(), attributes);
        self.made.nodes.push(made);
        output
    }

    /// Sums of products, brought to the scale of the result. The scale of the second factor may be one for each place of an axis.
    fn requantized(&mut self, sums: &str, [first, second, result]: [&str; 3], zero_point: &str, axis: i64) {
        let scale = self.op("Mul", &[first, second], vec![]);
        let scale = self.op("Div", &[&scale, result], vec![]);
        let inputs = [sums, &scale, zero_point];
        self.give("Requantize", NEWEST, &inputs, vec![int("axis", axis)]);
    }

    /// The node's own output.
    fn give(&mut self, op_type: &str, domain: &str, inputs: &[&str], attributes: Vec<AttributeProto>) {
        self.op(op_type, inputs, attributes);
        if let Some(made) = self.made.nodes.last_mut() {
            domain.clone_into(&mut made.domain);
            made.output = vec![self.output.to_owned()];
        }
    }

    fn constant(&mut self, tensor: impl FnOnce(String) -> TensorProto) -> String {
        let name = self.fresh();
        self.made.constants.push(tensor(name.clone()));
        name
    }

    fn slice(&mut self, x: &str, channels: &Range<i64>) -> String {
        let ends = [channels.start, channels.end, 1].map(|place| {
            self.constant(|name| TensorProto {
                name,
                dims: vec![1],
                data_type: DataType::Int64 as i32,
                int64_data: vec![place],
                ..TensorProto::default()
            })
        });
        self.op("Slice", &[x, &ends[0], &ends[1], &ends[2]], vec![])
    }
}

fn whole_numbers(name: String, values: &[i32], dims: Vec<i64>) -> TensorProto {
    TensorProto {
        name,
        dims,
        data_type: DataType::Int32 as i32,
        int32_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// An input that is given.
fn input(node: &NodeProto, place: usize) -> Option<&str> {
    let name = node.input.get(place)?;
    (!name.is_empty()).then_some(name)
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

fn is_zero(tensor: &TensorProto) -> bool {
    bytes(tensor).is_some_and(|numbers| numbers.iter().all(|&number| number == 0))
}
