//! The forward pass over the nodes in file order: applies each node's rule and stores the values by name.

use std::collections::{HashMap, HashSet};

use super::{
    constants, interleaving,
    node::{Follow, Node, RuleResult, label},
    numbering,
    size::{NARROW, Symbols, WIDE},
    table::{self, Rule},
    value::{Item, Reason, Value},
};
use crate::{
    operators,
    proto::{GraphProto, ModelProto, NodeProto, TensorProto, canonical_domain, tensor_proto::DataType},
};

type Outcome = Result<Item, Reason>;

pub(super) struct Pass<'m> {
    graph: &'m GraphProto,
    opsets: HashMap<&'m str, i64>,
    /// The scopes from the outermost graph to the current one.
    scopes: Vec<HashMap<String, Outcome>>,
    /// The names, in any graph, of values that may be 32-bit integers.
    narrow: HashSet<String>,
    /// The number of steps left until the analysis fails. Nodes in a loop take several steps.
    left: usize,
}

/// The maximum number of steps, enough for a graph of 100,000 nodes, or for loops over fewer nodes.
const MAX_STEPS: usize = 1_000_000;

impl<'m> Pass<'m> {
    pub(super) fn new(model: &'m ModelProto) -> Result<Self, Reason> {
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| Reason::from("there is no graph"))?;
        let imports = model.opset_import.iter();
        Ok(Self {
            graph,
            opsets: imports
                .map(|import| (canonical_domain(&import.domain), import.version))
                .collect(),
            scopes: Vec::new(),
            narrow: HashSet::new(),
            left: MAX_STEPS,
        })
    }

    /// Returns the outputs of the graph by name.
    pub(super) fn outputs(
        mut self,
        inputs: Vec<(&str, Item)>,
        symbols: &mut Symbols,
    ) -> Result<Vec<(&'m str, Outcome)>, Reason> {
        let inputs = inputs.into_iter().map(|(name, item)| (name.to_owned(), Ok(item)));
        let graph = self.graph;
        let outputs = self.follow(graph, inputs.collect(), symbols)?;
        let names = graph.output.iter().map(|output| output.name.as_str());
        Ok(names.zip(outputs).collect())
    }

    /// Follows a graph from its inputs to its outputs.
    fn follow(
        &mut self,
        graph: &GraphProto,
        inputs: HashMap<String, Outcome>,
        symbols: &mut Symbols,
    ) -> Result<Vec<Outcome>, Reason> {
        self.spend(1 + graph.initializer.len() + graph.input.len() + graph.output.len())?;
        let scope = self.scope(graph, inputs, symbols)?;
        self.scopes.push(scope);
        for node in &graph.node {
            let given = self.node(node, symbols);
            if let Some(scope) = self.scopes.last_mut() {
                define_outputs(scope, node, &given);
            }
        }
        let outputs = graph
            .output
            .iter()
            .map(|output| self.known(&output.name))
            .collect();
        self.scopes.pop();
        Ok(outputs)
    }

    /// Returns the scope of a graph before its first node: the inputs, the initializers, and the names that
    /// nodes will define.
    fn scope(
        &mut self,
        graph: &GraphProto,
        inputs: HashMap<String, Outcome>,
        symbols: &mut Symbols,
    ) -> Result<HashMap<String, Outcome>, Reason> {
        let mut scope = inputs;
        for tensor in graph.initializer.iter().filter(|tensor| is_narrow(tensor)) {
            self.narrow.insert(tensor.name.clone());
        }
        for tensor in &graph.initializer {
            let known = || Ok(Item::Tensor(constants::tensor(tensor, symbols)));
            scope.entry(tensor.name.clone()).or_insert_with(known);
        }
        for sparse in graph
            .sparse_initializer
            .iter()
            .filter_map(|sparse| sparse.values.as_ref())
        {
            let known = || Ok(Item::Tensor(Value::same_of_any_rank()));
            scope.entry(sparse.name.clone()).or_insert_with(known);
        }
        // Until a node defines its outputs, using their names is an error, even if an outer graph has values
        // with these names.
        for name in graph
            .node
            .iter()
            .flat_map(|node| &node.output)
            .filter(|name| !name.is_empty())
        {
            let later = Err(format!("the value '{name}' is used before it is defined").into());
            if scope.insert(name.clone(), later).is_some() {
                return Err(format!("two values are called '{name}'").into());
            }
        }
        Ok(scope)
    }

    /// Subtracts `steps` from the remaining ones. Returns an error if none are left.
    fn spend(&mut self, steps: usize) -> Result<(), Reason> {
        match self.left.checked_sub(steps) {
            Some(left) => self.left = left,
            None => return Err("the graph is too large to analyse".into()),
        }
        Ok(())
    }

    /// Records whether the outputs of `node` may be 32-bit integers. Returns whether any input may be a
    /// 32-bit integer.
    fn note_narrow(&mut self, node: &NodeProto) -> bool {
        let is_taken = node.input.iter().any(|name| self.narrow.contains(name));
        let mut constants = node.attribute.iter().filter_map(|attribute| attribute.t.as_ref());
        let is_given = match node.op_type.as_str() {
            "Cast" => {
                let mut to = node.attribute.iter().filter(|attribute| attribute.name == "to");
                to.any(|to| to.i == DataType::Int32 as i64)
            }
            "Shape" | "Size" => false,
            _ => is_taken || constants.any(is_narrow),
        };
        if is_given {
            self.narrow.extend(node.output.iter().cloned());
        }
        is_taken
    }

    fn known(&self, name: &str) -> Outcome {
        let scopes = self.scopes.iter().rev();
        let mut found = scopes.filter_map(|scope| scope.get(name));
        match found.next() {
            Some(known) => known.clone(),
            None => Err(format!("the value '{name}' is not defined").into()),
        }
    }

    fn node(&mut self, node: &NodeProto, symbols: &mut Symbols) -> RuleResult {
        self.spend(1 + node.input.len() + node.output.len())?;
        let Some(rule) = table::rule(&node.domain, &node.op_type) else {
            return Err(format!("{} is not known to keep rows independent", label(node)).into());
        };
        let domain = canonical_domain(&node.domain);
        let opset = self.opsets.get(domain).copied().unwrap_or(1);
        if operators::own_opset(node).is_some_and(|own| own != opset) {
            // The node comes from a function that imports a different version. It is refused, because ONNX
            // Runtime runs functions with the model's version.
            return Err(format!("{} uses another operator set than the model", label(node)).into());
        }
        let inputs: Result<Vec<Option<Item>>, Reason> = node
            .input
            .iter()
            .map(|name| {
                if name.is_empty() {
                    Ok(None)
                } else {
                    self.known(name).map(Some)
                }
            })
            .collect();
        let inputs = inputs?;
        let is_same = |item: &Option<Item>| match item {
            None | Some(Item::Sequence(None)) => true,
            Some(Item::Tensor(value) | Item::Sequence(Some(value))) => value.is_same(),
        };
        let are_same = inputs.iter().all(is_same);
        let numbering = numbering::given(node, &inputs);
        let outer = interleaving::given(node, &inputs)?;
        let finish = |items| interleaving::apply(numbering::apply(items, numbering), outer.as_ref());
        let is_narrow = self.note_narrow(node);
        let mut seen = Node {
            proto: node,
            width: if is_narrow { NARROW } else { WIDE },
            opset,
            inputs,
            symbols,
        };
        match rule {
            Rule::By(rule) => match rule(&mut seen) {
                Err(_) if are_same => {
                    let same = || Item::Tensor(Value::same_of_any_rank());
                    Ok(node.output.iter().map(|_| same()).collect())
                }
                given => given.map(finish),
            },
            Rule::Always(rule) => rule(&mut seen).map(finish),
            Rule::Inner(rule) => rule(&mut seen, self),
        }
    }
}

/// Stores the values of a node's outputs by name.
fn define_outputs(scope: &mut HashMap<String, Outcome>, node: &NodeProto, given: &RuleResult) {
    let outputs = node.output.iter().enumerate();
    for (index, name) in outputs.filter(|(_, name)| !name.is_empty()) {
        let known = match given {
            Ok(items) => items.get(index).cloned().ok_or_else(|| {
                Reason::from(format!(
                    "{} has an output {index} that the analysis does not support",
                    label(node)
                ))
            }),
            Err(reason) => Err(reason.clone()),
        };
        scope.insert(name.clone(), known);
    }
}

fn is_narrow(tensor: &TensorProto) -> bool {
    tensor.data_type == DataType::Int32 as i32
}

impl Follow for Pass<'_> {
    fn graph(&mut self, graph: &GraphProto, arguments: Vec<Item>, symbols: &mut Symbols) -> RuleResult {
        let names = graph.input.iter().map(|input| input.name.clone());
        self.narrow.extend(names.clone());
        let inputs = names.zip(arguments.into_iter().map(Ok)).collect();
        self.follow(graph, inputs, symbols)?.into_iter().collect()
    }
}
