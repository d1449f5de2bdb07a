//! ONNX Runtime's `GatherBlockQuantized`: rows of a table of low-bit integers with a scale per block. Only
//! gathered rows are dequantized.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::quant::quantize::integers;
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `GatherBlockQuantized`.
pub fn packed_rows(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let bits = attributes.int("bits", 4);
    let block = attributes.int("block_size", 128);
    // Nodes of ONNX Runtime's domain read packed elements. For all other nodes, 4-bit constants are already
    // widened to bytes.
    let is_wide = node.domain != "com.microsoft";
    let axis = attributes.int("gather_axis", 0);
    if !matches!(bits, 4 | 8) || (is_wide && bits != 4) || axis != 0 {
        bail!(Unsupported::Here(format!(
            "'bits' is {bits} and 'gather_axis' is {axis}, expected 4 or 8 bits, and axis 0"
        )));
    }
    ensure!(
        (1..1 << 24).contains(&block),
        "block_size is {block}, expected a positive number"
    );
    Ok(kernel(PackedRows {
        per_byte: if bits == 4 && !is_wide { 2 } else { 1 },
        middle: match (is_wide, bits) {
            (true, _) => 0,
            (false, 4) => 8,
            (false, _) => 128,
        },
        axis: attributes.int("quantize_axis", 1),
        block: block as usize,
        zero_points: attributes.position(3),
    }))
}

#[derive(Debug)]
struct PackedRows {
    /// Number of elements per byte along the last axis.
    per_byte: usize,
    /// The zero point of all blocks if the node has no zero points.
    middle: i32,
    axis: i64,
    block: usize,
    zero_points: Option<usize>,
}

impl Kernel for PackedRows {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [table, rows, scales, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let rank = table.rank();
        let is_last = self.axis == -1 || (rank > 0 && self.axis == rank as i64 - 1);
        let is_byte = match self.per_byte {
            1 => matches!(table.element_type, ElementType::U8 | ElementType::I8),
            _ => table.element_type == ElementType::U8,
        };
        if !is_byte
            || scales.element_type != ElementType::F32
            || !is_last
            || rank < 2
            || scales.rank() != rank
        {
            bail!(Unsupported::Here(
                "is supported for tables of bytes with blocks of the last axis and scales of FP32".to_owned()
            ));
        }
        let mut shape = rows.shape.clone();
        shape.extend(table.shape[1..].iter().copied());
        if let Some(last) = shape.last_mut() {
            *last *= self.per_byte;
        }
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let bytes = shape[shape.len() - 1];
        let lines: usize = shape[1..shape.len() - 1].iter().product();
        let length = bytes * self.per_byte;
        let blocks = length.div_ceil(self.block);
        let scales = elements::<f32>(&inputs[2])?;
        ensure!(
            scales.len() == shape[0] * lines * blocks,
            "{} scales for {} rows of {lines} times {blocks} blocks",
            scales.len(),
            shape[0]
        );
        let zero_points = self.zero_points(inputs, [shape[0], lines, blocks])?;
        let rows = inputs[1].cast_to::<i64>()?;
        let mut made_shape = rows.shape().to_vec();
        made_shape.extend(&shape[1..]);
        if let Some(last) = made_shape.last_mut() {
            *last = length;
        }
        let mut made: Vec<f32> = Vec::with_capacity(made_shape.iter().product());
        let mut pace = Pace::default();
        let table = &inputs[0];
        for &row in elements::<i64>(&rows)? {
            pace.spend(1)?;
            let from_start = if row < 0 {
                row.saturating_add(shape[0] as i64)
            } else {
                row
            };
            let Some(row) = usize::try_from(from_start).ok().filter(|&row| row < shape[0]) else {
                bail!(BadInput(format!("row {row} of a table of {}", shape[0])));
            };
            for line in row * lines..(row + 1) * lines {
                let numbers = self.numbers(table, [line * bytes, bytes], &mut pace)?;
                for (block, numbers) in numbers.chunks(self.block).enumerate() {
                    let scale = scales[line * blocks + block];
                    let zero_point = zero_points.as_ref().map_or(self.middle, |(given, row)| {
                        let byte = given[line * row + block / self.per_byte];
                        match self.per_byte {
                            1 => byte,
                            _ => (byte >> (4 * (block % 2))) & 15,
                        }
                    });
                    for numbers in numbers.chunks(PART) {
                        pace.spend(numbers.len() as u64)?;
                        made.extend(numbers.iter().map(|number| (number - zero_point) as f32 * scale));
                    }
                }
            }
        }
        Ok(smallvec![tensor(&made_shape, made)?])
    }
}

impl PackedRows {
    /// Returns the packed zero points, if they are given, and the number of bytes that they take per line.
    /// Each line starts at a byte boundary.
    fn zero_points(
        &self,
        inputs: &[Arc<Tensor>],
        [rows, lines, blocks]: [usize; 3],
    ) -> Result<Option<(Vec<i32>, usize)>> {
        let Some(place) = self.zero_points else {
            return Ok(None);
        };
        let given = integers(&inputs[place])?;
        let row = blocks.div_ceil(self.per_byte);
        ensure!(
            given.len() == rows * lines * row,
            "{} zero points for {rows} rows of {lines} times {blocks} blocks",
            given.len()
        );
        Ok(Some((given, row)))
    }

    fn numbers(&self, table: &Tensor, [first, count]: [usize; 2], pace: &mut Pace) -> Result<Vec<i32>> {
        if table.element_type() == ElementType::I8 {
            return pace.map(&elements::<i8>(table)?[first..first + count], |&x| x.into());
        }
        let bytes = &elements::<u8>(table)?[first..first + count];
        match self.per_byte {
            1 => pace.map(bytes, |&x| x.into()),
            _ => pace.collect(
                bytes
                    .iter()
                    .flat_map(|&byte| [i32::from(byte & 15), i32::from(byte >> 4)]),
            ),
        }
    }
}
