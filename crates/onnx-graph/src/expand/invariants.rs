//! Hoists loop-invariant carried values, such as the weights in TensorFlow's loops: they become outer values,
//! so that constants stay constants inside the loop.

use std::collections::{HashMap, HashSet};

use super::graph::{any_graph, node};
use crate::proto::{GraphProto, ModelProto, NodeProto, canonical_domain};

pub(super) fn are_there(model: &ModelProto) -> bool {
    let has = |graph: &GraphProto| graph.node.iter().any(|node| !invariants(node).is_empty());
    model.graph.as_ref().is_some_and(|graph| any_graph(graph, &has))
}

/// Hoists invariants out of all loops.
pub(super) fn take_out(model: &mut ModelProto) {
    if are_there(model)
        && let Some(graph) = &mut model.graph
    {
        take_out_of(graph);
    }
}

fn take_out_of(graph: &mut GraphProto) {
    let mut made = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let inner = node.attribute.iter_mut();
        inner
            .filter_map(|attribute| attribute.g.as_mut())
            .for_each(take_out_of);
        let places = invariants(&node);
        let results = shorten(&mut node, &places);
        made.push(node);
        made.extend(results);
    }
    graph.node = made;
}

/// Returns the body of `node` if it is a `Loop`.
fn body(node: &NodeProto) -> Option<&GraphProto> {
    let is_loop = node.op_type == "Loop" && canonical_domain(&node.domain).is_empty();
    let mut attributes = node.attribute.iter().filter(|_| is_loop);
    attributes.find(|attribute| attribute.name == "body")?.g.as_ref()
}

/// Returns the indices of the carried values that no iteration changes.
fn invariants(node: &NodeProto) -> Vec<usize> {
    let Some(body) = body(node) else {
        return vec![];
    };
    let defined: HashSet<&str> = body
        .node
        .iter()
        .flat_map(|node| &node.output)
        .chain(body.initializer.iter().map(|tensor| &tensor.name))
        .chain(body.input.iter().map(|input| &input.name))
        .map(String::as_str)
        .collect();
    let carried = node.input.len().saturating_sub(2);
    let copies: HashMap<&str, &str> = body.node.iter().filter_map(copy).collect();
    let stays = |place: &usize| {
        let (Some(given), Some(input), Some(output)) = (
            node.input.get(place + 2),
            body.input.get(place + 2),
            body.output.get(place + 1),
        ) else {
            return false;
        };
        // A name defined in the body would shadow the outer value.
        !given.is_empty() && !defined.contains(given.as_str()) && origin(&copies, &output.name) == input.name
    };
    match body.input.len() == carried + 2 && body.output.len() > carried {
        true => (0..carried).filter(stays).collect(),
        false => vec![],
    }
}

/// Returns the names of the output and the input of an `Identity` node; `None` for other nodes.
fn copy(node: &NodeProto) -> Option<(&str, &str)> {
    let is_copy = node.op_type == "Identity" && canonical_domain(&node.domain).is_empty();
    match (&*node.input, &*node.output) {
        ([input], [output]) if is_copy => Some((output, input)),
        _ => None,
    }
}

/// Returns the name of the value that `name` is a copy of, through any number of copies in a row.
fn origin<'g>(copies: &HashMap<&'g str, &'g str>, name: &'g str) -> &'g str {
    /// Maximum number of copies to follow, since damaged graphs may have cycles, which are refused later.
    const MAX_COPIES: usize = 16;
    let names = std::iter::successors(Some(name), |name| copies.get(name).copied());
    names.take(MAX_COPIES).last().unwrap_or(name)
}

/// Removes the carried values at the indices `places` from a loop. Returns nodes that produce the removed
/// outputs.
fn shorten(node: &mut NodeProto, places: &[usize]) -> Vec<NodeProto> {
    let mut results = Vec::new();
    let (name, outer) = (node.name.clone(), node.input.clone());
    let attributes = node.attribute.iter_mut();
    let mut bodies = attributes.filter(|attribute| attribute.name == "body");
    let Some(body) = bodies.next().and_then(|attribute| attribute.g.as_mut()) else {
        return results;
    };
    let mut first = Vec::new();
    for &place in places {
        let given = &outer[place + 2];
        let copy = |output: String| self::node("Identity", &name, vec![given.clone()], output, vec![]);
        first.push(copy(std::mem::take(&mut body.input[place + 2].name)));
        match node.output.get_mut(place) {
            Some(output) if !output.is_empty() => results.push(copy(std::mem::take(output))),
            _ => {}
        }
    }
    remove(&mut node.input, places, 2);
    remove(&mut node.output, places, 0);
    remove(&mut body.input, places, 2);
    remove(&mut body.output, places, 1);
    first.append(&mut body.node);
    body.node = first;
    results
}

/// Removes the values at the sorted indices `places`, counted after the first `others` values.
fn remove<T>(values: &mut Vec<T>, places: &[usize], others: usize) {
    let mut index = 0;
    values.retain(|_| {
        let place = index;
        index += 1;
        place < others || places.binary_search(&(place - others)).is_err()
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::proto::{AttributeProto, ValueInfoProto, attribute_proto::AttributeType};

    fn values(names: &[&str]) -> Vec<ValueInfoProto> {
        let value = |name: &&str| ValueInfoProto {
            name: (*name).to_owned(),
            ..ValueInfoProto::default()
        };
        names.iter().map(value).collect()
    }

    fn loop_of(given: &[&str], nodes: Vec<NodeProto>, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let body = GraphProto {
            node: nodes,
            input: values(inputs),
            output: values(outputs),
            ..GraphProto::default()
        };
        NodeProto {
            op_type: "Loop".to_owned(),
            input: given.iter().map(|name| (*name).to_owned()).collect(),
            output: ["a", "b", "c"].map(str::to_owned).into(),
            attribute: vec![AttributeProto {
                name: "body".to_owned(),
                r#type: AttributeType::Graph as i32,
                g: Some(body),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        }
    }

    #[test]
    fn what_no_iteration_changes_comes_from_outside() {
        let same = node("Identity", "", vec!["w".to_owned()], "w2".to_owned(), vec![]);
        let sum = node(
            "Add",
            "",
            vec!["s".to_owned(), "w".to_owned()],
            "s2".to_owned(),
            vec![],
        );
        let given = ["count", "", "weights", "start"];
        let mut node = loop_of(
            &given,
            vec![same.clone(), sum],
            &["i", "go", "w", "s"],
            &["go", "w2", "s2", "s2"],
        );
        assert_eq!(invariants(&node), [0]);
        let results = shorten(&mut node, &[0]);
        assert_eq!(node.input, ["count", "", "start"]);
        assert_eq!(node.output, ["b", "c"]);
        assert_eq!((&*results[0].input[0], &*results[0].output[0]), ("weights", "a"));
        let body = body(&node).unwrap();
        assert_eq!(body.node[0].input, ["weights"]);
        assert_eq!(body.node[0].output, ["w"]);
        assert_eq!((body.input.len(), body.output.len()), (3, 3));
        // The body defines a value with the name of the outer one.
        let hidden = loop_of(
            &["count", "", "w2", "start"],
            vec![same],
            &["i", "go", "w", "s"],
            &["go", "w2", "s", "s"],
        );
        assert_eq!(invariants(&hidden), [1]);
    }
}
