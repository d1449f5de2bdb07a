use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::operators::{
    numbers::{self, Integers},
    types::Types,
};
use onnx_tensor::{
    faults::{Limit, Unsupported},
    node::Node,
};
use onnx_tensor::{node::Attributes, operator::Fact};

/// Rules for an operator beyond those that it checks itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    /// The element types that are computed.
    pub(crate) types: Types,
    /// Which input has that type.
    pub(crate) typed_input: usize,
    /// What is computed in another type, and given in its own.
    pub(crate) widening: Widening,
}

/// Which types are computed as which others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widening {
    None,
    /// FP16 in FP32.
    Half,
    /// BOOL in UINT8.
    Truth,
}

impl Widening {
    /// The type that a type is computed in, if it is another.
    fn of(self, element_type: ElementType) -> Option<ElementType> {
        match (self, element_type) {
            (Self::Half, ElementType::F16) => Some(ElementType::F32),
            (Self::Truth, ElementType::Bool) => Some(ElementType::U8),
            _ => None,
        }
    }
}

/// What of its row holds for the inputs of one node.
#[derive(Debug)]
pub(crate) struct NodeGuard {
    guard: Guard,
    /// The inputs that are single numbers, counted among those that are given.
    scalars: Vec<usize>,
    /// What it does with integers, and the inputs that hold sizes, counted in the same way.
    integers: (Integers, Vec<usize>),
}

impl NodeGuard {
    /// What holds for a node whose inputs `scalars` are single numbers.
    pub(crate) fn new(guard: Guard, scalars: &[usize], integers: Integers, node: &Node) -> Self {
        let attributes = Attributes(node);
        Self {
            guard,
            scalars: attributes.positions(scalars),
            integers: (integers, attributes.positions(integers.sizing)),
        }
    }

    /// The type that inputs of this one are computed in, if it is another.
    pub(crate) fn wide(&self, element_type: ElementType) -> Option<ElementType> {
        self.guard.widening.of(element_type)
    }

    /// Whether a node with these inputs is computed, and what it would not be computed for.
    pub(crate) fn admit(&self, inputs: &[Fact]) -> Result<()> {
        let (integers, sizing) = &self.integers;
        numbers::admit(*integers, sizing, inputs)?;
        for &place in &self.scalars {
            has_number(inputs.get(place).map_or(&[][..], |fact| &*fact.shape))?;
        }
        self.admit_type(inputs.get(self.guard.typed_input).map(|input| input.element_type))
    }

    /// Whether a node is computed for values of these types.
    pub(crate) fn admit_types(&self, inputs: &[Arc<Tensor>]) -> Result<()> {
        self.admit_type(
            inputs
                .get(self.guard.typed_input)
                .map(|input| input.element_type()),
        )
    }

    fn admit_type(&self, found: Option<ElementType>) -> Result<()> {
        let Some(found) = found.filter(|&found| !self.guard.types.contains(found)) else {
            return Ok(());
        };
        let name = found.name();
        Err(Unsupported::Anywhere(format!("is not supported for {name}")).into())
    }
}

/// Refuses what has no elements where a number is read.
fn has_number(shape: &[Dim]) -> Result<(), Limit> {
    match shape.contains(&Dim::Known(0)) {
        true => Err(Limit(
            "has an input without elements where a single number is expected".to_owned(),
        )),
        false => Ok(()),
    }
}
