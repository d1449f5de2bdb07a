//! Lowers a file's graph so that it can be prepared: checks, prunes and sorts the graph, and renames its
//! values.
//!
//! Each value has one unique name, constants match their dimensions, nodes are in topological order, nodes
//! that no output depends on are removed, and all operators have a row in the table.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use onnx_graph::{
    Data, Error, ErrorKind, Payload,
    operators::{self, ArgumentCounts},
    proto::{
        AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto,
        attribute_proto::AttributeType,
        canonical_domain,
        tensor_shape_proto::{self, dimension},
        type_proto,
    },
    structure::{
        MAX_NODES, defined_twice, dependencies, label, needed_in_order, refuse_external_data, undefined,
    },
};
use onnx_operators::Outputs;
use onnx_tensor::prelude::*;
use tensor_core::QuotedName;

use crate::{
    computed,
    lowered::{Constant, DeclaredType, OnnxGraph, OnnxNode, Port},
    operators::registry as ops,
};
use onnx_tensor::node::{Attribute, Node};

/// A lowered graph, and the names of its nodes for messages.
pub(crate) struct Lowered {
    pub(crate) graph: OnnxGraph,
    /// The names of nodes for messages. The index is the number in the node's name in [`Lowered::graph`].
    pub(crate) labels: Vec<String>,
}

/// Lowers a model's graph.
pub(crate) fn lower(graph: &GraphProto, opsets: &BTreeMap<String, i64>) -> Result<Lowered, Error> {
    refuse_external_data(graph)?;
    let mut lowering = Lowering {
        opsets,
        values: 0,
        labels: Vec::new(),
    };
    Ok(Lowered {
        graph: lowering.graph(graph, None)?,
        labels: lowering.labels,
    })
}

/// Prefix of a node's name, followed by its number.
pub(crate) const NODE: &str = "node~";

struct Lowering<'m> {
    opsets: &'m BTreeMap<String, i64>,
    values: usize,
    labels: Vec<String>,
}

/// The names that a graph's nodes can use.
struct Scope<'a> {
    outer: Option<&'a Scope<'a>>,
    names: HashMap<&'a str, String>,
    constants: HashMap<&'a str, &'a TensorProto>,
}

impl<'a> Scope<'a> {
    fn find(&self, name: &str) -> Option<&String> {
        self.names
            .get(name)
            .or_else(|| self.outer.and_then(|outer| outer.find(name)))
    }
}

