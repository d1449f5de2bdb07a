//! A node of a graph: operator, attributes, inputs and outputs.
//!
//! The fields have the names of ONNX's protobuf messages.

use crate::{faults::Refusal, prelude::*};

/// A node. A missing optional input has an empty name.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Names of the inputs. A missing optional input has an empty name.
    pub input: Vec<String>,
    /// Names of the outputs, in the operator's order.
    pub output: Vec<String>,
    /// Name of the node in error messages.
    pub name: String,
    /// Name of the operator, prefixed with the domain unless that is ONNX's own.
    pub op_type: String,
    /// Domain of the operator; empty for ONNX's.
    pub domain: String,
    /// Version of the operator set that defines the operator; 0 if the file imports none.
    pub opset: i64,
    /// Attributes that the node sets; the operator defines the defaults of missing ones.
    pub attribute: Vec<Attribute>,
}

/// An attribute. The field that corresponds to the attribute's type holds the value; all other fields are
/// empty.
#[derive(Clone, Debug, Default)]
pub struct Attribute {
    /// Name of the attribute.
    pub name: String,
    /// Value of a float attribute.
    pub f: f32,
    /// Value of an integer attribute.
    pub i: i64,
    /// Value of a string attribute, as bytes.
    pub s: Vec<u8>,
    /// Value of a tensor attribute.
    pub t: Option<Arc<Tensor>>,
    /// Value of an attribute that is a list of floats.
    pub floats: Vec<f32>,
    /// Value of an attribute that is a list of integers.
    pub ints: Vec<i64>,
    /// Value of an attribute that is a list of strings, as bytes.
    pub strings: Vec<Vec<u8>>,
}

/// Access to a node's attributes by name. `onnx_graph::expand` has checked their types; the caller checks
/// their values.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Node);

impl<'a> Attributes<'a> {
    /// Returns the attribute `name`; `None` if the node does not set it.
    pub fn get(self, name: &str) -> Option<&'a Attribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns whether the node sets the attribute `name`.
    pub fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the value of an integer attribute, or `default`.
    pub fn int(self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |attribute| attribute.i)
    }

    /// Returns whether an integer attribute is 1, or `default`.
    ///
    /// # Errors
    /// Returns [`Refusal`] if the attribute is neither 0 nor 1.
    pub fn flag(self, name: &str, default: bool) -> Result<bool> {
        match self.int(name, default.into()) {
            0 => Ok(false),
            1 => Ok(true),
            other => bail!(Refusal(format!(
                "the attribute '{name}' is {other}, expected 0 or 1"
            ))),
        }
    }

    /// Returns the value of a float attribute, or `default`.
    pub fn float(self, name: &str, default: f32) -> f32 {
        self.get(name).map_or(default, |attribute| attribute.f)
    }

    /// Returns the value of a string attribute, or `default`. A value that is not UTF-8 gives an empty
    /// string.
    pub fn text(self, name: &str, default: &'a str) -> &'a str {
        let text = self.get(name).map(|attribute| std::str::from_utf8(&attribute.s));
        text.map_or(default, |text| text.unwrap_or(""))
    }

    /// Returns a list of integers; empty if the attribute is absent.
    pub fn ints(self, name: &str) -> &'a [i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Returns a list of floats; empty if the attribute is absent.
    pub fn floats(self, name: &str) -> &'a [f32] {
        self.get(name).map_or(&[], |attribute| &attribute.floats)
    }

    /// Returns a list of strings; empty if the attribute is absent.
    ///
    /// # Errors
    /// Fails if one of the strings is not UTF-8.
    pub fn texts(self, name: &str) -> Result<Vec<String>> {
        let strings = self.get(name).map_or(&[][..], |attribute| &attribute.strings);
        strings
            .iter()
            .map(|string| Ok(String::from_utf8(string.clone())?))
            .collect()
    }

    /// Returns whether input `index` is present.
    pub fn has_input(self, index: usize) -> bool {
        self.0.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns the index of input `index` among the present inputs; `None` if it is absent.
    pub fn position(self, index: usize) -> Option<usize> {
        let before = self.0.input.get(..index)?;
        self.has_input(index)
            .then(|| before.iter().filter(|name| !name.is_empty()).count())
    }

    /// Returns the indices of several inputs among the present inputs; skips absent ones.
    pub fn positions(self, indices: &[usize]) -> Vec<usize> {
        indices.iter().filter_map(|&index| self.position(index)).collect()
    }

    /// Returns whether output `index` has a name, that is, whether it is used.
    pub fn has_output(self, index: usize) -> bool {
        self.0.output.get(index).is_some_and(|name| !name.is_empty())
    }
}
