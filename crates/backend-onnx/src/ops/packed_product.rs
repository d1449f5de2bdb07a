//! ONNX Runtime's `MatMulNBits`: a product with a matrix of whole numbers of few bits, which have a scale for each block of a
//! column. A column is unpacked once for all rows, so that the matrix never is in memory as floats.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    elements::{elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    building::BuildContext,
    faults::{Limit, ensure_input},
    lowered::OnnxNode,
};

pub(crate) fn packed_product(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let bits = attributes.int("bits", 4);
    if !matches!(bits, 2 | 4 | 8) {
        bail!(Limit(format!("numbers of {bits} bits are not supported")));
    }
    if attributes.has_input(4) || attributes.int("weight_prepacked", 0) != 0 {
        bail!(Limit("an order of groups is not supported".to_owned()));
    }
    let size = |name: &str| -> TractResult<usize> {
        let size = usize::try_from(attributes.int(name, 0)).ok();
        let size = size.filter(|size| (1..1 << 31).contains(size));
        size.with_context(|| format!("{name} must be a positive number"))
    };
    Ok(kernel(PackedProduct {
        bits: bits as usize,
        depth: size("K")?,
        columns: size("N")?,
        block: size("block_size")?,
        zero_points: attributes.position(3),
        bias: attributes.position(5),
    }))
}

#[derive(Debug)]
struct PackedProduct {
    bits: usize,
    depth: usize,
    columns: usize,
    /// How many numbers have one scale.
    block: usize,
    /// Which inputs these are.
    zero_points: Option<usize>,
    bias: Option<usize>,
}

impl PackedProduct {
    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }
}

impl Kernel for PackedProduct {
    fn name(&self) -> &'static str {
        "MatMulNBits"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input, packed, scales, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let is_float = |fact: &Fact| fact.datum_type == DatumType::F32;
        ensure!(
            is_float(input) && is_float(scales) && packed.datum_type == DatumType::U8,
            "expected numbers and scales of FP32, and weights of UINT8"
        );
        let mut output = input.with(input.datum_type);
        let last = output.shape.last_mut().context("a scalar")?;
        if let Ok(depth) = last.to_i64() {
            ensure!(depth == self.depth as i64, "rows of {depth}, not {}", self.depth);
        }
        *last = self.columns.to_dim();
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (input, packed, scales) = (
            elements::<f32>(&inputs[0])?,
            elements::<u8>(&inputs[1])?,
            elements::<f32>(&inputs[2])?,
        );
        let mut shape = inputs[0].shape().to_vec();
        let last = shape.last_mut().context("a scalar")?;
        ensure_input!(*last == self.depth, "rows of {last}, not {}", self.depth);
        *last = self.columns;
        let blocks = self.blocks();
        let bytes = (self.block * self.bits).div_ceil(8);
        let all_blocks = self.columns.checked_mul(blocks);
        let all_bytes = all_blocks.and_then(|blocks| blocks.checked_mul(bytes));
        ensure!(
            all_bytes == Some(packed.len()) && all_blocks == Some(scales.len()),
            "weights or scales of another size than K, N and block_size say"
        );
        let zero_points = self.zero_points.map(|place| &inputs[place]);
        let zero_points = self.zero_points_of(zero_points.map(AsRef::as_ref))?;
        let bias = self
            .bias
            .map(|place| elements::<f32>(&inputs[place]))
            .transpose()?;
        let bias = bias.unwrap_or(&[]);
        ensure!(
            bias.is_empty() || bias.len() == self.columns,
            "a bias of {}",
            bias.len()
        );
        let rows = input.len() / self.depth;
        let mut made = vec![0.0; rows * self.columns];
        let mut column = vec![0.0; self.depth];
        for at in 0..self.columns {
            let blocks = at * blocks..(at + 1) * blocks;
            let packed = packed[blocks.start * bytes..blocks.end * bytes].chunks_exact(bytes);
            let places = packed.zip(&scales[blocks.clone()]).zip(&zero_points[blocks]);
            for (column, ((packed, scale), zero_point)) in column.chunks_mut(self.block).zip(places) {
                self.unpack(packed, *scale, *zero_point, column);
            }
            let bias = bias.get(at).copied().unwrap_or(0.0);
            for (row, input) in input.chunks_exact(self.depth).enumerate() {
                made[row * self.columns + at] = dot(input, &column) + bias;
            }
        }
        Ok(tvec![tensor(&shape, made)?])
    }
}

impl PackedProduct {
    /// For each block.
    fn zero_points_of(&self, given: Option<&Tensor>) -> TractResult<Vec<f32>> {
        let blocks = self.blocks();
        let Some(given) = given else {
            return Ok(vec![(1 << (self.bits - 1)) as f32; self.columns * blocks]);
        };
        let zero_points = match given.datum_type() {
            DatumType::F32 => elements::<f32>(given)?.to_vec(),
            _ => {
                // Those of each column begin with a byte of their own.
                let row = (blocks * self.bits).div_ceil(8);
                let rows = elements::<u8>(given)?.chunks_exact(row);
                rows.flat_map(|row| (0..blocks).map(move |block| f32::from(self.number(row, block))))
                    .collect()
            }
        };
        ensure!(
            zero_points.len() == self.columns * blocks,
            "{} zero points for {} blocks",
            zero_points.len(),
            self.columns * blocks
        );
        Ok(zero_points)
    }

    /// One of the numbers in some bytes, the lowest bits first.
    fn number(&self, packed: &[u8], index: usize) -> u8 {
        let at = index * self.bits;
        let shifted = packed[at / 8] >> (at % 8);
        shifted & (u8::MAX >> (8 - self.bits))
    }

    fn unpack(&self, packed: &[u8], scale: f32, zero_point: f32, column: &mut [f32]) {
        if self.bits == 4 {
            let weight = |number: u8| (f32::from(number) - zero_point) * scale;
            for (pair, &byte) in column.chunks_mut(2).zip(packed) {
                pair[0] = weight(byte & 15);
                if let Some(second) = pair.get_mut(1) {
                    *second = weight(byte >> 4);
                }
            }
            return;
        }
        for (index, weight) in column.iter_mut().enumerate() {
            *weight = (f32::from(self.number(packed, index)) - zero_point) * scale;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    pulp::Arch::new().dispatch(|| {
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        let mut lanes = [0.0; LANES];
        for (a, b) in a.iter().zip(b) {
            for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
                *lane += a * b;
            }
        }
        let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
        lanes.iter().sum::<f32>() + rest
    })
}
