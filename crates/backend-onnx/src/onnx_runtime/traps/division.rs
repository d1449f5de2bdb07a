//! Rewrites integer divisions: the processor traps on the smallest integer divided by -1, and on division by
//! 0.

use onnx_graph::{
    proto::{NodeProto, tensor_proto::DataType},
    structure,
};

use super::{elements::Element, guard::Writer, scope::Scope};

/// How a division may fail.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Safe,
    Integers(Element),
    Unknown,
}

/// Classifies a division by its datatype and its divisor, if that is constant.
pub(super) fn kind(node: &NodeProto, scope: &Scope<'_>) -> Kind {
    let [_, divisor] = &*node.input else {
        return Kind::Safe;
    };
    if scope
        .constant(divisor)
        .is_some_and(|constant| constant.is_safe_divisor)
    {
        return Kind::Safe;
    }
    let mut names = node.input.iter().chain(&node.output);
    match names.find_map(|name| scope.element(name)).map(DataType::try_from) {
        None => Kind::Unknown,
        Some(Ok(DataType::Int32)) => Kind::Integers(Element::Int32),
        Some(Ok(DataType::Int64)) => Kind::Integers(Element::Int64),
        Some(_) => Kind::Safe,
    }
}

/// Writes `x / d` as `x / (d == -1 ? 1 : d) * (d == -1 ? -1 : 1)`, after a guard against 0; a remainder needs
/// no sign, since it is 0 for -1.
pub(super) fn rewrite(node: NodeProto, element: Element, writer: &mut Writer, nodes: &mut Vec<NodeProto>) {
    let [dividend, divisor] = &*node.input else {
        nodes.push(node);
        return;
    };
    let (dividend, divisor) = (dividend.clone(), divisor.clone());
    let [zero, one, minus] = [0, 1, -1].map(|value| writer.constant(value, element, &[], nodes));
    let is_zero = writer.op("Equal", &[&divisor, &zero], vec![], nodes);
    let reason = format!("an integer is divided by zero by {}", structure::label(&node));
    let mut zeros = writer.zeros_unless(&is_zero, reason, nodes);
    if element == Element::Int32 {
        zeros = writer.cast(&zeros, DataType::Int32, nodes);
    }
    let is_minus = writer.op("Equal", &[&divisor, &minus], vec![], nodes);
    let safe = writer.op("Where", &[&is_minus, &one, &divisor], vec![], nodes);
    let safe = writer.op("Add", &[&safe, &zeros], vec![], nodes);
    if node.op_type == "Mod" {
        nodes.push(NodeProto {
            input: vec![dividend, safe],
            ..node
        });
        return;
    }
    let sign = writer.op("Where", &[&is_minus, &minus, &one], vec![], nodes);
    let quotient = writer.op("Div", &[&dividend, &safe], vec![], nodes);
    nodes.push(NodeProto {
        op_type: "Mul".to_owned(),
        input: vec![quotient, sign],
        attribute: vec![],
        ..node
    });
}
