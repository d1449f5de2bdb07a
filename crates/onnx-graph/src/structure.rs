//! Structural checks of a graph: invariants of every valid model, regardless of the runtime.
//!
//! The checks protect runtimes that parse the file themselves from damaged graphs and external references.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
};

use tensor_core::QuotedName;

use crate::{
    Error, payload,
    proto::{self, AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto},
};

/// Maximum number of nodes in a model, including those of subgraphs. The largest known models have about ten
/// thousand.
pub const MAX_NODES: usize = 100_000;

/// Checks a model: no external data, constants match their types and dimensions, and names are unique and
/// defined before use.
///
/// Does not check operators; the runtime does.
///
/// # Errors
/// Returns an error that names the violated invariant and its location.
pub fn check(model: &ModelProto) -> Result<(), Error> {
    let graph = model
        .graph
        .as_ref()
        .ok_or_else(|| Error::invalid(proto::DAMAGED))?;
    for function in &model.functions {
        refuse_external_attributes(attributes(&function.node).chain(&function.attribute_proto))?;
    }
    refuse_external_data(graph)?;
    let mut nodes = 0;
    for function in &model.functions {
        count(&mut nodes, function.node.len())?;
        attributes(&function.node)
            .chain(&function.attribute_proto)
            .try_for_each(check_tensors)?;
    }
    check_graph(graph, None, &mut nodes)
}

/// The names that a graph's nodes can use.
struct Names<'a> {
    outer: Option<&'a Names<'a>>,
    own: HashSet<&'a str>,
}

impl Names<'_> {
    fn contains(&self, name: &str) -> bool {
        self.own.contains(name) || self.outer.is_some_and(|outer| outer.contains(name))
    }

    fn require(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() || self.contains(name) {
            return Ok(());
        }
        Err(undefined(name))
    }
}

fn check_graph(graph: &GraphProto, outer: Option<&Names<'_>>, nodes: &mut usize) -> Result<(), Error> {
    count(nodes, graph.node.len())?;
    let names = Names {
        outer,
        own: own_names(graph)?,
    };
    graph.initializer.iter().try_for_each(payload::check)?;
    graph.sparse_initializer.iter().try_for_each(check_sparse)?;
    needed_in_order(graph)?;
    for node in &graph.node {
        let checked = node
            .input
            .iter()
            .try_for_each(|name| names.require(name))
            .and_then(|()| node.attribute.iter().try_for_each(check_tensors));
        checked.map_err(|error| error.within(label(node)))?;
        inner_graphs(node).try_for_each(|graph| check_graph(graph, Some(&names), nodes))?;
    }
    let mut outputs = HashSet::new();
    for output in &graph.output {
        names.require(&output.name)?;
        if !outputs.insert(output.name.as_str()) {
            return Err(Error::invalid(format!(
                "the model has two outputs {}",
                QuotedName(&output.name)
            )));
        }
    }
    Ok(())
}

/// Returns the names that a graph defines. An initializer with an input's name is that input's default.
fn own_names(graph: &GraphProto) -> Result<HashSet<&str>, Error> {
    let mut own = HashSet::new();
    let inputs = graph.input.iter().map(|input| input.name.as_str());
    let outputs = graph
        .node
        .iter()
        .flat_map(|node| node.output.iter().map(String::as_str));
    for name in inputs.chain(outputs).filter(|name| !name.is_empty()) {
        if !own.insert(name) {
            return Err(defined_twice(name));
        }
    }
    let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    let dense = graph.initializer.iter().map(|tensor| tensor.name.as_str());
    let sparse = graph
        .sparse_initializer
        .iter()
        .flat_map(|sparse| sparse.values.iter().map(|tensor| tensor.name.as_str()));
    let mut constants = HashSet::new();
    for name in dense.chain(sparse) {
        let is_other = !own.insert(name) && !inputs.contains(name);
        if is_other || !constants.insert(name) {
            return Err(defined_twice(name));
        }
    }
    Ok(own)
}

/// Creates the error for a name that two values have.
#[must_use]
pub fn defined_twice(name: &str) -> Error {
    Error::invalid(format!("two values have the name {}", QuotedName(name)))
}

/// Creates the error for an undefined name.
#[must_use]
pub fn undefined(name: &str) -> Error {
    Error::invalid(format!(
        "the value {} is used, but is neither an input nor a constant nor a node's output",
        QuotedName(name)
    ))
}

fn count(nodes: &mut usize, more: usize) -> Result<(), Error> {
    *nodes += more;
    if *nodes > MAX_NODES {
        return Err(Error::invalid(format!(
            "the model has more than {MAX_NODES} nodes"
        )));
    }
    Ok(())
}

fn attributes(nodes: &[NodeProto]) -> impl Iterator<Item = &AttributeProto> {
    nodes.iter().flat_map(|node| &node.attribute)
}

