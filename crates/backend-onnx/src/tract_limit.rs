//! What tract cannot do and ONNX Runtime can: how a refusal says so.

use std::{error::Error, fmt};

use oip_types::ServiceError;

use crate::{proto::ModelProto, structure};

/// The cause of an error for which not the file is to blame but tract, or what is made of it here.
#[derive(Debug, Default)]
pub(crate) struct TractLimit(Option<Box<dyn Error + Send + Sync>>);

impl TractLimit {
    pub(crate) fn because(cause: Box<dyn Error + Send + Sync>) -> Self {
        Self(Some(cause))
    }
}

impl fmt::Display for TractLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tract is not used for this")
    }
}

impl Error for TractLimit {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            Some(cause) => Some(cause.as_ref()),
            None => None,
        }
    }
}

/// Adds to a refusal that ONNX Runtime can run the model, if tract's limits are the only reason. `how` says what to do.
pub(crate) fn with_way_out(error: ServiceError, model: &ModelProto, how: &str) -> ServiceError {
    let is_limit = error
        .source()
        .and_then(<dyn Error>::downcast_ref::<TractLimit>)
        .is_some();
    if !is_limit || structure::check(model).is_err() {
        return error;
    }
    ServiceError::invalid(format!("{}; ONNX Runtime can run this: {how}", error.message())).caused_by(error)
}

/// Whether ONNX Runtime has an operator that has no row in the table of [`ops`](crate::ops).
pub(crate) fn onnx_runtime_has(domain: &str, op_type: &str, opset: i64) -> bool {
    match domain {
        "" => opset <= NEWEST_OPSET && OPERATORS.binary_search(&op_type).is_ok(),
        "ai.onnx.ml" => ML_OPERATORS.binary_search(&op_type).is_ok(),
        // Its own; there are too many, and too many versions of them, to name them.
        "com.microsoft" => true,
        _ => false,
    }
}

/// Whether ONNX Runtime reads a version of an operator set that is too new for the table.
pub(crate) fn onnx_runtime_reads(domain: &str, opset: i64) -> bool {
    domain.is_empty() && (1..=NEWEST_OPSET).contains(&opset)
}

/// The newest version of ONNX's own operators that ONNX Runtime reads, as of its version 1.31.
const NEWEST_OPSET: i64 = 26;

/// ONNX's operators that ONNX Runtime computes and tract is not used for, in order.
const OPERATORS: &[&str] = &[
    "AffineGrid",
    "BitShift",
    "Col2Im",
    "DeformConv",
    "Det",
    "GlobalLpPool",
    "LpPool",
    "MaxRoiPool",
    "MaxUnpool",
    "Multinomial",
    "RegexFullMatch",
    "RoiAlign",
    "StringConcat",
    "StringSplit",
    "Unique",
];

/// The same of `ai.onnx.ml`.
const ML_OPERATORS: &[&str] = &[
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "TreeEnsemble",
    "ZipMap",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_in_order() {
        assert!(OPERATORS.is_sorted() && ML_OPERATORS.is_sorted());
        assert!(onnx_runtime_has("", "Unique", 17) && !onnx_runtime_has("", "Frobnicate", 17));
        assert!(
            onnx_runtime_has("com.microsoft", "FusedMatMul", 1) && !onnx_runtime_has("org.example", "X", 1)
        );
    }
}
