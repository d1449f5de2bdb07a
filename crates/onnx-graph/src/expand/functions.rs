//! Inlines the functions that a file defines.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
};

use tensor_core::QuotedName;

use super::{decoded_size::DecodedSize, graph::any_graph};
use crate::{
    Error, operators,
    proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, canonical_domain},
    structure::MAX_NODES,
};

/// Maximum nesting of functions.
const MAX_DEPTH: usize = 16;

/// Maximum memory of inlined nodes. Each call copies the function's attributes and adds a prefix to the names
/// of its values.
const MAX_BYTES: usize = 512 << 20;

/// The identity of an operator: domain, name, overload.
type Key = (String, String, String);

pub(super) fn are_used(model: &ModelProto) -> bool {
    let keys: HashSet<Key> = model.functions.iter().map(defined).collect();
    let uses = |graph: &GraphProto| graph.node.iter().any(|node| keys.contains(&meant(node)));
    !keys.is_empty() && model.graph.as_ref().is_some_and(|graph| any_graph(graph, &uses))
}

/// Inlines all functions of a model.
///
/// # Errors
/// Returns an error if a function is defined twice, is recursive or is too deeply nested, or if the inlined
/// nodes exceed the limits on their number and memory.
pub fn write_out_functions(model: &mut ModelProto) -> Result<(), Error> {
    if model.functions.is_empty() {
        return Ok(());
    }
    // A function may use operator sets that the model does not import.
    for import in model.functions.iter().flat_map(|function| &function.opset_import) {
        let domain = canonical_domain(&import.domain);
        if !model
            .opset_import
            .iter()
            .any(|known| canonical_domain(&known.domain) == domain)
        {
            model.opset_import.push(import.clone());
        }
    }
    let mut functions: HashMap<Key, FunctionProto> = HashMap::new();
    for function in std::mem::take(&mut model.functions) {
        if let Some(first) = functions.insert(defined(&function), function) {
            let name = QuotedName(&first.name);
            return Err(Error::invalid(format!(
                "the file defines the function {name} twice"
            )));
        }
    }
    let imported: HashMap<String, i64> = model
        .opset_import
        .iter()
        .map(|import| (canonical_domain(&import.domain).to_owned(), import.version))
        .collect();
    let mut writer = Writer {
        functions: &functions,
        imported: &imported,
        uses: 0,
        nodes: 0,
        room: MAX_BYTES,
        mark: unused_mark(model.graph.as_ref()),
    };
    match &mut model.graph {
        Some(graph) => writer.graph(graph, 0),
        None => Ok(()),
    }
}

/// Returns a prefix that no value name of the graph begins with.
fn unused_mark(graph: Option<&GraphProto>) -> String {
    let longest = Cell::new(0);
    let look = |graph: &GraphProto| {
        let of_nodes = graph
            .node
            .iter()
            .flat_map(|node| node.input.iter().chain(&node.output));
        let inputs = graph.input.iter().map(|input| &input.name);
        let constants = graph.initializer.iter().map(|tensor| &tensor.name);
        let sparse = graph
            .sparse_initializer
            .iter()
            .filter_map(|sparse| sparse.values.as_ref());
        let names = of_nodes.chain(inputs).chain(constants);
        for name in names.chain(sparse.map(|values| &values.name)) {
            let marks = name.bytes().take_while(|byte| *byte == b'~').count();
            longest.set(longest.get().max(marks));
        }
        false
    };
    if let Some(graph) = graph {
        any_graph(graph, &look);
    }
    "~".repeat(longest.get() + 1)
}

fn defined(function: &FunctionProto) -> Key {
    (
        canonical_domain(&function.domain).to_owned(),
        function.name.clone(),
        function.overload.clone(),
    )
}

fn meant(node: &NodeProto) -> Key {
    (
        canonical_domain(&node.domain).to_owned(),
        node.op_type.clone(),
        node.overload.clone(),
    )
}

