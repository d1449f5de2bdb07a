//! `If`: what is chosen when the model is loaded takes the place of the node, and only that is looked at. What is chosen
//! while the model runs may give values of different sizes, which tract wants to be the same.

use std::sync::{Arc, OnceLock};

use tract_hir::internal::*;

use super::attributes::Attributes;
use crate::{
    building::{BuildContext, Built},
    checked_graph::{CheckedGraph, UNSOUND},
    faults::{Limit, Misfit},
    lowered::{OnnxGraph, OnnxNode},
    ops::counted::counted,
};

/// `If`, and the names of what its branches use of the graph around it.
pub(crate) fn branch(
    context: &BuildContext,
    node: &OnnxNode,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let attributes = Attributes(node);
    let graph = |name: &str| -> TractResult<&OnnxGraph> {
        let graph = attributes.get(name).and_then(|attribute| attribute.g.as_ref());
        graph.with_context(|| format!("no {name}"))
    };
    let bodies = [
        context.graph(graph("else_branch")?)?,
        context.graph(graph("then_branch")?)?,
    ];
    let mut used: Vec<String> = bodies
        .iter()
        .flat_map(|body| body.unresolved_inputs.iter().cloned())
        .collect();
    used.sort();
    used.dedup();
    let [other, then] = bodies;
    let body = |body: Built| {
        let position = |name: &String| used.iter().position(|used| used == name).map(|at| at + 1);
        let inputs: Option<Vec<usize>> = body.unresolved_inputs.iter().map(position).collect();
        Some(Body {
            model: body.model,
            inputs: inputs?,
        })
    };
    let bodies = [
        body(other).context("a value without a name")?,
        body(then).context("a value without a name")?,
    ];
    let counts = [bodies[0].model.outputs.len(), bodies[1].model.outputs.len()];
    ensure!(
        counts[0] == counts[1] && counts[0] == node.output.len(),
        "branches of {} and {} outputs for {}",
        counts[0],
        counts[1],
        node.output.len()
    );
    let op = If {
        bodies,
        scope: context.symbols.clone(),
        sizes: Arc::default(),
    };
    Ok((Box::new(op), used))
}

#[derive(Clone, Debug)]
struct Body {
    model: InferenceModel,
    /// For each of the model's inputs, which one of the node's it is.
    inputs: Vec<usize>,
}

#[derive(Clone, Debug)]
struct If {
    /// For false, and for true.
    bodies: [Body; 2],
    scope: SymbolScope,
    /// Symbols for the sizes that depend on the branch taken, by output and axis.
    sizes: Arc<OnceLock<Vec<Vec<Symbol>>>>,
}

impl Body {
    /// Finds out what can be found out from the inputs.
    fn analyse(&mut self, inputs: &[InferenceFact]) -> TractResult<()> {
        for (index, &input) in self.inputs.iter().enumerate() {
            self.model.input_fact_mut(index)?.unify_with(&inputs[input])?;
        }
        self.model.analyse(false)?;
        Ok(())
    }
}

impl If {
    /// The bodies that can be chosen.
    fn choices(condition: Option<&Tensor>) -> TractResult<std::ops::Range<usize>> {
        match condition {
            Some(condition) => {
                let choice = usize::from(super::elements::scalar::<bool>(condition)?);
                Ok(choice..choice + 1)
            }
            None => Ok(0..2),
        }
    }

    /// The symbol for a size that depends on the choice.
    fn size(&self, output: usize, axis: usize) -> Option<TDim> {
        const MAX_RANK: usize = 8;
        let symbols = self.sizes.get_or_init(|| {
            let outputs = self.bodies[0].model.outputs.iter();
            outputs
                .map(|_| (0..MAX_RANK).map(|_| counted(&self.scope, "branch")).collect())
                .collect()
        });
        Some(symbols.get(output)?.get(axis)?.to_dim())
    }
}

impl PartialEq for If {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Eq for If {}

impl Op for If {
    fn name(&self) -> StaticName {
        "If".into()
    }

    not_a_typed_op!();
}

impl EvalOp for If {
    fn eval(&self, _: &EvalContext<'_>, _: TVec<TValue>) -> TractResult<TVec<TValue>> {
        bail!("an If that is not prepared");
    }

