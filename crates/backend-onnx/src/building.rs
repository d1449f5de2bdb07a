//! From a lowered graph to tract's: its nodes as operators of tract or of ours, before types and shapes are known.

use std::collections::HashMap;

use tract_hir::internal::*;

use crate::{
    dtype,
    lowered::{Declared, OnnxGraph, OnnxNode},
};

/// Makes the operator of a node, and says which values of the graphs around it the operator uses beside the node's inputs.
pub(crate) type BuildNode = fn(&BuildContext, &OnnxNode) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)>;

/// What the making of an operator depends on beside its node.
#[derive(Debug)]
pub(crate) struct BuildContext {
    /// The names of sizes, for all graphs of a model.
    pub(crate) symbols: SymbolScope,
    build: BuildNode,
}

/// A graph of tract's.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) model: InferenceModel,
    /// Values of the graphs around it that it uses. They are its last inputs, in this order.
    pub(crate) unresolved_inputs: Vec<String>,
    /// Where each value comes from.
    pub(crate) outlets_by_name: HashMap<String, OutletId>,
}

impl BuildContext {
    pub(crate) fn new(build: BuildNode) -> Self {
        Self {
            symbols: SymbolScope::default(),
            build,
        }
    }

    /// The operator of a node, and the values of the graphs around it that it uses beside the node's inputs.
    pub(crate) fn op(&self, node: &OnnxNode) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
        (self.build)(self, node).with_context(|| node.name.clone())
    }

    /// A model's graph, which uses nothing from outside.
    pub(crate) fn model(&self, graph: &OnnxGraph) -> TractResult<InferenceModel> {
        let built = self.graph(graph)?;
        ensure!(
            built.unresolved_inputs.is_empty(),
            "values that nothing makes: {}",
            built.unresolved_inputs.join(", ")
        );
        Ok(built.model)
    }

    /// A model's graph or an inner one.
    pub(crate) fn graph(&self, graph: &OnnxGraph) -> TractResult<Built> {
        let mut built = Built {
            model: InferenceModel {
                symbols: self.symbols.clone(),
                ..InferenceModel::default()
            },
            unresolved_inputs: Vec::new(),
            outlets_by_name: HashMap::new(),
        };
        for input in &graph.input {
            let datum_type = input.declared.as_ref().and_then(datum_type);
            let fact = InferenceFact {
                datum_type: datum_type.map(Into::into).unwrap_or_default(),
                ..InferenceFact::default()
            };
            let outlet = built.model.add_source(&*input.name, fact)?;
            built.outlets_by_name.insert(input.name.clone(), outlet);
        }
        for constant in &graph.initializer {
            let outlet = built.model.add_const(&*constant.name, constant.value.clone())?;
            built.outlets_by_name.insert(constant.name.clone(), outlet);
        }
        for node in &graph.node {
            // The name leads to the node in the file when tract cannot go on.
            let (op, used_within) = self.op(node)?;
            let facts = node.output.iter().map(|_| InferenceFact::default());
            let id = built.model.add_node(&*node.name, op, facts.collect())?;
            let given = node.input.iter().filter(|name| !name.is_empty());
            for (index, name) in given.chain(&used_within).enumerate() {
                let outlet = built.outlet(name)?;
                built.model.add_edge(outlet, InletId::new(id, index))?;
            }
            for (index, name) in node.output.iter().enumerate() {
                let outlet = OutletId::new(id, index);
                built.outlets_by_name.insert(name.clone(), outlet);
                built.model.set_outlet_label(outlet, name.clone())?;
            }
        }
        let mut outlets = Vec::with_capacity(graph.output.len());
        for output in &graph.output {
            outlets.push(built.outlet(&output.name)?);
        }
        built.model.select_output_outlets(&outlets)?;
        Ok(built)
    }
}

impl Built {
    /// Where a value comes from: from outside, if nothing here makes it.
    fn outlet(&mut self, name: &str) -> TractResult<OutletId> {
        if let Some(&outlet) = self.outlets_by_name.get(name) {
            return Ok(outlet);
        }
        let outlet = self.model.add_source(name, InferenceFact::default())?;
        self.unresolved_inputs.push(name.to_owned());
        self.outlets_by_name.insert(name.to_owned(), outlet);
        Ok(outlet)
    }
}

fn datum_type(declared: &Declared) -> Option<DatumType> {
    dtype::from_onnx(declared.elem_type).and_then(dtype::to_tract)
}
