//! Element by element.

use tract_hir::{
    internal::*,
    ops::{activations, binary::InferenceBinOp, identity::Identity, logic, math},
    tract_core::ops::binary::BinMiniOp,
};

use super::{
    Built,
    rewired::Rewired,
    sizes::{Alike, List, Quotient},
    texts::OfTexts,
};
use crate::{building::BuildContext, lowered::OnnxNode, ops::attributes::Attributes};

/// A function of one number.
pub(in crate::ops) fn function(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    Ok(match node.op_type.as_str() {
        "Abs" => math::abs().into_hir(),
        "Acos" => math::acos().into_hir(),
        "Asin" => math::asin().into_hir(),
        "Atan" => math::atan().into_hir(),
        "Atanh" => math::atanh().into_hir(),
        "Ceil" => math::ceil().into_hir(),
        "Cos" => math::cos().into_hir(),
        "Cosh" => math::cosh().into_hir(),
        "Floor" => math::floor().into_hir(),
        "IsInf" => math::is_inf(
            attributes.int("detect_positive", 1) != 0,
            attributes.int("detect_negative", 1) != 0,
        )
        .into_hir(),
        "IsNaN" => math::is_nan().into_hir(),
        "Log" => math::ln().into_hir(),
        "Neg" => math::neg().into_hir(),
        "Not" => logic::not().into_hir(),
        "Reciprocal" => math::recip().into_hir(),
        // Of whole numbers.
        "Relu" => expand(activations::Clip::new(Some(0.0), None)),
        "Sin" => math::sin().into_hir(),
        "Sinh" => math::sinh().into_hir(),
        "Sqrt" => math::sqrt().into_hir(),
        "Tan" => math::tan().into_hir(),
        other => bail!("{other} is not a function of tract's"),
    })
}

/// A function of two numbers.
pub(in crate::ops) fn pair(_: &BuildContext, node: &OnnxNode) -> Built {
    if node.op_type == "Div" {
        return Ok(expand(Rewired(InferenceBinOp(Box::new(math::Div)), Quotient)));
    }
    let function: Box<dyn BinMiniOp> = match node.op_type.as_str() {
        "Add" => Box::new(math::Add),
        "And" => Box::new(logic::And),
        "Equal" => Box::new(logic::CompEq),
        "Greater" => Box::new(logic::CompGT),
        "GreaterOrEqual" => Box::new(logic::CompGTE),
        "Less" => Box::new(logic::CompLT),
        "LessOrEqual" => Box::new(logic::CompLTE),
        "Mul" => Box::new(math::Mul),
        "Or" => Box::new(logic::Or),
        "Sub" => Box::new(math::Sub),
        "Xor" => Box::new(logic::Xor),
        other => bail!("{other} is not a function of tract's"),
    };
    Ok(expand(Rewired(InferenceBinOp(function), Alike)))
}

/// A function of any number of numbers.
pub(in crate::ops) fn list(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(expand(List(match node.op_type.as_str() {
        "Max" => Box::new(math::Max),
        "Min" => Box::new(math::Min),
        "Sum" => Box::new(math::Add),
        other => bail!("{other} is not a function of tract's"),
    })))
}

/// `Where`.
pub(in crate::ops) fn condition(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Rewired(Rewired(logic::Iff, Alike), OfTexts::Where)))
}

/// `Identity`.
pub(in crate::ops) fn identity(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(Box::new(Identity))
}
