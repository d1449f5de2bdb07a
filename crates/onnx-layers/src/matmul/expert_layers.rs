//! One layer of all experts of a mixture: its weights (floats or block-quantized integers) and biases.

use std::sync::Arc;

use onnx_gemm::{BlockQuantized, gemm_nt};
use onnx_tensor::{
    cancelling::Pace,
    elements::elements,
    faults::{Unsupported, ensure_input},
    operator::Fact,
    prelude::*,
};

use crate::matmul::packed_columns::{PackedColumns, unpacked_zero_points};

/// The indices of the inputs that belong to a layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) weights: usize,
    pub(super) bias: Option<usize>,
    /// Format of quantized weights; `None` for floats.
    pub(super) packing: Option<Packing>,
}

/// How weights are quantized.
#[derive(Debug)]
pub(super) struct Packing {
    pub(super) bits: usize,
    /// Number of elements per scale; `None` if there is one scale per column.
    pub(super) block: Option<usize>,
    pub(super) scales: usize,
    pub(super) zero_points: Option<usize>,
}

impl Layer {
    /// Refuses inputs of wrong types and ranks.
    pub(super) fn admit(&self, inputs: &[Fact]) -> Result<()> {
        let expect = |place: usize, element_type: ElementType, rank: usize| {
            let fact = inputs.get(place).context("an input is not given")?;
            if fact.element_type != element_type {
                bail!(Unsupported::Here(format!(
                    "is not supported with weights or scales of {}, only with those of {}",
                    fact.element_type.name(),
                    element_type.name()
                )));
            }
            ensure_input!(
                fact.rank() == rank,
                "weights, scales or biases of {} dimensions, expected {rank}",
                fact.rank()
            );
            Ok(())
        };
        match &self.packing {
            None => expect(self.weights, ElementType::F32, 3)?,
            Some(packing) => {
                let rank = 2 + usize::from(packing.block.is_some());
                expect(self.weights, ElementType::U8, 3)?;
                expect(packing.scales, ElementType::F32, rank)?;
                if let Some(place) = packing.zero_points {
                    expect(place, ElementType::U8, rank)?;
                }
            }
        }
        self.bias
            .map_or(Ok(()), |place| expect(place, ElementType::F32, 2))
    }

    /// Returns the matrices of all experts, for rows of `depth` elements.
    pub(super) fn of<'i>(
        &self,
        inputs: &'i [Arc<Tensor>],
        experts: usize,
        depth: usize,
    ) -> Result<Matrices<'i>> {
        let shape = inputs[self.weights].shape();
        let &[count, columns, width] = shape else {
            bail!("weights of {} dimensions", shape.len());
        };
        let weights = match &self.packing {
            None => {
                ensure_input!(width == depth, "weights of {shape:?} for rows of {depth}");
                Weights::Floats(elements::<f32>(&inputs[self.weights])?)
            }
            Some(packing) => Weights::Packed(packing.of(inputs, self.weights, [columns, depth])?),
        };
        let bias = self.bias.map(|place| &inputs[place]);
        ensure_input!(
            count == experts && bias.is_none_or(|bias| bias.shape() == [experts, columns]),
            "weights of {shape:?} and biases of {:?} for {experts} experts",
            bias.map(|bias| bias.shape())
        );
        Ok(Matrices {
            columns,
            depth,
            weights,
            bias: bias.map_or(Ok(&[][..]), |bias| elements::<f32>(bias))?,
        })
    }
}