struct Writer<'f> {
    functions: &'f HashMap<Key, FunctionProto>,
    /// Operator set versions that the model imports.
    imported: &'f HashMap<String, i64>,
    /// Number of calls inlined so far. The number is part of the value names of each call.
    uses: usize,
    nodes: usize,
    /// Remaining bytes of the memory limit.
    room: usize,
    /// Prefix for the names of functions' values, unused in the file.
    mark: String,
}

impl Writer<'_> {
    fn graph(&mut self, graph: &mut GraphProto, depth: usize) -> Result<(), Error> {
        let nodes = std::mem::take(&mut graph.node);
        graph.node = self.written_out(nodes, depth)?;
        Ok(())
    }

    fn written_out(&mut self, nodes: Vec<NodeProto>, depth: usize) -> Result<Vec<NodeProto>, Error> {
        let mut written = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            self.nodes += 1;
            if self.nodes > MAX_NODES {
                return Err(Error::invalid(format!(
                    "the model has more than {MAX_NODES} nodes after its functions are inlined"
                )));
            }
            for graph in node
                .attribute
                .iter_mut()
                .filter_map(|attribute| attribute.g.as_mut())
            {
                self.graph(graph, depth)?;
            }
            let Some(function) = self.functions.get(&meant(&node)) else {
                written.push(node);
                continue;
            };
            if depth == MAX_DEPTH {
                let name = QuotedName(&function.name);
                return Err(Error::invalid(format!(
                    "the function {name} uses itself, or functions are nested more than {MAX_DEPTH} deep"
                )));
            }
            let body = self.used(function, &node)?;
            written.extend(self.written_out(body, depth + 1)?);
        }
        Ok(written)
    }

    /// Records the operator set version of a function's nodes, including subgraphs, where it differs from the
    /// model's.
    fn note_versions(&self, node: &mut NodeProto, function: &FunctionProto) {
        let domain = canonical_domain(&node.domain);
        let mut imports = function.opset_import.iter();
        let own = imports.find(|import| canonical_domain(&import.domain) == domain);
        let is_operator = !self.functions.contains_key(&meant(node));
        if let Some(own) = own.filter(|own| {
            is_operator
                && self
                    .imported
                    .get(domain)
                    .is_some_and(|&version| version != own.version)
        }) {
            operators::set_own_opset(node, own.version);
        }
        for graph in node
            .attribute
            .iter_mut()
            .filter_map(|attribute| attribute.g.as_mut())
        {
            for inner in &mut graph.node {
                self.note_versions(inner, function);
            }
        }
    }

    /// Returns the nodes that replace one call of `function`: its body with the names and attributes of
    /// `node`.
    fn used(&mut self, function: &FunctionProto, node: &NodeProto) -> Result<Vec<NodeProto>, Error> {
        if node.input.len() > function.input.len() || node.output.len() > function.output.len() {
            let name = QuotedName(&function.name);
            return Err(Error::invalid(format!(
                "a call of the function {name} has more inputs or outputs than the function declares"
            )));
        }
        let most = most_bytes(function, node, self.mark.len());
        self.room = self.room.checked_sub(most).ok_or_else(|| {
            let limit = MAX_BYTES >> 20;
            Error::invalid(format!(
                "the model's functions take more than {limit} MiB after they are inlined"
            ))
        })?;
        self.uses += 1;
        let mut renamed = NewNames {
            prefix: format!("{}{}~{}~", self.mark, self.uses, function.name),
            names: HashMap::new(),
        };
        let actual = |names: &[String], index: usize| names.get(index).cloned().unwrap_or_default();
        for (index, name) in function.input.iter().enumerate() {
            renamed.names.insert(name.clone(), actual(&node.input, index));
        }
        let mut body = function.node.clone();
        for (index, name) in function.output.iter().enumerate() {
            let outer = actual(&node.output, index);
            if outer.is_empty() {
                continue;
            }
            // A function may return an input unchanged.
            if function.input.contains(name) {
                body.push(super::graph::node(
                    "Identity",
                    &node.name,
                    vec![name.clone()],
                    format!("{name}~"),
                    vec![],
                ));
                renamed.names.insert(format!("{name}~"), outer);
            } else {
                renamed.names.insert(name.clone(), outer);
            }
        }
        let mut given: HashMap<&str, &AttributeProto> = HashMap::new();
        for attribute in function.attribute_proto.iter().chain(&node.attribute) {
            given.insert(&attribute.name, attribute);
        }
        for inner in &mut body {
            renamed.node(inner, &given);
            self.note_versions(inner, function);
            if !node.name.is_empty() {
                inner.name = format!("{}/{}", node.name, inner.name);
            }
        }
        Ok(body)
    }
}