impl Lowering<'_> {
    fn graph(&mut self, graph: &GraphProto, outer: Option<&Scope<'_>>) -> Result<OnnxGraph, Error> {
        if let Some(sparse) = graph.sparse_initializer.first() {
            let name = sparse.values.as_ref().map_or("", |values| &values.name);
            let reason = format!(
                "the sparse initializer {} is not supported; export the model with dense constants",
                QuotedName(name)
            );
            return Err(Error::new(ErrorKind::Unsupported, reason));
        }
        let scope = self.scope(graph, outer)?;
        let nodes = needed_in_order(graph)?;
        let used: HashSet<&str> = nodes
            .iter()
            .flat_map(|&node| dependencies(node))
            .chain(graph.output.iter().map(|output| output.name.as_str()))
            .collect();

        let mut lowered = OnnxGraph::default();
        for tensor in &graph.initializer {
            // Each constant is checked even if it is unused, so that a damaged file does not load.
            let payload = computable(tensor)?;
            if used.contains(tensor.name.as_str()) {
                lowered.initializer.push(Constant {
                    name: self.name(&scope, &tensor.name)?,
                    value: constant(payload)?,
                });
            }
        }
        for input in &graph.input {
            if !scope.constants.contains_key(input.name.as_str()) {
                lowered.input.push(Port {
                    name: self.name(&scope, &input.name)?,
                    declared: declared(input.r#type.as_ref()),
                });
            }
        }
        for node in nodes {
            let node = self.node(node, &scope, &used)?;
            lowered.node.push(node);
        }
        for output in &graph.output {
            let source = self.name(&scope, &output.name)?;
            // The value may be an input or a value of an outer graph, so a copy with a new name becomes the
            // output.
            let name = self.value_name();
            lowered
                .node
                .push(self.output(source, name.clone(), outer.is_none()));
            lowered.output.push(Port {
                name,
                declared: declared(output.r#type.as_ref()),
            });
        }
        Ok(lowered)
    }

    /// Gives every value of a graph a unique name.
    fn scope<'a>(&mut self, graph: &'a GraphProto, outer: Option<&'a Scope<'a>>) -> Result<Scope<'a>, Error> {
        let mut scope = Scope {
            outer,
            names: HashMap::new(),
            constants: HashMap::new(),
        };
        for tensor in &graph.initializer {
            if scope.constants.insert(&tensor.name, tensor).is_some() {
                return Err(defined_twice(&tensor.name));
            }
        }
        let inputs = graph.input.iter().map(|input| input.name.as_str());
        let outputs = graph
            .node
            .iter()
            .flat_map(|node| node.output.iter().map(String::as_str))
            .filter(|name| !name.is_empty());
        for name in inputs.chain(outputs) {
            let lowered = self.value_name();
            if scope.names.insert(name, lowered).is_some() {
                return Err(defined_twice(name));
            }
        }
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        for tensor in &graph.initializer {
            let lowered = self.value_name();
            let is_other = scope.names.insert(&tensor.name, lowered).is_some();
            if is_other && !inputs.contains(tensor.name.as_str()) {
                return Err(defined_twice(&tensor.name));
            }
        }
        Ok(scope)
    }

    /// Adds the node that copies the value `input` to `output`, an output of the model or of a subgraph.
    fn output(&mut self, input: String, output: String, is_outermost: bool) -> OnnxNode {
        let number = self.labels.len();
        self.labels.push("an output".to_owned());
        let op_type = if is_outermost { ops::OUTPUT } else { "Identity" };
        let node = Node {
            input: vec![input],
            output: vec![output],
            name: format!("{NODE}{number}~{op_type}"),
            op_type: op_type.to_owned(),
            ..Node::default()
        };
        OnnxNode {
            node,
            graphs: Vec::new(),
        }
    }

    fn value_name(&mut self) -> String {
        self.values += 1;
        format!("value~{}", self.values)
    }

    fn name(&self, scope: &Scope<'_>, name: &str) -> Result<String, Error> {
        scope.find(name).cloned().ok_or_else(|| undefined(name))
    }

    fn node(&mut self, node: &NodeProto, scope: &Scope<'_>, used: &HashSet<&str>) -> Result<OnnxNode, Error> {
        let label = label(node);
        if self.labels.len() >= MAX_NODES {
            return Err(Error::invalid(format!(
                "the model has more than {MAX_NODES} nodes"
            )));
        }
        let number = self.labels.len();
        self.labels.push(label.clone());
        let domain = canonical_domain(&node.domain);
        let opset = operators::own_opset(node).or_else(|| self.opsets.get(domain).copied());
        let (domain, opset) = ops::resolved(domain, &node.op_type, opset);

        let mut input = Vec::with_capacity(node.input.len());
        for name in &node.input {
            input.push(match name.as_str() {
                "" => String::new(),
                name => self.name(scope, name).map_err(|error| error.within(&label))?,
            });
        }
        let output = self
            .outputs(node, domain, scope, used)
            .map_err(|error| error.within(&label))?;
        let mut graphs = Vec::new();
        let mut attribute = Vec::with_capacity(node.attribute.len());
        for entry in &node.attribute {
            // An empty list of axes means all axes, like a missing list.
            if node.op_type.starts_with("Reduce") && entry.name == "axes" && entry.ints.is_empty() {
                continue;
            }
            if entry.r#type() == AttributeType::Graph
                && let Some(graph) = &entry.g
            {
                let graph = self
                    .graph(graph, Some(scope))
                    .map_err(|error| error.within(&label))?;
                graphs.push((entry.name.clone(), graph));
            }
            attribute.push(attribute_of(entry).map_err(|error| error.within(&label))?);
        }
        let lowered = Node {
            input,
            output,
            name: format!("{NODE}{number}~{}", node.op_type),
            op_type: ops::registered_name(domain, &node.op_type),
            domain: domain.to_owned(),
            opset: opset.unwrap_or(0),
            attribute,
        };
        ops::check(&lowered, domain, &node.op_type, opset, ArgumentCounts::of(node))
            .map_err(|error| error.within(&label))?;
        Ok(OnnxNode {
            node: lowered,
            graphs,
        })
    }

    /// Returns names for a node's outputs, without gaps. Drops trailing outputs that are neither required nor
    /// used.
    fn outputs(
        &mut self,
        node: &NodeProto,
        domain: &str,
        scope: &Scope<'_>,
        used: &HashSet<&str>,
    ) -> Result<Vec<String>, Error> {
        let named = &node.output;
        let last_used = named.iter().rposition(|name| used.contains(name.as_str()));
        let count = match ops::outputs(domain, &node.op_type) {
            Some(Outputs::Exactly(count)) if named.len() > count => {
                return Err(Error::invalid(format!(
                    "has {} outputs, expected {count}",
                    named.len()
                )));
            }
            Some(Outputs::Exactly(count)) => count,
            Some(Outputs::Optional) => last_used.map_or(1, |last| last + 1),
            Some(Outputs::AsNamed) | None => named.len(),
        };
        (0..count)
            .map(|index| match named.get(index).map(String::as_str) {
                None | Some("") => Ok(self.value_name()),
                Some(name) => self.name(scope, name),
            })
            .collect()
    }
}