impl Packing {
    fn of<'i>(
        &self,
        inputs: &'i [Arc<Tensor>],
        weights: usize,
        [columns, depth]: [usize; 2],
    ) -> Result<PackedWeights<'i>> {
        let layout = BlockQuantized::new(self.bits, self.block.unwrap_or(depth).max(1));
        let blocks = layout.blocks(depth);
        let (weights, scales) = (&inputs[weights], &inputs[self.scales]);
        let zero_points = self.zero_points.map(|place| &inputs[place]);
        // A block must consist of whole bytes, so that each column starts at a byte boundary.
        let is_whole = depth > 0 && (self.block.unwrap_or(depth) * self.bits).is_multiple_of(8);
        let fits = is_whole
            && self.block.is_none_or(|block| depth.is_multiple_of(block))
            && weights.shape()[2] == blocks * layout.block_bytes();
        ensure_input!(
            fits,
            "packed weights of {:?} do not fit rows of {depth} numbers of {} bits in {blocks} blocks",
            weights.shape(),
            self.bits
        );
        let experts = weights.shape()[0];
        let rows = |of_columns: usize| match self.block {
            Some(_) => vec![experts, columns, of_columns],
            None => vec![experts, columns],
        };
        let expected = match self.block {
            Some(_) => rows(layout.packed_bytes(blocks)),
            None => vec![experts, layout.packed_bytes(columns)],
        };
        ensure_input!(
            scales.shape() == rows(blocks) && zero_points.is_none_or(|given| given.shape() == expected),
            "scales of {:?} and zero points of {:?}, expected {:?} and {expected:?}",
            scales.shape(),
            zero_points.map(|given| given.shape()),
            rows(blocks)
        );
        Ok(PackedWeights {
            layout,
            packed: elements::<u8>(weights)?,
            scales: elements::<f32>(scales)?,
            zero_points: zero_points.map(|given| elements::<u8>(given)).transpose()?,
            row: if self.block.is_some() { blocks } else { columns },
        })
    }
}

/// The matrices of all experts: `columns` columns of `depth` elements each.
pub(super) struct Matrices<'i> {
    pub(super) columns: usize,
    depth: usize,
    weights: Weights<'i>,
    /// The biases of all experts; empty if there is no bias.
    bias: &'i [f32],
}

enum Weights<'i> {
    Floats(&'i [f32]),
    Packed(PackedWeights<'i>),
}

struct PackedWeights<'i> {
    layout: BlockQuantized,
    packed: &'i [u8],
    scales: &'i [f32],
    zero_points: Option<&'i [u8]>,
    /// Number of zero points that are packed without gaps; after them, packing continues at the next byte
    /// boundary.
    row: usize,
}

impl Matrices<'_> {
    /// Multiplies row-major `rows` by the matrix of one expert and adds its bias.
    pub(super) fn multiply(&self, expert: usize, rows: &[f32], pace: &mut Pace) -> Result<Vec<f32>> {
        let Self { columns, depth, .. } = *self;
        let count = rows.len() / depth.max(1);
        let mut made = vec![0.0; count * columns];
        let bias = match self.bias {
            [] => &[],
            bias => &bias[expert * columns..][..columns],
        };
        match &self.weights {
            Weights::Floats(weights) => {
                let weights = &weights[expert * columns * depth..][..columns * depth];
                gemm_nt(rows, weights, [count, depth, columns], &mut made, pace)?;
                if !bias.is_empty() {
                    for row in made.chunks_exact_mut(columns) {
                        pace.pairs(bias, row, |bias, row| {
                            row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                        })?;
                    }
                }
            }
            Weights::Packed(weights) => weights.multiply(expert, self, (rows, bias), &mut made, pace)?,
        }
        Ok(made)
    }
}

impl PackedWeights<'_> {
    fn multiply(
        &self,
        expert: usize,
        matrices: &Matrices<'_>,
        (rows, bias): (&[f32], &[f32]),
        made: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let Matrices { columns, depth, .. } = *matrices;
        let blocks = columns * self.layout.blocks(depth);
        let bytes = blocks * self.layout.block_bytes();
        let zero_points = match self.zero_points {
            None => pace.repeat(&f32::from(self.layout.middle()), blocks)?,
            Some(packed) => {
                let bytes = blocks / self.row.max(1) * self.layout.packed_bytes(self.row);
                unpacked_zero_points(self.layout, &packed[expert * bytes..][..bytes], self.row, pace)?
            }
        };
        let columns = PackedColumns {
            layout: self.layout,
            depth,
            packed: &self.packed[expert * bytes..][..bytes],
            scales: &self.scales[expert * blocks..][..blocks],
            zero_points: &zero_points,
            groups: None,
            bias,
        };
        columns.multiply(rows, made, pace)
    }
}
