//! ONNX Runtime's `MatMulNBits`: a product with a block-quantized matrix of low-bit integers, one scale per
//! block of a column.

use std::sync::Arc;

use onnx_gemm::BlockQuantized;
use onnx_tensor::prelude::*;

use crate::matmul::packed_columns::{PackedColumns, unpacked_zero_points};
use onnx_tensor::{
    cancelling::Pace,
    faults::{Unsupported, ensure_input},
    integers::integers,
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{copied, elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `MatMulNBits`.
pub fn packed_product(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let bits = attributes.int("bits", 4);
    if !matches!(bits, 2 | 4 | 8) {
        bail!(Unsupported::Here(format!(
            "the attribute 'bits' is {bits}, expected 2, 4 or 8"
        )));
    }
    if attributes.int("weight_prepacked", 0) != 0 {
        bail!(Unsupported::Here(
            "weight_prepacked is not 0, only 0 is supported: the weights are packed for another kernel"
                .to_owned()
        ));
    }
    let size = |name: &str| -> Result<usize> {
        let size = usize::try_from(attributes.int(name, 0)).ok();
        let size = size.filter(|size| (1..1 << 31).contains(size));
        size.with_context(|| format!("{name} must be a positive number"))
    };
    Ok(kernel(PackedProduct {
        layout: BlockQuantized::new(bits as usize, size("block_size")?),
        depth: size("K")?,
        columns: size("N")?,
        zero_points: attributes.position(3),
        groups: attributes.position(4),
        bias: attributes.position(5),
    }))
}

#[derive(Debug)]
struct PackedProduct {
    layout: BlockQuantized,
    depth: usize,
    columns: usize,
    /// Input index of the zero points; `None` if they are absent.
    zero_points: Option<usize>,
    groups: Option<usize>,
    bias: Option<usize>,
}

impl PackedProduct {
    fn blocks(&self) -> usize {
        self.layout.blocks(self.depth)
    }
}

impl Kernel for PackedProduct {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, packed, scales, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let is_float = |fact: &Fact| fact.element_type == ElementType::F32;
        ensure!(
            is_float(input) && is_float(scales) && packed.element_type == ElementType::U8,
            "expected numbers and scales of FP32, and weights of UINT8"
        );
        let mut output = input.with(input.element_type);
        let last = output.shape.last_mut().context("a scalar")?;
        if let Some(depth) = last.to_i64() {
            ensure!(depth == self.depth as i64, "rows of {depth}, not {}", self.depth);
        }
        *last = self.columns.to_dim();
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
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
        let bytes = self.layout.block_bytes();
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
        let groups = match self.groups {
            Some(place) => Some(self.groups_of(&inputs[place])?),
            None => None,
        };
        let mut made = vec![0.0; input.len() / self.depth * self.columns];
        let columns = PackedColumns {
            layout: self.layout,
            depth: self.depth,
            packed,
            scales,
            zero_points: &zero_points,
            groups: groups.as_deref(),
            bias,
        };
        columns.multiply(input, &mut made, &mut Pace::default())?;
        Ok(smallvec![tensor(&shape, made)?])
    }
}

impl PackedProduct {
    /// Returns the block of each element of a column (`g_idx`), which may be padded to whole blocks.
    fn groups_of(&self, given: &Tensor) -> Result<Vec<usize>> {
        let groups = integers(given)?;
        let blocks = self.blocks();
        let known: Option<Vec<usize>> = groups
            .iter()
            .take(self.depth)
            .map(|&group| usize::try_from(group).ok().filter(|&group| group < blocks))
            .collect();
        ensure_input!(
            known.as_ref().is_some_and(|known| known.len() == self.depth),
            "g_idx has {} numbers, expected {} from 0 to {}",
            groups.len(),
            self.depth,
            blocks.saturating_sub(1)
        );
        Ok(known.unwrap_or_default())
    }

    /// Unpacks the zero points, one per block.
    fn zero_points_of(&self, given: Option<&Tensor>) -> Result<Vec<f32>> {
        let blocks = self.blocks();
        let Some(given) = given else {
            return Pace::default().repeat(&f32::from(self.layout.middle()), self.columns * blocks);
        };
        let zero_points = match given.element_type() {
            ElementType::F32 => copied::<f32>(given)?,
            _ => {
                // The zero points of each column start at a byte boundary.
                unpacked_zero_points(self.layout, elements::<u8>(given)?, blocks, &mut Pace::default())?
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
}
