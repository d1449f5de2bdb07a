//! Handles traps: values that crash the process inside ONNX Runtime's operators. The graph is rewritten
//! before ONNX Runtime reads it, so that such values give a correct result or an error. A model for which no
//! rewrite is known needs a separate process.
//!
//! `cargo xtask zoo --extremes` searches for such values; the rules are in [`table`].

mod division;
mod elements;
mod filled;
mod guard;
mod scope;
mod table;

use std::collections::BTreeMap;

use onnx_graph::{
    expand::write_out_functions,
    proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, canonical_domain},
    structure,
};

pub(super) use self::guard::Guards;
use self::{
    filled::NonEmptyInputs,
    guard::Writer,
    scope::Scope,
    table::{Need, Rule},
};

/// The oldest operator set that supports the rewritten nodes.
const OLDEST: i64 = 9;

/// The outcome of rewriting the traps of a model, and the remaining checks for each request.
#[derive(Debug, Default)]
pub(super) struct DisarmOutcome {
    /// The guards in the graph, for the error messages of runs.
    pub(super) guards: Guards,
    /// Model inputs that must be non-empty, each with the operator that would crash the process otherwise.
    pub(super) filled: BTreeMap<String, String>,
    /// Whether any node of the model was rewritten.
    pub(super) is_changed: bool,
    /// Why the model needs a separate process, such as a trap without a known rewrite.
    pub(super) unguarded: Option<String>,
    /// An error in the file that would crash any process that runs it.
    pub(super) refused: Option<String>,
}

/// Returns whether a model has operators with known traps, including those in its functions and subgraphs.
pub(super) fn are_there(model: &ModelProto) -> bool {
    let functions = model.functions.iter().flat_map(|function| &function.node);
    let mut nodes = functions.chain(model.graph.iter().flat_map(|graph| &graph.node));
    nodes.any(|node| any_node(node, &table::may_trap))
}

/// Rewrites the operators with known traps in a model.
pub(super) fn disarm(model: &mut ModelProto) -> DisarmOutcome {
    let mut disarmed = DisarmOutcome::default();
    let domains = ["", "ai.onnx.ml", table::MICROSOFT];
    let mut in_functions = model.functions.iter().flat_map(|function| &function.node);
    if in_functions.any(|node| any_node(node, &table::may_trap)) {
        let version = |domain: &str, imports: &[OperatorSetIdProto]| {
            let found = imports
                .iter()
                .find(|import| canonical_domain(&import.domain) == domain);
            found.map(|import| import.version)
        };
        let differs = |domain: &str| {
            let own = version(domain, &model.opset_import);
            let mut others = model
                .functions
                .iter()
                .map(|function| version(domain, &function.opset_import));
            others.any(|other| own.is_some() && other.is_some() && own != other)
        };
        if domains.iter().any(|domain| differs(domain)) {
            disarmed.unguarded =
                Some("a function of the file uses another operator set than the model".to_owned());
            return disarmed;
        }
        // Values in a function have no known types until it is inlined.
        if let Err(error) = write_out_functions(model) {
            disarmed.unguarded = Some(error.to_string());
            return disarmed;
        }
        disarmed.is_changed = true;
    }
    let opset = model
        .opset_import
        .iter()
        .find(|import| canonical_domain(&import.domain).is_empty());
    let opset = opset.map_or(1, |import| import.version);
    let Some(graph) = &mut model.graph else {
        return disarmed;
    };
    let filled = NonEmptyInputs::of(graph);
    let mut pass = Pass {
        writer: Writer::new(),
        opset,
        filled: Some(filled),
        disarmed,
    };
    pass.graph(graph, None);
    pass.disarmed.is_changed |= pass.writer.has_written();
    pass.disarmed.guards = pass.writer.finish();
    pass.disarmed
}

struct Pass {
    writer: Writer,
    opset: i64,
    /// The values that are non-empty if certain model inputs are; `None` in subgraphs, whose values are not
    /// analyzed.
    filled: Option<NonEmptyInputs>,
    disarmed: DisarmOutcome,
}

impl Pass {
    /// Rewrites a graph. Returns the datatypes of its outputs.
    fn graph(&mut self, graph: &mut GraphProto, outer: Option<&Scope<'_>>) -> Vec<Option<i32>> {
        let mut scope = Scope::new(graph, outer);
        let mut written = Vec::with_capacity(graph.node.len());
        for mut node in std::mem::take(&mut graph.node) {
            let mut given = Vec::new();
            if has_graphs(&node) {
                // The analysis covers only the values of the outermost graph.
                let filled = self.filled.take();
                for inner in inner_graphs(&mut node) {
                    given = self.graph(inner, Some(&scope));
                }
                self.filled = filled;
            }
            scope.learn(&node, given);
            self.node(node, &scope, &mut written);
        }
        graph.node = written;
        scope.outputs(graph)
    }

