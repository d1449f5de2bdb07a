//! Nodes of a graph: an operator's name, attributes, and which of its inputs and outputs there are.
//!
//! Fields have the names of ONNX's messages.

use crate::prelude::*;

/// A node. Optional inputs that are not given have no name.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The names of its inputs, empty for optional ones that are not given.
    pub input: Vec<String>,
    /// The names of its outputs.
    pub output: Vec<String>,
    /// What it is called in messages.
    pub name: String,
    /// With its domain before it, but for ONNX's own.
    pub op_type: String,
    /// The domain of its operator, empty for ONNX's own.
    pub domain: String,
    /// The version of its operator set, 0 if the file names none.
    pub opset: i64,
    /// Its attributes.
    pub attribute: Vec<Attribute>,
}

/// An attribute: the field of its type holds the value, others hold nothing.
#[derive(Clone, Debug, Default)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// A float.
    pub f: f32,
    /// An integer.
    pub i: i64,
    /// The bytes of a string.
    pub s: Vec<u8>,
    /// A tensor.
    pub t: Option<Arc<Tensor>>,
    /// Floats.
    pub floats: Vec<f32>,
    /// Integers.
    pub ints: Vec<i64>,
    /// Strings.
    pub strings: Vec<Vec<u8>>,
}

/// A node's attributes by name. Their types are those that the operator defines (`onnx_graph::expand`); the caller
/// checks whether the values make sense.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Node);

impl<'a> Attributes<'a> {
    /// An attribute, if it is given.
    pub fn get(self, name: &str) -> Option<&'a Attribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Whether an attribute is given.
    pub fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An integer, or `default`.
    pub fn int(self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |attribute| attribute.i)
    }

    /// A float, or `default`.
    pub fn float(self, name: &str, default: f32) -> f32 {
        self.get(name).map_or(default, |attribute| attribute.f)
    }

    /// A string, or `default`; empty if it is not UTF-8.
    pub fn text(self, name: &str, default: &'a str) -> &'a str {
        let text = self.get(name).map(|attribute| std::str::from_utf8(&attribute.s));
        text.map_or(default, |text| text.unwrap_or(""))
    }

    /// Integers, none if they are not given.
    pub fn ints(self, name: &str) -> &'a [i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Floats, none if they are not given.
    pub fn floats(self, name: &str) -> &'a [f32] {
        self.get(name).map_or(&[], |attribute| &attribute.floats)
    }

    /// Strings, none if they are not given.
    ///
    /// # Errors
    /// If one is not UTF-8.
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