    not_out_of_plan!();
}

impl InferenceOp for If {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        let inputs: TVec<InferenceFact> = inputs.into_iter().cloned().collect();
        let mut outputs: TVec<InferenceFact> = outputs.into_iter().cloned().collect();
        let condition = inputs[0].value.concretize();
        let choices = Self::choices(condition.as_deref())?;
        for body in &mut self.bodies[choices.clone()] {
            body.analyse(&inputs)?;
        }
        for (index, output) in outputs.iter_mut().enumerate() {
            let mut facts = choices
                .clone()
                .map(|choice| self.bodies[choice].model.output_fact(index));
            let Some(first) = facts.next().transpose()? else {
                continue;
            };
            match facts.next().transpose()? {
                None => {
                    output.unify_with(first)?;
                }
                Some(second) => {
                    for fact in [first, second] {
                        output.datum_type.unify_with(&fact.datum_type)?;
                    }
                    let (Some(a), Some(b)) = (first.shape.concretize(), second.shape.concretize()) else {
                        continue;
                    };
                    if a.len() != b.len() {
                        continue;
                    }
                    let merged: Option<TVec<TDim>> = a
                        .iter()
                        .zip(&b)
                        .enumerate()
                        .map(|(axis, (a, b))| {
                            if a == b {
                                Some(a.clone())
                            } else {
                                self.size(index, axis)
                            }
                        })
                        .collect();
                    if let Some(merged) = merged {
                        output.shape.unify_with(&merged.into())?;
                    }
                }
            }
        }
        Ok((inputs, outputs, observed.into_iter().cloned().collect()))
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.bodies[0].model.outputs.len())
    }

    fn to_typed(
        &self,
        _source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        let condition = target.outlet_fact(inputs[0])?.konst.clone();
        let choices = Self::choices(condition.as_deref())?;
        if choices.len() == 1 {
            let body = &self.bodies[choices.start];
            return inline(body, &node.name, target, &inputs);
        }
        let mut facts = tvec![];
        let [other, then] = self.bodies.each_ref().map(|body| body.model.clone().into_typed());
        let typed = [other?, then?];
        for index in 0..typed[0].outputs.len() {
            let (a, b) = (typed[0].output_fact(index)?, typed[1].output_fact(index)?);
            ensure!(
                a.datum_type == b.datum_type && a.rank() == b.rank(),
                "branches that give values of different types or ranks"
            );
            let dims = a.shape.iter().zip(b.shape.iter()).enumerate();
            let dims: Option<TVec<TDim>> = dims
                .map(|(axis, (a, b))| {
                    if a == b {
                        Some(a.clone())
                    } else {
                        self.size(index, axis)
                    }
                })
                .collect();
            facts.push(a.datum_type.fact(dims.context("too many dimensions")?));
        }
        let mut branches = Vec::with_capacity(2);
        for (typed, body) in typed.into_iter().zip(&self.bodies) {
            branches.push(Branch {
                graph: branch_graph(typed)?,
                inputs: body.inputs.clone(),
            });
        }
        target.wire_node(&*node.name, Choice { branches, facts }, &inputs)
    }

    as_op!();
}

/// Puts a body's nodes in the place of the node.
fn inline(
    body: &Body,
    name: &str,
    target: &mut TypedModel,
    inputs: &[OutletId],
) -> TractResult<TVec<OutletId>> {
    let typed = body.model.clone().into_typed()?;
    let mut mapping: HashMap<OutletId, OutletId> = HashMap::new();
    for (outlet, &input) in typed.input_outlets()?.iter().zip(&body.inputs) {
        mapping.insert(*outlet, inputs[input]);
    }
    for id in typed.eval_order()? {
        let inner = typed.node(id);
        if mapping.contains_key(&OutletId::new(id, 0)) {
            continue;
        }
        let inputs: TVec<OutletId> = inner.inputs.iter().map(|input| mapping[input]).collect();
        // The inner name stands last: messages are about that node.
        let outlets = target.wire_node(format!("{name}.{}", inner.name), inner.op.clone(), &inputs)?;
        for (slot, outlet) in outlets.into_iter().enumerate() {
            mapping.insert(OutletId::new(id, slot), outlet);
        }
    }
    Ok(typed.outputs.iter().map(|output| mapping[output]).collect())
}

/// A branch that is ready to run, or why it never can.
fn branch_graph(typed: TypedModel) -> TractResult<Result<Arc<CheckedGraph>, Misfit>> {
    match CheckedGraph::of(typed) {
        Ok(graph) => match graph.unsound_node() {
            Some(node) => Err(TractError::from(Limit(UNSOUND.to_owned())).context(node.name.clone())),
            None => Ok(Ok(Arc::new(graph))),
        },
        // Requests of these sizes may always take the other branch.
        Err(error) => match error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
            Some(&misfit) => Ok(Err(misfit)),
            None => Err(error),
        },
    }
}

/// An `If` that is decided while the model runs.
#[derive(Clone, Debug)]
struct Choice {
    /// For false, and for true.
    branches: Vec<Branch>,
    facts: TVec<TypedFact>,
}

#[derive(Clone, Debug)]
struct Branch {
    graph: Result<Arc<CheckedGraph>, Misfit>,
    /// For each of the graph's inputs, which one of the node's it is.
    inputs: Vec<usize>,
}

/// The graphs inside of a node.
pub(crate) fn inner_graphs(node: &TypedNode) -> impl Iterator<Item = &TypedModel> {
    let branches = node.op_as::<Choice>().map_or(&[][..], |choice| &choice.branches);
    branches
        .iter()
        .filter_map(|branch| Some(branch.graph.as_ref().ok()?.model()))
}

impl PartialEq for Choice {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Eq for Choice {}

impl Op for Choice {
    fn name(&self) -> StaticName {
        "If".into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        true
    }

    op_as_typed_op!();
}

impl EvalOp for Choice {
    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let branch = &self.branches[usize::from(super::elements::scalar::<bool>(&inputs[0])?)];
        match &branch.graph {
            Ok(graph) => {
                let given = branch.inputs.iter().map(|&input| inputs[input].clone());
                graph.run(given.collect(), context.symbols)
            }
            Err(misfit) => bail!(*misfit),
        }
    }

    not_out_of_plan!();
}

impl TypedOp for Choice {
    fn output_facts(&self, _: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(self.facts.clone())
    }

    as_op!();
}