    fn node(&mut self, mut node: NodeProto, scope: &Scope<'_>, written: &mut Vec<NodeProto>) {
        let rule = table::rule(&node);
        self.name_outputs(&mut node);
        let old = self.opset < OLDEST;
        match rule {
            Rule::None => written.push(node),
            Rule::Refused(reason) => {
                self.refuse(&node, reason);
                written.push(node);
            }
            Rule::Process(reason) => {
                self.needs_process(&node, reason);
                written.push(node);
            }
            Rule::NoZeroConstant(index) => {
                let constant = node.input.get(index).and_then(|name| scope.constant(name));
                if constant.is_some_and(|constant| constant.is_zero) {
                    self.refuse(&node, "'split' is 0");
                }
                written.push(node);
            }
            Rule::Division => match division::kind(&node, scope) {
                division::Kind::Safe => written.push(node),
                division::Kind::Integers(element) if !old => {
                    division::rewrite(node, element, &mut self.writer, written);
                }
                division::Kind::Integers(_) => {
                    self.needs_process(&node, "of integers in an operator set before 9");
                    written.push(node);
                }
                division::Kind::Unknown => {
                    self.needs_process(&node, "of a datatype that is not known before a run");
                    written.push(node);
                }
            },
            Rule::Needs(needs) => {
                let open = self.open_needs(&node, &needs, scope);
                if !open.is_empty() && old {
                    self.needs_process(&node, "in an operator set before 9");
                } else if !open.is_empty() {
                    self.writer.guard(&mut node, &open, written);
                }
                written.push(node);
            }
        }
    }

    /// Returns the node's requirements that need a guard, because neither constants nor checks of the model's
    /// inputs guarantee them.
    fn open_needs(
        &mut self,
        node: &NodeProto,
        needs: &[(usize, Need)],
        scope: &Scope<'_>,
    ) -> Vec<(String, Need)> {
        let mut open = Vec::new();
        for &(index, need) in needs {
            let Some(name) = node.input.get(index).filter(|name| !name.is_empty()) else {
                continue;
            };
            let is_met = match (need, scope.constant(name)) {
                (Need::Elements, Some(constant)) => constant.is_filled,
                (Need::Positive, Some(constant)) => constant.is_positive,
                (Need::Elements, None) => {
                    let inputs = self.filled.as_ref().and_then(|filled| filled.inputs_behind(name));
                    let is_met = inputs.is_some();
                    for input in inputs.into_iter().flatten() {
                        let operator = self.disarmed.filled.entry(input.to_owned());
                        operator.or_insert_with(|| node.op_type.clone());
                    }
                    is_met
                }
                (Need::Positive, None) => false,
            };
            if !is_met {
                open.push((name.clone(), need));
            }
        }
        open
    }

    /// Gives names to a node's unnamed optional outputs. For a node with past keys and values whose outputs
    /// have no names, ONNX Runtime reads uninitialized memory, which may contain data of other runs.
    fn name_outputs(&mut self, node: &mut NodeProto) {
        const PAST: usize = 6;
        const OUTPUTS: usize = 3;
        let has_past = node.input.get(PAST).is_some_and(|name| !name.is_empty());
        if node.domain != table::MICROSOFT || node.op_type != "MultiHeadAttention" || !has_past {
            return;
        }
        node.output.resize(OUTPUTS.max(node.output.len()), String::new());
        for name in node.output[..OUTPUTS].iter_mut().filter(|name| name.is_empty()) {
            *name = self.writer.name();
        }
    }

    fn refuse(&mut self, node: &NodeProto, reason: &str) {
        let refused = &mut self.disarmed.refused;
        refused.get_or_insert_with(|| format!("{}: {reason}", structure::label(node)));
    }

    fn needs_process(&mut self, node: &NodeProto, reason: &str) {
        let unguarded = &mut self.disarmed.unguarded;
        unguarded.get_or_insert_with(|| format!("{}: {reason}", structure::label(node)));
    }
}

fn has_graphs(node: &NodeProto) -> bool {
    let has = |attribute: &AttributeProto| attribute.g.is_some() || !attribute.graphs.is_empty();
    node.attribute.iter().any(has)
}

fn inner_graphs(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    let attributes = node.attribute.iter_mut();
    attributes.flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
}

/// Returns whether `test` holds for a node or for one in its subgraphs.
fn any_node(node: &NodeProto, test: &impl Fn(&NodeProto) -> bool) -> bool {
    let graphs = node
        .attribute
        .iter()
        .flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
    test(node)
        || graphs
            .flat_map(|graph| &graph.node)
            .any(|node| any_node(node, test))
}

#[cfg(test)]
mod rewritten_runs;
#[cfg(test)]
mod tests;
