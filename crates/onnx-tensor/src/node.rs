//! Nodes of a graph: an operator's name, attributes, and which of its inputs and outputs there are.
//!
//! Fields have the names of ONNX's messages.

use crate::prelude::*;

/// A node. Optional inputs that are not given have no name.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub input: Vec<String>,
    pub output: Vec<String>,
    pub name: String,
    /// With its domain before it, but for ONNX's own.
    pub op_type: String,
    pub domain: String,
    /// The version of its operator set, 0 if the file names none.
    pub opset: i64,
    pub attribute: Vec<Attribute>,
}

/// An attribute: the field of its type holds the value, others hold nothing.
#[derive(Clone, Debug, Default)]
pub struct Attribute {
    pub name: String,
    pub f: f32,
    pub i: i64,
    pub s: Vec<u8>,
    pub t: Option<Arc<Tensor>>,
    pub floats: Vec<f32>,
    pub ints: Vec<i64>,
    pub strings: Vec<Vec<u8>>,
}

/// A node's attributes by name. Their types are those that the operator defines ([`onnx_graph::expand`]); the caller
/// checks whether the values make sense.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Node);

impl<'a> Attributes<'a> {
    pub fn get(self, name: &str) -> Option<&'a Attribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn int(self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |attribute| attribute.i)
    }

    pub fn float(self, name: &str, default: f32) -> f32 {
        self.get(name).map_or(default, |attribute| attribute.f)
    }

    pub fn text(self, name: &str, default: &'a str) -> &'a str {
        let text = self.get(name).map(|attribute| std::str::from_utf8(&attribute.s));
        text.map_or(default, |text| text.unwrap_or(""))
    }

    pub fn ints(self, name: &str) -> &'a [i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    pub fn floats(self, name: &str) -> &'a [f32] {
        self.get(name).map_or(&[], |attribute| &attribute.floats)
    }

    pub fn texts(self, name: &str) -> Result<Vec<String>> {
        let strings = self.get(name).map_or(&[][..], |attribute| &attribute.strings);
        strings
            .iter()
            .map(|string| Ok(String::from_utf8(string.clone())?))
            .collect()
    }

    /// Whether an optional input is given.
    pub fn has_input(self, index: usize) -> bool {
        self.0.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Where an input stands among those that are given.
    pub fn position(self, index: usize) -> Option<usize> {
        let before = self.0.input.get(..index)?;
        self.has_input(index)
            .then(|| before.iter().filter(|name| !name.is_empty()).count())
    }

    /// Where those of these inputs stand that are given.
    pub fn positions(self, indices: &[usize]) -> Vec<usize> {
        indices.iter().filter_map(|&index| self.position(index)).collect()
    }

    /// Whether an output is wanted.
    pub fn has_output(self, index: usize) -> bool {
        self.0.output.get(index).is_some_and(|name| !name.is_empty())
    }
}
