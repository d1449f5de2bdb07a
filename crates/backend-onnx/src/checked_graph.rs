//! A graph that is ready to run, with what is looked at before and after each of its nodes. The graph of a plan is one, and so are
//! the branches and bodies inside of it.

use std::sync::Arc;

use tract_hir::{
    internal::{SimpleState, TDim, TractErrorContext, TypedFact, ensure},
    prelude::{
        IntoRunnable, SymbolValues, TValue, TVec, TractResult, TypedModel, TypedNode, TypedRunnableModel,
    },
    tract_core::{knobs::KnobScope, ops::array::DynSlice},
};

use crate::{
    cancelling, convolutions,
    input_check::InputCheck,
    ops, optimize,
    size::{self, Differences, OutputSizes},
};

/// Why a graph with an unsound node is refused.
pub(crate) const UNSOUND: &str = "starts and ends that are computed from values of inputs are not supported";

/// An optimized graph and its checks.
#[derive(Debug)]
pub(crate) struct CheckedGraph {
    runnable: Arc<TypedRunnableModel>,
    /// The outputs that were asked for; others are behind them.
    output_count: usize,
    /// By node.
    input_checks: Vec<Option<InputCheck>>,
    /// By node.
    sizes: Vec<OutputSizes>,
    differences: Differences,
}

impl CheckedGraph {
    /// Optimizes a graph.
    ///
    /// # Errors
    /// A [`Misfit`](crate::faults::Misfit) for sizes that do not fit whatever the request is; what tract or the limits refuse.
    pub(crate) fn of(mut typed: TypedModel) -> TractResult<Self> {
        let output_count = typed.outputs.len();
        ops::count_all(&mut typed)?;
        size::admit_expressions(&typed)?;
        let differences = Differences::of(&typed)?;
        ops::keep_order(&mut typed)?;
        cancelling::check_all()?;
        optimize::declutter(&mut typed)?;
        cancelling::check_all()?;
        ops::pack(&mut typed)?;
        cancelling::check_all()?;
        convolutions::admit(&typed)?;
        match KnobScope::new([("TRACT_DISABLE_DIRECT_SPATIAL", "true")]) {
            Ok(knobs) if convolutions::are_better_as_products(&typed) => {
                knobs.enter(|| optimize::optimize(&mut typed))
            }
            _ => optimize::optimize(&mut typed),
        }?;
        ops::quicken(&mut typed)?;
        let runnable = typed.into_runnable()?;
        let nodes = runnable.model().nodes();
        let sizes = nodes
            .iter()
            .map(|node| OutputSizes::of(node).with_context(|| node.name.clone()));
        Ok(Self {
            sizes: sizes.collect::<TractResult<_>>()?,
            input_checks: nodes.iter().map(InputCheck::of).collect(),
            differences,
            output_count,
            runnable,
        })
    }

    pub(crate) fn model(&self) -> &TypedModel {
        self.runnable.model()
    }

    /// What is known of the outputs.
    pub(crate) fn outputs(&self) -> TractResult<Vec<TypedFact>> {
        let facts = (0..self.output_count).map(|index| self.model().output_fact(index).cloned());
        facts.collect()
    }

    #[cfg(test)]
    pub(crate) fn sizes(&self) -> &[OutputSizes] {
        &self.sizes
    }

    /// An operator of tract that came out of the optimization and would fail on values that ONNX admits.
    pub(crate) fn unsound_node(&self) -> Option<&TypedNode> {
        self.model().nodes().iter().find(|node| node.op_is::<DynSlice>())
    }

    /// Runs the graph once, with what is known of sizes around it. Every call has a state of its own, so calls can be at the same
    /// time.
    pub(crate) fn run(&self, inputs: TVec<TValue>, symbols: &SymbolValues) -> TractResult<TVec<TValue>> {
        let mut state = SimpleState::new(&self.runnable)?;
        state.turn_state.resolved_symbols = symbols.clone();
        let mut differences = self.differences.all();
        let mut made = 0u64;
        let mut outputs = state.run_plan_with_eval(inputs, |context, state, node, inputs| {
            // Constants and inputs of the graph are there already: asking costs more than they do.
            if !node.inputs.is_empty() {
                cancelling::check()?;
                differences.check(context.symbols)?;
            }
            self.sizes[node.id].check(context.symbols)?;
            if let Some(check) = self.input_checks[node.id] {
                check.apply(&inputs)?;
            }
            let symbols = context.symbols;
            let outputs = tract_hir::tract_core::plan::eval(context, state, node, inputs)?;
            if !node.inputs.is_empty() {
                let before = made / PERIOD;
                made += outputs.iter().map(|value| size::of_value(value)).sum::<u64>();
                if made / PERIOD > before.max(1) {
                    size::admit_more()?;
                }
            }
            // Later nodes rely on what was found out when the plan was made: where a size is another one, they reach beyond it.
            for (output, value) in node.outputs.iter().zip(&outputs) {
                ensure!(
                    fits(&output.fact, value, symbols),
                    "{node} gave {:?} {:?}, expected {:?}",
                    value.datum_type(),
                    value.shape(),
                    output.fact
                );
            }
            TractResult::Ok(outputs)
        })?;
        outputs.truncate(self.output_count);
        Ok(outputs)
    }
}

/// Bytes of values after which the memory that is free is looked at, from the second time on: many that are not large fill it too.
const PERIOD: u64 = 128 << 20;

/// Whether a value is what the plan took it for, as far as that can be told.
fn fits(fact: &TypedFact, value: &TValue, symbols: &SymbolValues) -> bool {
    let has_size =
        |dim: &TDim, size: usize| size::value(dim, symbols).map_or(true, |dim| dim == size as i128);
    fact.datum_type == value.datum_type()
        && fact.rank() == value.rank()
        && match fact.shape.as_concrete() {
            Some(dims) => dims == value.shape(),
            None => fact
                .shape
                .iter()
                .zip(value.shape())
                .all(|(dim, &size)| has_size(dim, size)),
        }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tract_hir::internal::{DatumExt, IntoTValue, SymbolScope, Tensor, ToDim};

    use super::*;

    #[test]
    fn values_have_the_sizes_that_the_plan_took_them_for() {
        let scope = SymbolScope::default();
        let (height, unknown) = (scope.sym("h"), scope.sym("k"));
        let symbols = SymbolValues::default().with(&height, 4);
        let value = |size: usize| Tensor::zero::<f32>(&[2, size]).unwrap().into_tvalue();
        let fact = |dim: TDim| f32::fact([2.to_dim(), dim]);
        let smaller = fact(height.to_dim() - 1);
        assert!(fits(&smaller, &value(3), &symbols) && !fits(&smaller, &value(4), &symbols));
        let fixed = fact(3.to_dim());
        assert!(fits(&fixed, &value(3), &symbols) && !fits(&fixed, &value(2), &symbols));
        // Not known before the operator ran.
        assert!(fits(&fact(unknown.to_dim()), &value(9), &symbols));
        assert!(!fits(&i64::fact([2, 3]), &value(3), &symbols));
    }
}
