//! Which values the sizes of an operator's outputs follow from.

/// The inputs whose values the sizes of outputs follow from.
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