/// Converts an attribute without its subgraph.
fn attribute_of(attribute: &AttributeProto) -> Result<Attribute, Error> {
    let invalid = |what: &str| Error::invalid(format!("attribute {} {what}", QuotedName(&attribute.name)));
    if !attribute.ref_attr_name.is_empty() {
        return Err(invalid("refers to a function's attribute outside of a function"));
    }
    let mut lowered = Attribute {
        name: attribute.name.clone(),
        ..Attribute::default()
    };
    match attribute.r#type() {
        AttributeType::Float => lowered.f = attribute.f,
        AttributeType::Int => lowered.i = attribute.i,
        AttributeType::String => lowered.s = attribute.s.to_vec(),
        AttributeType::Tensor => {
            let given = attribute.t.as_ref().ok_or_else(|| invalid("has no value"))?;
            lowered.t = Some(constant(computable(given)?)?);
        }
        AttributeType::Graph => {
            // The subgraph itself is stored next to the node, since kernels do not run graphs.
            attribute.g.as_ref().ok_or_else(|| invalid("has no value"))?;
        }
        AttributeType::Floats => lowered.floats.clone_from(&attribute.floats),
        AttributeType::Ints => lowered.ints.clone_from(&attribute.ints),
        AttributeType::Strings => {
            lowered.strings = attribute.strings.iter().map(|string| string.to_vec()).collect();
        }
        AttributeType::Undefined => return Err(invalid("has no type")),
        AttributeType::Graphs
        | AttributeType::SparseTensor
        | AttributeType::SparseTensors
        | AttributeType::Tensors
        | AttributeType::TypeProto
        | AttributeType::TypeProtos => {
            let found = attribute.r#type().as_str_name();
            return Err(invalid(&format!(
                "is of the type {found}, which is not supported"
            )));
        }
    }
    Ok(lowered)
}

/// Reads a declared type. Declared dimensions are used only for the outputs of loops without iterations; all
/// others are inferred.
fn declared(r#type: Option<&TypeProto>) -> Option<DeclaredType> {
    let Some(type_proto::Value::TensorType(tensor)) = r#type?.value.as_ref() else {
        return None;
    };
    let size = |dim: &tensor_shape_proto::Dimension| match dim.value {
        Some(dimension::Value::DimValue(size)) => usize::try_from(size).unwrap_or(0),
        _ => 0,
    };
    let shape = tensor.shape.as_ref();
    Some(DeclaredType {
        elem_type: tensor.elem_type,
        shape: shape.map(|shape| shape.dim.iter().map(size).collect()),
    })
}

/// Reads the payload of a tensor, if its type is supported.
fn computable(tensor: &TensorProto) -> Result<Payload, Error> {
    let payload = Payload::read(tensor)?;
    if computed(payload.element_type).is_none() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "tensor {} is {}, which the built-in runtime does not support",
                QuotedName(&tensor.name),
                payload.element_type
            ),
        ));
    }
    Ok(payload)
}

/// Converts a payload to a tensor.
fn constant(payload: Payload) -> Result<Arc<Tensor>, Error> {
    let dims = payload.shape.dims().iter();
    let dims: Option<Vec<usize>> = dims.map(|&dim| usize::try_from(dim).ok()).collect();
    let tensor = |dims: &[usize]| -> Result<Tensor> {
        match payload.data {
            Data::Strings(strings) => Tensor::from_vec(dims, strings),
            Data::Fixed(bytes) => {
                let element_type = computed(payload.element_type).context("an unsupported type")?;
                // The bytes are copied, since a slice would keep the whole file in memory.
                Tensor::from_bytes(element_type, dims, Bytes::copy_from_slice(&bytes))
            }
        }
    };
    let tensor = dims
        .context("more elements than 64 bits can count")
        .and_then(|dims| tensor(&dims));
    let tensor = tensor.map_err(|error| Error::invalid("a constant cannot be created").caused_by(error));
    Ok(tensor?.into_arc())
}
