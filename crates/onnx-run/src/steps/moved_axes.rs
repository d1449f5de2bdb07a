//! Nodes along axes, such as pools, Split and Resize, in their forms for channels-last images.

use onnx_tensor::{
    elements::elements,
    node::{Attribute, Attributes, Node},
    prelude::*,
};

use crate::steps::{
    layout::Space,
    values::{Slot, Wires},
};

/// The domain of operators that only rewritten graphs have.
pub(super) const DOMAIN: &str = onnx_operators::NEWEST;

/// The order of axes of a Transpose that moves the channels of an image from the end to the second position.
pub(super) const TO_FIRST: [usize; 4] = [0, 3, 1, 2];

/// A node in its form for channels-last images.
pub(super) struct Moved {
    pub(super) node: Node,
    /// The inputs, the first of which is to be replaced.
    pub(super) inputs: Vec<Option<Slot>>,
    /// The number of pixels of the result for each pixel of the image.
    pub(super) grows: f64,
}

/// Returns a node that works along axes in the form for images whose channels are last, if it has one.
pub(super) fn along_axes(node: &Node, wires: &Wires, space: &mut Space<'_>) -> Option<Moved> {
    let mut attributes = node.attribute.clone();
    let mut inputs = wires.inputs.clone();
    let mut grows = 1.0;
    let (mut op_type, mut domain, mut opset) = (node.op_type.clone(), "", node.opset);
    match node.op_type.as_str() {
        "AveragePool" | "MaxPool" if wires.outputs.len() == 1 => {
            let strides = Attributes(node).ints("strides").iter();
            grows = strides.map(|&stride| 1.0 / stride.max(1) as f64).product();
            (op_type, domain, opset) = (format!("{DOMAIN}/ChannelsLast{}", node.op_type), DOMAIN, 1);
        }
        "GlobalAveragePool" => {
            grows = 0.0;
            (op_type, domain, opset) = (format!("{DOMAIN}/ChannelsLast{}", node.op_type), DOMAIN, 1);
        }
        "ReduceMax" | "ReduceMean" if Attributes(node).int("keepdims", 1) == 1 => {
            let axes = match wires.input(1) {
                Some(slot) => {
                    let (axes, slot) = constant_axes(slot, space)?;
                    inputs[1] = Some(slot);
                    axes
                }
                None => {
                    let axes = axes(Attributes(node).ints("axes"))?;
                    set(&mut attributes, ints("axes", axes.clone()));
                    axes
                }
            };
            grows = if axes.contains(&3) { 1.0 } else { 0.0 };
        }
        "Resize" | "Upsample" => {
            let given = Attributes(node).ints("axes");
            let axes = match given.is_empty() {
                true => axes(&[0, 1, 2, 3]),
                false => axes(given),
            };
            // Most enlarge an image to twice its height and width.
            grows = 4.0;
            set(&mut attributes, ints("axes", axes?));
        }
        "Slice" if node.opset >= 10 => {
            inputs[3] = Some(constant_axes(wires.input(3)?, space)?.1);
        }
        "Softmax" if node.opset >= 13 => {
            let axis = axes(&[Attributes(node).int("axis", -1)])?[0];
            set(&mut attributes, int("axis", axis));
        }
        "Split" => {
            let axis = axes(&[Attributes(node).int("axis", 0)])?[0];
            set(&mut attributes, int("axis", axis));
        }
        _ => return None,
    }
    Some(Moved {
        node: Node {
            op_type,
            domain: domain.to_owned(),
            opset,
            attribute: attributes,
            ..node.clone()
        },
        inputs,
        grows,
    })
}

/// Returns the axes of a channels-last image for the axes of an image with the channels first.
fn axes(given: &[i64]) -> Option<Vec<i64>> {
    let moved = given.iter().map(|&axis| {
        let axis = if axis < 0 { axis + 4 } else { axis };
        let moved = TO_FIRST.get(usize::try_from(axis).ok()?)?;
        Some(*moved as i64)
    });
    moved.collect()
}

/// Returns the moved axes for a constant that contains axes, and the slot of a constant with them.
fn constant_axes(slot: Slot, space: &mut Space<'_>) -> Option<(Vec<i64>, Slot)> {
    let given = space.constants.get(&slot)?.cast_to::<i64>().ok()?;
    let axes = axes(elements::<i64>(&given).ok()?)?;
    let slot = space.new_slot();
    space.constants.insert(slot, Tensor::vector(&axes).into_arc());
    Some((axes, slot))
}

/// Replaces an attribute, or adds it.
fn set(attributes: &mut Vec<Attribute>, attribute: Attribute) {
    attributes.retain(|other| other.name != attribute.name);
    attributes.push(attribute);
}

/// Returns an attribute that is a list of integers.
pub(super) fn ints(name: &str, ints: Vec<i64>) -> Attribute {
    Attribute {
        name: name.to_owned(),
        ints,
        ..Attribute::default()
    }
}

/// Returns an attribute that is an integer.
pub(super) fn int(name: &str, i: i64) -> Attribute {
    Attribute {
        name: name.to_owned(),
        i,
        ..Attribute::default()
    }
}