/// Returns an upper bound on the memory, in bytes, that inlining one call of a function takes.
fn most_bytes(function: &FunctionProto, node: &NodeProto, mark: usize) -> usize {
    let given = function.attribute_proto.iter().chain(&node.attribute);
    let longest_attribute = given.map(DecodedSize::held).max().unwrap_or(0);
    let actual = node.input.iter().chain(&node.output).chain([&node.name]);
    let longest_name = actual.map(String::len).max().unwrap_or(0);
    let name = longest_name
        .saturating_add(function.name.len())
        .saturating_add(mark)
        .saturating_add(NUMBER);
    let renamed = renamed(&function.node);
    function
        .node
        .held()
        .saturating_add(renamed.names.saturating_mul(name))
        .saturating_add(renamed.references.saturating_mul(longest_attribute))
}

/// How many names and attribute references a function's nodes have. The size of a copy is computed from these
/// counts.
#[derive(Default)]
struct Growing {
    names: usize,
    references: usize,
}

fn renamed(nodes: &[NodeProto]) -> Growing {
    let mut all = Growing::default();
    for node in nodes {
        all.names += 1 + node.input.len() + node.output.len();
        for attribute in &node.attribute {
            all.references += usize::from(!attribute.ref_attr_name.is_empty());
            if let Some(graph) = &attribute.g {
                let inner = renamed(&graph.node);
                all.names += graph.input.len() + graph.output.len() + graph.initializer.len() + inner.names;
                all.references += inner.references;
            }
        }
    }
    all
}

/// Maximum length of the part of an inlined name that makes it unique: the number of the function's call,
/// and separators.
const NUMBER: usize = 24;

/// Maps the names of a function's values to their names in one call.
struct NewNames {
    prefix: String,
    names: HashMap<String, String>,
}

impl NewNames {
    fn name(&self, name: &mut String) {
        if name.is_empty() {
            return;
        }
        *name = match self.names.get(name) {
            Some(name) => name.clone(),
            None => format!("{}{name}", self.prefix),
        };
    }

