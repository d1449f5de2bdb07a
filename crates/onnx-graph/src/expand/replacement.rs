//! Replaces one node with several nodes.

use std::collections::HashMap;

use onnx_operators::NEWEST;

use super::graph::{floats, node};
use crate::{
    Error,
    proto::{AttributeProto, GraphProto, NodeProto, TensorProto, tensor_proto::DataType},
    structure,
};

/// The constants of a graph, by name.
pub(super) type Constants<'k> = HashMap<&'k str, &'k TensorProto>;

/// The nodes that replace one node.
pub(super) struct Replacement<'n> {
    pub(super) node: &'n NodeProto,
    /// The constants of the node's graph.
    pub(super) known: &'n Constants<'n>,
    pub(super) opset: i64,
    pub(super) made: Vec<NodeProto>,
    pub(super) constants: Vec<TensorProto>,
    count: usize,
}

/// Calls `write` for each node of a graph and its subgraphs. If `write` returns `Some`, the nodes in its
/// [`Replacement`] replace the node. All calls for the nodes of one graph share a state of type `S`.
///
/// # Errors
/// Returns the errors of `write`.
pub(super) fn replace_nodes<S: Default>(
    graph: &mut GraphProto,
    opset: i64,
    is_replaceable: &impl Fn(&NodeProto) -> bool,
    write: &impl Fn(&mut Replacement<'_>, &mut S) -> Result<Option<()>, Error>,
) -> Result<(), Error> {
    let mut constants = std::mem::take(&mut graph.initializer);
    let known: Constants<'_> = constants
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let (mut nodes, mut more, mut state) = (Vec::new(), Vec::new(), S::default());
    for mut node in std::mem::take(&mut graph.node) {
        for inner in node
            .attribute
            .iter_mut()
            .filter_map(|attribute| attribute.g.as_mut())
        {
            replace_nodes(inner, opset, is_replaceable, write)?;
        }
        if !is_replaceable(&node) {
            nodes.push(node);
            continue;
        }
        let mut replacement = Replacement {
            node: &node,
            known: &known,
            opset,
            made: Vec::new(),
            constants: Vec::new(),
            count: 0,
        };
        match write(&mut replacement, &mut state)? {
            Some(()) => {
                let Replacement { made, constants, .. } = replacement;
                nodes.extend(made.into_iter().map(|made| as_part_of(&node, made)));
                more.extend(constants);
            }
            None => nodes.push(node),
        }
    }
    constants.extend(more);
    graph.initializer = constants;
    graph.node = nodes;
    Ok(())
}

/// Marks `made` as part of the replacement of `node`, so that error messages name the original operator.
fn as_part_of(node: &NodeProto, mut made: NodeProto) -> NodeProto {
    made.overload = structure::part_of(node);
    made
}

impl Replacement<'_> {
    /// Returns the dimensions of a constant.
    pub(super) fn dims(&self, name: &str) -> Option<&[i64]> {
        Some(&self.known.get(name)?.dims)
    }

    /// Returns the name of the node's input `index`; `None` if the input is absent.
    pub(super) fn input(&self, index: usize) -> Option<String> {
        self.node
            .input
            .get(index)
            .filter(|name| !name.is_empty())
            .cloned()
    }

    /// Returns the names of the inputs `places`. Absent inputs get an empty name; absent inputs at the end
    /// are dropped.
    pub(super) fn inputs(&self, places: &[usize]) -> Vec<String> {
        let mut inputs: Vec<String> = places
            .iter()
            .map(|&place| self.input(place).unwrap_or_default())
            .collect();
        while inputs.last().is_some_and(String::is_empty) {
            inputs.pop();
        }
        inputs
    }

    pub(super) fn wants(&self, output: usize) -> bool {
        self.node.output.get(output).is_some_and(|name| !name.is_empty())
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.node
            .attribute
            .iter()
            .find(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub(super) fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).map_or(default, |attribute| attribute.f)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.attribute(name).map_or_else(String::new, |attribute| {
            String::from_utf8_lossy(&attribute.s).into_owned()
        })
    }

    /// Returns a name that the file does not use.
    pub(super) fn fresh(&mut self) -> String {
        self.count += 1;
        let base = self.node.output.iter().find(|name| !name.is_empty());
        format!("{}~{}~", base.map_or("", String::as_str), self.count)
    }

    /// Adds a node of the model's operator set, and returns the name of its output.
    pub(super) fn op(&mut self, op_type: &str, inputs: &[String], attributes: Vec<AttributeProto>) -> String {
        let output = self.fresh();
        self.made.push(node(
            op_type,
            &self.node.name,
            inputs.to_vec(),
            output.clone(),
            attributes,
        ));
        output
    }

    /// Adds a node of the newest operator set, regardless of the set that the model imports, and returns the
    /// name of its output.
    pub(super) fn newer(
        &mut self,
        op_type: &str,
        inputs: &[String],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let output = self.op(op_type, inputs, attributes);
        if let Some(made) = self.made.last_mut() {
            made.domain = NEWEST.to_owned();
        }
        output
    }

    pub(super) fn constant(&mut self, values: &[f32], dims: Vec<i64>) -> String {
        let name = self.fresh();
        self.constants.push(floats(name.clone(), values, dims));
        name
    }

    pub(super) fn indices(&mut self, values: &[i64]) -> String {
        let name = self.fresh();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constants.push(TensorProto {
            name: name.clone(),
            dims: vec![values.len() as i64],
            data_type: DataType::Int64 as i32,
            raw_data: bytes.into(),
            ..TensorProto::default()
        });
        name
    }

    /// Copies `value` to the replaced node's output `index`, if that output is used.
    pub(super) fn give(&mut self, index: usize, value: String) {
        if self.wants(index) {
            let output = self.node.output[index].clone();
            self.made
                .push(node("Identity", &self.node.name, vec![value], output, vec![]));
        }
    }
}
