//! Element by element.

use tract_hir::{
    internal::*,
    ops::{activations, binary::Nary, identity::Identity, logic, math},
};

use super::Built;
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
        "BitwiseNot" => logic::bitnot().into_hir(),
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
        "Sign" => math::sign().into_hir(),
        "Sin" => math::sin().into_hir(),
        "Sinh" => math::sinh().into_hir(),
        "Sqrt" => math::sqrt().into_hir(),
        "Tan" => math::tan().into_hir(),
        other => bail!("{other} is not a function of tract's"),
    })
}

/// A function of two numbers.
pub(in crate::ops) fn pair(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(match node.op_type.as_str() {
        "Add" => math::Add.into_hir(),
        "And" => logic::And.into_hir(),
        "BitwiseAnd" => logic::BitAnd.into_hir(),
        "BitwiseOr" => logic::BitOr.into_hir(),
        "BitwiseXor" => logic::BitXor.into_hir(),
        "Div" => math::Div.into_hir(),
        "Equal" => logic::CompEq.into_hir(),
        "Greater" => logic::CompGT.into_hir(),
        "GreaterOrEqual" => logic::CompGTE.into_hir(),
        "Less" => logic::CompLT.into_hir(),
        "LessOrEqual" => logic::CompLTE.into_hir(),
        "Mul" => math::Mul.into_hir(),
        "Or" => logic::Or.into_hir(),
        "Sub" => math::Sub.into_hir(),
        "Xor" => logic::Xor.into_hir(),
        other => bail!("{other} is not a function of tract's"),
    })
}

/// A function of any number of numbers.
pub(in crate::ops) fn list(_: &BuildContext, node: &OnnxNode) -> Built {
    Ok(Box::new(match node.op_type.as_str() {
        "Max" => Nary(Box::new(math::Max), false),
        "Min" => Nary(Box::new(math::Min), false),
        "Sum" => Nary(Box::new(math::Add), false),
        other => bail!("{other} is not a function of tract's"),
    }))
}

/// `Where`.
pub(in crate::ops) fn condition(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(logic::Iff))
}

/// `Identity`.
pub(in crate::ops) fn identity(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(Box::new(Identity))
}
