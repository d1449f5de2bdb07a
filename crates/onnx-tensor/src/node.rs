//! A node of a graph: operator, attributes, inputs and outputs.
//!
//! Fields have ONNX's names.

use crate::prelude::*;

/// A node. Missing optional inputs have an empty name.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Names of the inputs; empty for missing optional ones.
    pub input: Vec<String>,
    /// Names of the outputs.
    pub output: Vec<String>,
    /// Name in messages.
    pub name: String,
    /// Operator, prefixed with its domain unless it is ONNX's.
    pub op_type: String,
    /// Domain of the operator; empty for ONNX's.
    pub domain: String,
    /// Version of the operator set; 0 if the file imports none.
    pub opset: i64,
    /// Attributes.
    pub attribute: Vec<Attribute>,
}

/// An attribute. The field of its type holds the value; the others are empty.
#[derive(Clone, Debug, Default)]
pub struct Attribute {
    /// Name.
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

/// Access to a node's attributes by name. `onnx_graph::expand` has checked their types; the caller checks
/// their values.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Node);

impl<'a> Attributes<'a> {
    /// Returns an attribute, if present.
    pub fn get(self, name: &str) -> Option<&'a Attribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns whether an attribute is present.
    pub fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns an integer, or `default`.
    pub fn int(self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |attribute| attribute.i)
    }

    /// Returns a float, or `default`.
    pub fn float(self, name: &str, default: f32) -> f32 {
        self.get(name).map_or(default, |attribute| attribute.f)
    }

    /// Returns a string, or `default`; empty if it is not UTF-8.
    pub fn text(self, name: &str, default: &'a str) -> &'a str {
        let text = self.get(name).map(|attribute| std::str::from_utf8(&attribute.s));
        text.map_or(default, |text| text.unwrap_or(""))
    }

    /// Returns integers; empty if absent.
    pub fn ints(self, name: &str) -> &'a [i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Returns floats; empty if absent.
    pub fn floats(self, name: &str) -> &'a [f32] {
        self.get(name).map_or(&[], |attribute| &attribute.floats)
    }

    /// Returns strings; empty if absent.
    ///
    /// # Errors
    /// Fails if one is not UTF-8.
    pub fn texts(self, name: &str) -> Result<Vec<String>> {
        let strings = self.get(name).map_or(&[][..], |attribute| &attribute.strings);
        strings
            .iter()
            .map(|string| Ok(String::from_utf8(string.clone())?))
            .collect()
    }

    /// Returns whether an optional input is present.
    pub fn has_input(self, index: usize) -> bool {
        self.0.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the index of an input among those that are present.
    pub fn position(self, index: usize) -> Option<usize> {
        let before = self.0.input.get(..index)?;
        self.has_input(index)
            .then(|| before.iter().filter(|name| !name.is_empty()).count())
    }

    /// Returns the indices of several inputs among those that are present; skips missing ones.
    pub fn positions(self, indices: &[usize]) -> Vec<usize> {
        indices.iter().filter_map(|&index| self.position(index)).collect()
    }

    /// Returns whether an output is used.
    pub fn has_output(self, index: usize) -> bool {
        self.0.output.get(index).is_some_and(|name| !name.is_empty())
    }
}
