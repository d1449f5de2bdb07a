//! Checks the inputs of a node against its row in the operators' table.

use std::sync::Arc;

use onnx_operators::{Computed, Operator, Rows, Types};
use onnx_tensor::prelude::*;

use super::numbers;
use onnx_tensor::{
    faults::{Limit, Unsupported},
    node::Node,
};
use onnx_tensor::{node::Attributes, operator::Fact};

/// The checks on the inputs of one node.
#[derive(Debug)]
pub(crate) struct NodeGuard {
    row: &'static Operator,
    /// Indices of the scalar inputs, among the present inputs.
    scalars: Vec<usize>,
    /// Indices of the inputs that contain sizes, among the present inputs.
    sizing: Vec<usize>,
    /// The inputs whose types the row restricts.
    typed: Vec<TypedInput>,
}

/// An input whose type a row restricts.
#[derive(Debug)]
struct TypedInput {
    /// The input's index in the file.
    index: usize,
    /// The input's index among the present inputs.
    place: usize,
    /// The allowed types. `None` means that the input must have the type of the row's typed input.
    types: Option<Types>,
}

impl NodeGuard {
    /// Creates the checks of `row` for the inputs of `node`.
    pub(crate) fn new(row: &'static Operator, node: &Node) -> Self {
        let attributes = Attributes(node);
        Self {
            row,
            scalars: attributes.positions(row.scalars),
            sizing: attributes.positions(row.sizing_inputs),
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
        for &place in &self.scalars {
            has_number(inputs.get(place).map_or(&[][..], |fact| &*fact.shape))?;
        }
        let typed = inputs.get(self.row.typed_input).map(|input| input.element_type);
        self.admit_type(typed)?;
        for input in &self.typed {
            let Some(found) = inputs.get(input.place).map(|input| input.element_type) else {
                continue;
            };
            let expected = match (input.types, typed) {
                (Some(types), _) if !types.contains(single(found)) => types.to_string(),
                (None, Some(typed)) if found != typed => typed.name().to_owned(),
                _ => continue,
            };
            let (index, found) = (input.index, found.name());
            bail!(Unsupported::Anywhere(format!(
                "has an input {index} of {found}, expected {expected}"
            )));
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
                let name = found.name();
                Err(Unsupported::Anywhere(format!("is not supported for {name}")).into())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the inputs of a node whose types its row restricts.
fn typed_inputs(row: &Operator, node: Attributes<'_>) -> Vec<TypedInput> {
    let listed = row.input_types.iter().map(|&(index, types)| (index, Some(types)));
    let alike = row.alike_inputs.iter().map(|&index| (index, None));
    let inputs = listed.chain(alike);
    inputs
        .filter_map(|(index, types)| {
            let place = node.position(index)?;
            Some(TypedInput { index, place, types })
        })
        .collect()
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

/// Refuses the shape of an empty input from which the operator reads a number.
fn has_number(shape: &[Dim]) -> Result<(), Limit> {
    match shape.contains(&Dim::Known(0)) {
        true => Err(Limit(
            "has an input without elements where a single number is expected".to_owned(),
        )),
        false => Ok(()),
    }
}
