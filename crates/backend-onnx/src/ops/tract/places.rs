//! Elements picked, put elsewhere, repeated.

use tract_hir::{internal::*, ops::array, tract_core::ops::array::Topk};

use super::Built;
use crate::{
    building::BuildContext,
    dtype,
    faults::Refusal,
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        wiring::{Wiring, fact, wired},
    },
};

/// `Gather`, `GatherElements` or `GatherND`.
pub(in crate::ops) fn gather(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let axis = attributes.int("axis", 0);
    Ok(match node.op_type.as_str() {
        "Gather" => expand(array::Gather::new(axis)),
        "GatherElements" => expand(array::GatherElements::new(axis)),
        _ => {
            let batch_dims = usize::try_from(attributes.int("batch_dims", 0));
            let batch_dims = batch_dims.map_err(|_| Refusal("has negative batch_dims".to_owned()))?;
            Box::new(array::GatherNd::new(batch_dims))
        }
    })
}

/// `ScatterElements`, which was `Scatter`, or `ScatterND`.
pub(in crate::ops) fn scatter(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let reduction = array::ScatterReduction::parse(attributes.text("reduction", "none"))?;
    Ok(match node.op_type.as_str() {
        "ScatterND" => expand(array::ScatterNd::new(reduction)),
        _ => expand(array::ScatterElements::new(attributes.int("axis", 0), reduction)),
    })
}

/// `Expand`.
pub(in crate::ops) fn expand_to(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(array::MultiBroadcastTo))
}

/// `Tile`.
pub(in crate::ops) fn tile(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(array::Tile))
}

/// `Reshape`.
pub(in crate::ops) fn reshape(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(expand(array::Reshape::new(
        Attributes(node).int("allowzero", 0) != 0,
    )))
}

/// `EyeLike`.
pub(in crate::ops) fn eye_like(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let datum_type = match attributes.has("dtype") {
        false => None,
        true => {
            let code = i32::try_from(attributes.int("dtype", 0))?;
            let datum_type = dtype::from_onnx(code).and_then(dtype::to_tract);
            Some(datum_type.ok_or_else(|| Refusal("gives a type that is not supported".to_owned()))?)
        }
    };
    Ok(Box::new(array::EyeLike::new(
        datum_type,
        isize::try_from(attributes.int("k", 0))?,
    )))
}

/// `TopK`.
pub(in crate::ops) fn top_k(context: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    Ok(wired(TopK {
        axis: attributes.int("axis", -1),
        largest: attributes.int("largest", 1) != 0,
        count: context.symbols.new_with_prefix("k").to_dim(),
    }))
}

#[derive(Debug)]
struct TopK {
    axis: i64,
    largest: bool,
    /// What the number of elements is called while it is unknown.
    count: TDim,
}

impl Wiring for TopK {
    fn name(&self) -> &'static str {
        "TopK"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [values, count] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let (rank, counts) = (fact(model, *values)?.rank(), fact(model, *count)?.rank());
        if counts != 1 {
            bail!(Refusal(format!("has a count of {counts} dimensions, expected 1")));
        }
        let axis = if self.axis < 0 {
            self.axis + rank as i64
        } else {
            self.axis
        };
        let axis = usize::try_from(axis).ok().filter(|&axis| axis < rank);
        let op = Topk {
            axis: axis.ok_or_else(|| Refusal(format!("has the axis {} of {rank} dimensions", self.axis)))?,
            largest: self.largest,
            fallback_k: self.count.clone(),
        };
        model.wire_node(prefix, op, inputs)
    }
}