    fn node(&self, node: &mut NodeProto, given: &HashMap<&str, &AttributeProto>) {
        node.input
            .iter_mut()
            .chain(&mut node.output)
            .for_each(|name| self.name(name));
        node.attribute.retain_mut(|attribute| {
            if attribute.ref_attr_name.is_empty() {
                return true;
            }
            // An attribute that the call does not set is dropped.
            let value = given.get(attribute.ref_attr_name.as_str());
            value.is_some_and(|&value| {
                let name = std::mem::take(&mut attribute.name);
                *attribute = AttributeProto {
                    name,
                    ..value.clone()
                };
                true
            })
        });
        for graph in node
            .attribute
            .iter_mut()
            .filter_map(|attribute| attribute.g.as_mut())
        {
            let values = graph
                .input
                .iter_mut()
                .chain(&mut graph.output)
                .map(|value| &mut value.name);
            values.for_each(|name| self.name(name));
            graph
                .initializer
                .iter_mut()
                .for_each(|tensor| self.name(&mut tensor.name));
            graph.node.iter_mut().for_each(|node| self.node(node, given));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{OperatorSetIdProto, TensorProto};

    /// Builds a model with `uses` calls of a function whose name is `name` bytes long. Each node of the
    /// function has an attribute with `numbers` integers.
    fn used(uses: usize, numbers: usize, name: usize) -> ModelProto {
        let node = |op_type: &str| NodeProto {
            op_type: op_type.to_owned(),
            ..NodeProto::default()
        };
        let name = "f".repeat(name);
        let attribute = AttributeProto {
            ints: vec![1; numbers],
            ..AttributeProto::default()
        };
        let inner = NodeProto {
            attribute: vec![attribute],
            ..node("Constant")
        };
        let function = FunctionProto {
            name: name.clone(),
            node: vec![inner; 2],
            ..FunctionProto::default()
        };
        ModelProto {
            graph: Some(GraphProto {
                node: vec![node(&name); uses],
                ..GraphProto::default()
            }),
            functions: vec![function],
            ..ModelProto::default()
        }
    }

    #[test]
    fn what_functions_become_is_bounded() {
        let mut model = used(1000, 1000, 10);
        assert!(write_out_functions(&mut model).is_ok());
        assert_eq!(model.graph.map(|graph| graph.node.len()), Some(2000));
        // A subgraph with many nodes, all of which get a long name.
        let mut within = used(1, 1, 1_000_000);
        let nodes = vec![NodeProto::default(); 1000];
        within.functions[0].node[0].attribute[0].g = Some(GraphProto {
            node: nodes,
            ..GraphProto::default()
        });
        // Empty attributes, each of which takes two bytes of the file.
        let mut of_nothing = used(1000, 1, 1);
        of_nothing.functions[0].node[0].attribute = vec![AttributeProto::default(); 100_000];
        for mut model in [
            used(1000, 1_000_000, 1),
            used(1000, 1, 1_000_000),
            within,
            of_nothing,
        ] {
            let error = write_out_functions(&mut model)
                .err()
                .map(|error| error.to_string());
            let expected = "the model's functions take more than 512 MiB after they are inlined";
            assert_eq!(error.as_deref(), Some(expected));
        }
    }

    #[test]
    fn names_of_functions_values_are_not_the_files() {
        let mut model = used(2, 1, 1);
        model.functions[0].node[0].output = vec!["p".to_owned()];
        let graph = model.graph.as_mut().unwrap();
        graph.node[0].input = vec!["~1~f~p".to_owned()];
        graph.initializer.push(TensorProto {
            name: "~~1~f~p".to_owned(),
            ..TensorProto::default()
        });
        model.functions[0].input = vec!["x".to_owned()];
        write_out_functions(&mut model).unwrap();
        let nodes = model.graph.unwrap().node;
        let mut given: Vec<&str> = nodes
            .iter()
            .flat_map(|node| &node.output)
            .map(String::as_str)
            .collect();
        given.sort_unstable();
        assert_eq!(given, ["~~~1~f~p", "~~~2~f~p"]);
    }

    #[test]
    fn a_function_that_is_defined_twice_is_refused() {
        let mut model = used(1, 1, 1);
        model.functions.push(model.functions[0].clone());
        let error = write_out_functions(&mut model).unwrap_err().to_string();
        assert_eq!(error, "the file defines the function 'f' twice");
    }

    /// Checks that the model imports the operator set version of the first function, and that the other
    /// function's operators keep their own version.
    #[test]
    fn functions_of_different_operator_sets_are_written_out_alike_each_time() {
        for _ in 0..10 {
            let mut model = used(1, 1, 1);
            model.opset_import.clear();
            let import = |version| OperatorSetIdProto {
                domain: String::new(),
                version,
            };
            model.functions[0].opset_import = vec![import(12)];
            let other = FunctionProto {
                name: "g".to_owned(),
                opset_import: vec![import(13)],
                ..model.functions[0].clone()
            };
            model.functions.push(other);
            let graph = model.graph.as_mut().unwrap();
            graph.node.push(NodeProto {
                op_type: "g".to_owned(),
                ..NodeProto::default()
            });
            write_out_functions(&mut model).unwrap();
            let versions: Vec<Option<i64>> = model
                .graph
                .unwrap()
                .node
                .iter()
                .map(operators::own_opset)
                .collect();
            assert_eq!(model.opset_import, [import(12)]);
            assert_eq!(versions, [None, None, Some(13), Some(13)]);
        }
    }
}
