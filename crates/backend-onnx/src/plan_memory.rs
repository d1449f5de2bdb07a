//! How much memory a plan holds by itself: constants that it does not share with the file, and weights in the order of products,
//! some of which tract keeps in its operators.

use std::{collections::HashSet, sync::Arc};

use tract_hir::{
    internal::TypedModel,
    ops::konst::Const,
    prelude::{InferenceModel, Tensor},
    tract_core::{
        ops::matmul::optimized::{MatMulOperand, OptMatMul, ProtoFusedSpec},
        tract_linalg::mmm::{EagerPackedInput, MMMInputValue, PackedMatrixStorage},
    },
};

use crate::ops;

/// What a node takes beside constants, about.
const NODE: u64 = 4 << 10;

/// The addresses of what was counted, or is not to be.
pub(crate) type Seen = HashSet<usize>;

/// The constants of a graph, which all plans that are made of it share.
pub(crate) fn constants(graph: &InferenceModel) -> Seen {
    let nodes = graph.nodes().iter();
    let constants = nodes.filter_map(|node| node.op_as::<Const>());
    constants
        .map(|constant| Arc::as_ptr(constant.val()) as usize)
        .collect()
}

/// About how many bytes a plan holds beside what was seen before.
pub(crate) fn bytes(model: &TypedModel, mut seen: Seen) -> u64 {
    let mut bytes = 0;
    add(model, &mut seen, &mut bytes);
    bytes
}

fn add(model: &TypedModel, seen: &mut Seen, bytes: &mut u64) {
    for node in model.nodes() {
        *bytes += NODE;
        let outputs = node.outputs.iter();
        for constant in outputs.filter_map(|output| output.fact.konst.as_ref()) {
            add_constant(constant, seen, bytes);
        }
        if let Some((address, kept)) = ops::kept(node)
            && seen.insert(address)
        {
            *bytes += kept;
        }
        if let Some(product) = node.op_as::<OptMatMul>() {
            for part in &product.micro_ops {
                if let ProtoFusedSpec::AddMatMul { a, b, .. } = part {
                    for factor in [a, b] {
                        if let MatMulOperand::Const(packed) = factor {
                            add_packed(&**packed, seen, bytes);
                        }
                    }
                }
            }
        }
        for graph in ops::inner_graphs(node) {
            add(graph, seen, bytes);
        }
    }
}

fn add_constant(constant: &Arc<Tensor>, seen: &mut Seen, bytes: &mut u64) {
    if !seen.insert(Arc::as_ptr(constant) as usize) {
        return;
    }
    match constant.try_storage_as::<PackedMatrixStorage>() {
        Ok(packed) => packed
            .values()
            .iter()
            .for_each(|packed| add_packed(&**packed, seen, bytes)),
        Err(_) => *bytes += (constant.len() * constant.datum_type().size_of()) as u64,
    }
}

fn add_packed(packed: &dyn MMMInputValue, seen: &mut Seen, bytes: &mut u64) {
    // A constant and the operator that it was put into have the same bytes.
    match packed.downcast_ref::<EagerPackedInput>() {
        Some(packed) => {
            if seen.insert(Arc::as_ptr(&packed.packed) as usize) {
                *bytes += packed.packed.len() as u64;
            }
        }
        None => *bytes += packed.exotic_fact().mem_size().to_i64().unwrap_or(0).max(0) as u64,
    }
}
