//! Checks the inputs of a node against its row in the operators' table.

use std::sync::Arc;

use onnx_operators::{Computed, Operator, Rows, Types};
use onnx_tensor::prelude::*;

use super::numbers::{self, Position};
use onnx_tensor::{
    faults::{Limit, Unsupported},
    node::Node,
};
use onnx_tensor::{node::Attributes, operator::Fact};

/// The checks on the inputs of one node.
#[derive(Debug)]
pub(crate) struct NodeGuard {
    row: &'static Operator,
    /// The scalar inputs.
    scalars: Vec<Position>,
    /// The inputs that contain sizes, axes, indices or counts.
    sizing: Vec<Position>,
    /// The inputs whose types `row` restricts.
    typed: Vec<TypedInput>,
}

/// An input whose type the operator's row in the table restricts.
#[derive(Debug)]
struct TypedInput {
    position: Position,
    /// The allowed types. `None` means that the input must have the type of the row's typed input.
    types: Option<Types>,
}

impl NodeGuard {
    /// Creates the checks for the inputs of `node` from `row`, the operator's row in the table.
    pub(crate) fn new(row: &'static Operator, node: &Node) -> Self {
        let attributes = Attributes(node);
        Self {
            row,
            scalars: positions(attributes, row.scalars),
            sizing: positions(attributes, row.sizing_inputs),
            typed: typed_inputs(row, attributes),
        }
    }

    /// Returns whether the outputs are random.
    pub(crate) fn is_random(&self) -> bool {
        self.row.rows == Rows::Random
    }

    /// Returns the wider type in which inputs of this type are computed, if any.
    pub(crate) fn wide(&self, element_type: ElementType) -> Option<ElementType> {
        match (self.row.computed, element_type) {
            (Computed::HalfInSingle, ElementType::F16) => Some(ElementType::F32),
            (Computed::TruthInBytes, ElementType::Bool) => Some(ElementType::U8),
            _ => None,
        }
    }

    /// Checks that the node supports these inputs.
    pub(crate) fn admit(&self, inputs: &[Fact]) -> Result<()> {
        numbers::admit(self.row.is_shape, &self.sizing, inputs)?;
        for scalar in &self.scalars {
            let shape = inputs.get(scalar.present).map_or(&[][..], |fact| &*fact.shape);
            has_number(scalar.index, shape)?;
        }
        let typed = inputs.get(self.row.typed_input).map(|input| input.element_type);
        self.admit_type(typed)?;
        for input in &self.typed {
            let Some(found) = inputs.get(input.position.present).map(|input| input.element_type) else {
                continue;
            };
            let expected = match (input.types, typed) {
                (Some(types), _) if !types.contains(single(found)) => types.to_string(),
                (None, Some(typed)) if found != typed => typed.name().to_owned(),
                _ => continue,
            };
            bail!(wrong_type(input.position.index, found, &expected));
        }
        Ok(())
    }

    /// Checks the type of the row's typed input, before any input is converted.
    pub(crate) fn admit_typed_input(&self, inputs: &[Arc<Tensor>]) -> Result<()> {
        self.admit_type(inputs.get(self.row.typed_input).map(|input| input.element_type()))
    }

    fn admit_type(&self, found: Option<ElementType>) -> Result<()> {
        match (found, self.row.types) {
            (Some(found), Some(types)) if !types.contains(single(found)) => {
                Err(wrong_type(self.row.typed_input, found, &types.to_string()).into())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the inputs of a node whose types are restricted by `row`, the operator's row in the table.
fn typed_inputs(row: &Operator, node: Attributes<'_>) -> Vec<TypedInput> {
    let listed = row.input_types.iter().map(|&(index, types)| (index, Some(types)));
    let alike = row.alike_inputs.iter().map(|&index| (index, None));
    let inputs = listed.chain(alike);
    inputs
        .filter_map(|(index, types)| {
            let position = position(node, index)?;
            Some(TypedInput { position, types })
        })
        .collect()
}

fn position(node: Attributes<'_>, index: usize) -> Option<Position> {
    let present = node.position(index)?;
    Some(Position { index, present })
}

/// Returns the positions of several inputs; skips absent ones.
fn positions(node: Attributes<'_>, indices: &[usize]) -> Vec<Position> {
    indices
        .iter()
        .filter_map(|&index| position(node, index))
        .collect()
}

/// Creates the error for an input whose type the operator does not accept.
fn wrong_type(index: usize, found: ElementType, expected: &str) -> Unsupported {
    let found = found.name();
    Unsupported::Anywhere(format!("has an input {index} of {found}, expected {expected}"))
}

/// Returns the set that contains one element type.
fn single(element_type: ElementType) -> Types {
    match element_type {
        ElementType::Bool => Types::BOOL,
        ElementType::U8 => Types::U8,
        ElementType::U16 => Types::U16,
        ElementType::U32 => Types::U32,
        ElementType::U64 => Types::U64,
        ElementType::I8 => Types::I8,
        ElementType::I16 => Types::I16,
        ElementType::I32 => Types::I32,
        ElementType::I64 => Types::I64,
        ElementType::F16 => Types::F16,
        ElementType::F32 => Types::F32,
        ElementType::F64 => Types::F64,
        ElementType::String => Types::STRING,
    }
}

/// Refuses the shape of the empty input `index`, from which the operator reads a number.
fn has_number(index: usize, shape: &[Dim]) -> Result<(), Limit> {
    match shape.contains(&Dim::Known(0)) {
        true => Err(Limit(format!(
            "has an input {index} without elements, expected a single number"
        ))),
        false => Ok(()),
    }
}
