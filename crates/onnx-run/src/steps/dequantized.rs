//! Constants that a `DequantizeLinear` computes from 8-bit integers.

use std::sync::Arc;

use onnx_tensor::{
    elements::elements,
    node::{Attributes, Node},
    prelude::*,
};

/// A constant that a `DequantizeLinear` computes.
pub(crate) struct Dequantized {
    pub(crate) numbers: Arc<Tensor>,
    scale: Arc<Tensor>,
    zero_point: Option<Arc<Tensor>>,
    axis: i64,
}

impl Dequantized {
    /// Returns the constant that a node computes from `inputs`, if the node is a `DequantizeLinear` of 8-bit
    /// integers without blocks.
    pub(crate) fn of(node: &Node, inputs: &[Option<Arc<Tensor>>]) -> Option<Self> {
        let attributes = Attributes(node);
        let constant = |place: usize| inputs.get(place).cloned().flatten();
        let numbers = constant(0).filter(|_| node.op_type == "DequantizeLinear")?;
        let has_zero_point = node.input.get(2).is_some_and(|name| !name.is_empty());
        let is_constant = !has_zero_point || constant(2).is_some();
        let is_plain = is_byte(&numbers) && is_constant && attributes.int("block_size", 0) == 0;
        is_plain.then(|| {
            Some(Self {
                numbers,
                scale: constant(1)?,
                zero_point: constant(2),
                axis: attributes.int("axis", 1),
            })
        })?
    }

    /// Returns the scales and the zero points of weights with `channels` output channels, one for each
    /// channel or one for all; `None` if the scales belong to another axis.
    pub(crate) fn of_channels(&self, channels: usize) -> Option<[Arc<Tensor>; 2]> {
        let rank = self.numbers.rank() as i64;
        self.of_lines(channels, self.axis == 0 || self.axis == -rank)
    }

    /// Returns the scales and the zero points of matrices with `columns` columns, one for each column or one
    /// for all; `None` if the scales belong to another axis.
    pub(crate) fn of_columns(&self, columns: usize) -> Option<[Arc<Tensor>; 2]> {
        let rank = self.numbers.rank() as i64;
        self.of_lines(columns, self.axis == -1 || self.axis == rank - 1)
    }

    /// Returns the scale and the zero point, if there is one of each.
    pub(crate) fn of_all(&self) -> Option<[Arc<Tensor>; 2]> {
        self.of_lines(1, false)
    }

    fn of_lines(&self, lines: usize, is_their_axis: bool) -> Option<[Arc<Tensor>; 2]> {
        let scales = elements::<f32>(&self.scale).ok()?;
        (scales.len() == 1 || scales.len() == lines && is_their_axis).then_some(())?;
        let zero_point = match &self.zero_point {
            Some(given) => {
                (given.len() == scales.len()).then_some(())?;
                given.clone()
            }
            None => zero(self.numbers.element_type()),
        };
        Some([self.scale.clone(), zero_point])
    }
}

pub(crate) fn is_byte(tensor: &Tensor) -> bool {
    matches!(tensor.element_type(), ElementType::U8 | ElementType::I8)
}

fn zero(element_type: ElementType) -> Arc<Tensor> {
    match element_type {
        ElementType::I8 => Tensor::scalar(0i8).into_arc(),
        _ => Tensor::scalar(0u8).into_arc(),
    }
}