fn check_tensors(attribute: &AttributeProto) -> Result<(), Error> {
    let mut dense = attribute.t.iter().chain(&attribute.tensors);
    dense.try_for_each(payload::check)?;
    let mut sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
    sparse.try_for_each(check_sparse)
}

fn check_sparse(sparse: &SparseTensorProto) -> Result<(), Error> {
    parts(sparse).try_for_each(payload::check)
}

/// Returns the values and the indices of a sparse tensor.
fn parts(sparse: &SparseTensorProto) -> impl Iterator<Item = &TensorProto> {
    sparse.values.iter().chain(&sparse.indices)
}

/// Returns the text that identifies a node in error messages: its name and operator.
#[must_use]
pub fn label(node: &NodeProto) -> String {
    let name = match node.output.iter().find(|output| !output.is_empty()) {
        _ if !node.name.is_empty() => &node.name,
        Some(output) => output,
        None => "",
    };
    let op_type = node.overload.strip_prefix(PART_OF).unwrap_or(&node.op_type);
    format!(
        "node {} ({})",
        QuotedName(name),
        QuotedName(op_type).to_string().trim_matches('\'')
    )
}

/// Prefix of the field `overload` of a node that replaces part of another node. The name of the original
/// operator follows the prefix. Functions, which use this field, are already inlined.
const PART_OF: &str = "~";

/// Returns the value of the field `overload` for a node that replaces part of `node`.
pub(crate) fn part_of(node: &NodeProto) -> String {
    match node.overload.starts_with(PART_OF) {
        true => node.overload.clone(),
        false => format!("{PART_OF}{}", node.op_type),
    }
}

/// Returns the nodes on which the graph's outputs depend, in topological order. Among several such orders,
/// the one closest to the file's order is used.
///
/// # Errors
/// Returns an error for a cycle.
pub fn needed_in_order(graph: &GraphProto) -> Result<Vec<&NodeProto>, Error> {
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        producer.extend(node.output.iter().map(|output| (output.as_str(), index)));
    }
    let mut needs: Vec<Vec<usize>> = Vec::with_capacity(graph.node.len());
    for node in &graph.node {
        let mut nodes: Vec<usize> = dependencies(node)
            .iter()
            .filter_map(|name| producer.get(name).copied())
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        needs.push(nodes);
    }

    let mut needed = vec![false; graph.node.len()];
    let mut open: Vec<usize> = graph
        .output
        .iter()
        .filter_map(|output| producer.get(output.name.as_str()).copied())
        .collect();
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut needed[index], true) {
            open.extend(&needs[index]);
        }
    }

    let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); graph.node.len()];
    for (index, nodes) in needs.iter().enumerate() {
        for &node in nodes {
            users[node].push(index);
        }
    }
    let first = |index: &usize| waiting[*index] == 0;
    // `BinaryHeap` is a max-heap, so indices are wrapped in `Reverse`.
    let mut ready: BinaryHeap<Reverse<usize>> = (0..graph.node.len()).filter(first).map(Reverse).collect();
    let mut order = Vec::new();
    while let Some(Reverse(index)) = ready.pop() {
        if needed[index] {
            order.push(&graph.node[index]);
        }
        for &user in &users[index] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    match waiting.iter().position(|&count| count > 0) {
        Some(index) => Err(Error::invalid(format!(
            "the graph has a cycle: {} depends on its own output",
            label(&graph.node[index])
        ))),
        None => Ok(order),
    }
}

/// Returns the names that a node uses: its inputs, and the outer names that its subgraphs use.
#[must_use]
pub fn dependencies(node: &NodeProto) -> Vec<&str> {
    let mut names: Vec<&str> = node
        .input
        .iter()
        .map(String::as_str)
        .filter(|name| !name.is_empty())
        .collect();
    for graph in inner_graphs(node) {
        let own: HashSet<&str> = graph
            .input
            .iter()
            .map(|input| input.name.as_str())
            .chain(graph.initializer.iter().map(|tensor| tensor.name.as_str()))
            .chain(
                graph
                    .node
                    .iter()
                    .flat_map(|node| node.output.iter().map(String::as_str)),
            )
            .collect();
        let used = graph
            .node
            .iter()
            .flat_map(dependencies)
            .chain(graph.output.iter().map(|output| output.name.as_str()));
        names.extend(used.filter(|name| !own.contains(name)));
    }
    names
}

fn inner_graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute
        .iter()
        .flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// Refuses external data in all tensors of a graph, used or not.
///
/// # Errors
/// Returns an error for a tensor with external data.
pub fn refuse_external_data(graph: &GraphProto) -> Result<(), Error> {
    graph.initializer.iter().try_for_each(payload::refuse_external)?;
    graph
        .sparse_initializer
        .iter()
        .flat_map(parts)
        .try_for_each(payload::refuse_external)?;
    refuse_external_attributes(attributes(&graph.node))
}

