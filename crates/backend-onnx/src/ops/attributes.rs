use onnx_kernels::prelude::*;

use crate::lowered::{OnnxAttribute, OnnxNode};

/// A node's attributes by name. Their types are those that the operator defines ([`onnx_graph::expand`]); the caller
/// checks whether the values make sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a OnnxNode);

impl<'a> Attributes<'a> {
    pub(crate) fn get(self, name: &str) -> Option<&'a OnnxAttribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn int(self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |attribute| attribute.i)
    }

    pub(crate) fn float(self, name: &str, default: f32) -> f32 {
        self.get(name).map_or(default, |attribute| attribute.f)
    }

    pub(crate) fn text(self, name: &str, default: &'a str) -> &'a str {
        let text = self.get(name).map(|attribute| std::str::from_utf8(&attribute.s));
        text.map_or(default, |text| text.unwrap_or(""))
    }

    pub(crate) fn ints(self, name: &str) -> &'a [i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    pub(crate) fn floats(self, name: &str) -> &'a [f32] {
        self.get(name).map_or(&[], |attribute| &attribute.floats)
    }

    pub(crate) fn texts(self, name: &str) -> Result<Vec<String>> {
        let strings = self.get(name).map_or(&[][..], |attribute| &attribute.strings);
        strings
            .iter()
            .map(|string| Ok(String::from_utf8(string.clone())?))
            .collect()
    }

    /// Whether an optional input is given.
    pub(crate) fn has_input(self, index: usize) -> bool {
        self.0.input.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Where an input stands among those that are given.
    pub(crate) fn position(self, index: usize) -> Option<usize> {
        let before = self.0.input.get(..index)?;
        self.has_input(index)
            .then(|| before.iter().filter(|name| !name.is_empty()).count())
    }

    /// Where those of these inputs stand that are given.
    pub(crate) fn positions(self, indices: &[usize]) -> Vec<usize> {
        indices.iter().filter_map(|&index| self.position(index)).collect()
    }

    /// Whether an output is wanted.
    pub(crate) fn has_output(self, index: usize) -> bool {
        self.0.output.get(index).is_some_and(|name| !name.is_empty())
    }
}
