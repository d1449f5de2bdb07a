//! Large constants that only get another type or a scale, such as tables of words in 8 bits, are made once for all plans of a
//! model. tract folds nothing that takes more memory than what it is made of, and would make them in each run.

use std::{collections::HashSet, sync::Arc};

use tract_hir::{
    infer::InferenceFact,
    internal::{IntoArcTensor, IntoTValue},
    prelude::{InferenceModel, Tensor, TractResult},
    tract_core::ops::konst::Const,
};

/// Constants of fewer elements are left to tract.
const LEAST: usize = 1 << 16;

/// Bytes that all constants computed at load may take together.
const MAX_BYTES: usize = 1 << 30;

/// Makes them, where `operator` tells what a node's operator is called in the file. What cannot be made is left.
pub(crate) fn fold(graph: &mut InferenceModel, operator: impl Fn(&str) -> Option<String>) -> TractResult<()> {
    let mut made = HashSet::new();
    let mut bytes = 0;
    for id in graph.eval_order()? {
        let node = graph.node(id);
        let operator = operator(&node.name);
        let is_wanted = match operator.as_deref() {
            Some("Cast" | "DequantizeLinear") => true,
            Some("Mul") => node.inputs.iter().any(|input| made.contains(&input.node)),
            _ => false,
        };
        let Some(inputs) = constants(graph, id).filter(|_| is_wanted) else {
            continue;
        };
        let Some(first) = inputs
            .iter()
            .max_by_key(|input| input.len())
            .filter(|input| input.len() >= LEAST)
        else {
            continue;
        };
        let count = match operator.as_deref() {
            // Two small ones can make a large one.
            Some("Mul") => broadcast_len(&inputs),
            _ => first.len(),
        };
        let size = count.saturating_mul(size_of::<f64>());
        if size > MAX_BYTES - bytes {
            continue;
        }
        let inputs = inputs.iter().map(|input| input.clone().into_tvalue());
        let Ok(Some(values)) = node.op.eval_out_of_plan(inputs.collect()) else {
            continue;
        };
        let Some(value) = values.into_iter().next() else {
            continue;
        };
        bytes += size;
        made.insert(id);
        replace(graph, id, value.into_arc_tensor())?;
    }
    Ok(())
}

/// Elements of a product of these.
fn broadcast_len(inputs: &[Arc<Tensor>]) -> usize {
    let rank = inputs.iter().map(|input| input.rank()).max().unwrap_or(0);
    // Counted from the last dimension.
    let dim = |place: usize| {
        let dims = inputs
            .iter()
            .filter_map(|input| input.shape().iter().rev().nth(place));
        dims.copied().max().unwrap_or(1)
    };
    (0..rank).map(dim).fold(1, usize::saturating_mul)
}

/// The inputs of a node, if all of them are constants.
fn constants(graph: &InferenceModel, id: usize) -> Option<Vec<Arc<Tensor>>> {
    let node = graph.node(id);
    let inputs = node.inputs.iter();
    let constant = |input: usize| Some(graph.node(input).op_as::<Const>()?.val().clone());
    let constants: Option<Vec<_>> = inputs.map(|input| constant(input.node)).collect();
    constants.filter(|constants| !constants.is_empty() && node.outputs.len() == 1)
}

fn replace(graph: &mut InferenceModel, id: usize, value: Arc<Tensor>) -> TractResult<()> {
    let node = graph.node_mut(id);
    let inputs = std::mem::take(&mut node.inputs);
    node.outputs[0].fact = InferenceFact::try_from(value.clone())?;
    node.op = Box::new(Const::new(value)?);
    for input in inputs {
        let successors = &mut graph.nodes[input.node].outputs[input.slot].successors;
        successors.retain(|successor| successor.node != id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::Signature;

    use super::*;
    use crate::{lower, ops};

    fn table(rows: usize, columns: usize) -> Arc<Tensor> {
        Tensor::zero::<i8>(&[rows, columns]).unwrap().into_arc_tensor()
    }

    #[test]
    fn a_table_is_made_once() {
        let model = crate::made_up::fixture("words_in_bytes");
        let graph = model.graph.as_ref().unwrap();
        let signature = Signature::of(&model).unwrap();
        let lowered = lower::lower(graph, &signature.opsets).unwrap();
        let made = || ops::context().model(&lowered.graph).unwrap();
        let constants = |graph: &InferenceModel| {
            let nodes = graph.nodes().iter();
            nodes.filter(|node| node.op_is::<Const>()).count()
        };
        let operators = |node: &str| {
            let number: usize = node.rsplit_once(lower::NODE)?.1.split('~').next()?.parse().ok()?;
            Some(["Cast", "Mul", "Gather"].get(number)?.to_string())
        };
        let (before, mut after) = (made(), made());
        fold(&mut after, operators).unwrap();
        assert_eq!(constants(&after), constants(&before) + 2);
        assert!(after.check_edges().is_ok());
        assert_eq!(broadcast_len(&[table(1 << 17, 1), table(1, 1 << 17)]), 1 << 34);
        // A product of constants that were not made here is tract's business.
        let mut others = made();
        fold(&mut others, |node| operators(node).filter(|name| name != "Cast")).unwrap();
        assert_eq!(constants(&others), constants(&before));
    }
}