fn refuse_external_attributes<'a>(
    mut attributes: impl Iterator<Item = &'a AttributeProto>,
) -> Result<(), Error> {
    attributes.try_for_each(|attribute| {
        let dense = attribute.t.iter().chain(&attribute.tensors);
        let sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
        dense
            .chain(sparse.flat_map(parts))
            .try_for_each(payload::refuse_external)?;
        attribute
            .g
            .iter()
            .chain(&attribute.graphs)
            .try_for_each(refuse_external_data)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        FunctionProto, StringStringEntryProto, ValueInfoProto,
        tensor_proto::{DataLocation, DataType},
    };

    fn node(input: &str, output: &str) -> NodeProto {
        NodeProto {
            input: vec![input.to_owned()],
            output: vec![output.to_owned()],
            op_type: "Neg".to_owned(),
            ..NodeProto::default()
        }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto {
            name: name.to_owned(),
            ..ValueInfoProto::default()
        }
    }

    fn model(node: Vec<NodeProto>) -> ModelProto {
        ModelProto {
            graph: Some(GraphProto {
                node,
                input: vec![value("x")],
                output: vec![value("y")],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    fn with_tensor(tensor: TensorProto) -> AttributeProto {
        AttributeProto {
            t: Some(tensor),
            ..AttributeProto::default()
        }
    }

    fn external() -> TensorProto {
        TensorProto {
            name: "w".to_owned(),
            data_type: DataType::Float as i32,
            dims: vec![1],
            data_location: DataLocation::External as i32,
            external_data: vec![StringStringEntryProto {
                key: "location".to_owned(),
                value: "../secret".to_owned(),
            }],
            ..TensorProto::default()
        }
    }

    #[track_caller]
    fn refuses(model: &ModelProto, expected: &str) {
        let message = check(model).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn names_are_defined_once_and_before_they_are_used() {
        check(&model(vec![node("a", "y"), node("x", "a")])).unwrap();
        refuses(&model(vec![node("nowhere", "y")]), "'nowhere' is used");
        refuses(&model(vec![node("x", "a")]), "'y' is used");
        refuses(
            &model(vec![node("x", "y"), node("x", "y")]),
            "two values have the name 'y'",
        );
        refuses(
            &model(vec![node("b", "y"), node("y", "b")]),
            "the graph has a cycle",
        );
        refuses(
            &model(vec![node("x", "y"); MAX_NODES + 1]),
            "more than 100000 nodes",
        );
    }

    #[test]
    fn inner_graphs_see_names_from_outside_and_are_not_seen() {
        let inner = |used: &str| {
            let mut outer = node("x", "y");
            outer.attribute.push(AttributeProto {
                g: Some(GraphProto {
                    node: vec![node(used, "inside")],
                    output: vec![value("inside")],
                    ..GraphProto::default()
                }),
                ..AttributeProto::default()
            });
            outer
        };
        check(&model(vec![inner("a"), node("x", "a")])).unwrap();
        refuses(&model(vec![inner("nowhere")]), "'nowhere' is used");
        refuses(&model(vec![inner("inside")]), "the graph has a cycle");
        let mut leaking = model(vec![inner("x")]);
        leaking.graph.as_mut().unwrap().output.push(value("inside"));
        refuses(&leaking, "'inside' is used");
    }

    /// Checks that external data is refused wherever ONNX Runtime might read it.
    #[test]
    fn external_data_is_refused_in_every_place() {
        let mut in_node = model(vec![node("x", "y")]);
        in_node.graph.as_mut().unwrap().node[0]
            .attribute
            .push(with_tensor(external()));
        refuses(&in_node, "has its data in another file");

        let mut in_sparse = model(vec![node("x", "y")]);
        in_sparse
            .graph
            .as_mut()
            .unwrap()
            .sparse_initializer
            .push(SparseTensorProto {
                values: Some(external()),
                ..SparseTensorProto::default()
            });
        refuses(&in_sparse, "has its data in another file");

        let mut in_function = model(vec![node("x", "y")]);
        let mut body = node("a", "b");
        body.attribute.push(with_tensor(external()));
        in_function.functions.push(FunctionProto {
            node: vec![body],
            ..FunctionProto::default()
        });
        refuses(&in_function, "has its data in another file");

        let mut by_default = model(vec![node("x", "y")]);
        by_default.functions.push(FunctionProto {
            attribute_proto: vec![with_tensor(external())],
            ..FunctionProto::default()
        });
        refuses(&by_default, "has its data in another file");
    }

    #[test]
    fn constants_are_as_long_as_they_say() {
        let mut short = model(vec![node("x", "y")]);
        short.graph.as_mut().unwrap().node[0]
            .attribute
            .push(with_tensor(TensorProto {
                data_type: DataType::Float as i32,
                dims: vec![3],
                raw_data: vec![0; 8].into(),
                ..TensorProto::default()
            }));
        refuses(&short, "has 8 bytes of data where FP32[3] takes 12");
    }
}
