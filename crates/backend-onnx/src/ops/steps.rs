//! What is asked of operators when a graph is cut into stages.

use tract_hir::internal::*;

use crate::{building::BuildContext, faults::Limit, lowered::OnnxNode};

/// Whether an operator is never a part of a plan.
pub(crate) fn is_stepwise(op_type: &str) -> bool {
    STEPWISE.binary_search(&op_type).is_ok()
}

const STEPWISE: &[&str] = &[
    "ConcatFromSequence",
    "Loop",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SplitToSequence",
];

/// Stands in the table for what is run outside of plans.
pub(crate) fn stepwise(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    bail!(Limit(format!("{} is not part of a plan", node.op_type)))
}

/// The inputs whose values the sizes of outputs follow from, or that tract needs as constants.
pub(crate) fn shaping_inputs(op_type: &str) -> std::ops::Range<usize> {
    match op_type {
        "ConstantOfShape" | "Range" | "BlackmanWindow" | "HammingWindow" | "HannWindow"
        | "MelWeightMatrix" => 0..8,
        "Expand" | "QLinearConv" | "QLinearMatMul" | "Reshape" | "Slice" | "Split" | "Squeeze" | "Tile"
        | "TopK" | "Unsqueeze" | "Upsample" | "Resize" | "Pad" | "CumSum" | "Trilu" | "STFT" | "DFT"
        | "Dropout" | "CenterCropPad" => 1..8,
        "OneHot" | "AffineGrid" => 1..2,
        "MaxUnpool" => 2..3,
        "NonMaxSuppression" | "ConvInteger" | "MatMulInteger" => 2..8,
        name if name.starts_with("Reduce") => 1..2,
        _ => 0..0,
    }
}

/// Whether the sizes of outputs depend on values of any input.
pub(crate) fn gives_unknown_sizes(op_type: &str) -> bool {
    matches!(
        op_type,
        "Compress"
            | "NonMaxSuppression"
            | "NonZero"
            | "StringNormalizer"
            | "StringSplit"
            | "Unique"
            | "com.microsoft/Tokenizer"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order() {
        assert!(STEPWISE.is_sorted());
    }
}
