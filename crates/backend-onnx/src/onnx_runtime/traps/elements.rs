//! The file's constants, and the integer types whose division can trap.

use onnx_graph::{
    Data, Payload,
    proto::{NodeProto, TensorProto, canonical_domain, tensor_proto::DataType},
};

/// Integer types whose division can trap. The division of shorter types cannot, since it is computed in 32
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Int32,
    Int64,
}

impl Element {
    pub(super) fn data_type(self) -> DataType {
        match self {
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
        }
    }
}

/// Returns the value of a `Constant` node, if it is a tensor or a list of integers.
pub(super) fn constant(node: &NodeProto) -> Option<TensorProto> {
    let [attribute] = &*node.attribute else {
        return None;
    };
    if node.op_type != "Constant" || !canonical_domain(&node.domain).is_empty() {
        return None;
    }
    let integers = |ints: &[i64], dims: Vec<i64>| TensorProto {
        dims,
        data_type: DataType::Int64 as i32,
        int64_data: ints.to_vec(),
        ..TensorProto::default()
    };
    match attribute.name.as_str() {
        "value" => attribute.t.clone(),
        "value_int" => Some(integers(&[attribute.i], vec![])),
        "value_ints" => Some(integers(&attribute.ints, vec![attribute.ints.len() as i64])),
        _ => None,
    }
}

/// Returns the elements of an INT32 or INT64 constant, or `None` for other types.
pub(super) fn integers(tensor: &TensorProto) -> Option<Vec<i64>> {
    let Data::Fixed(bytes) = Payload::read(tensor).ok()?.data else {
        return None;
    };
    match DataType::try_from(tensor.data_type).ok()? {
        DataType::Int64 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&bytes| i64::from_le_bytes(bytes))
                .collect(),
        ),
        DataType::Int32 => {
            let values = bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
            Some(values.map(i64::from).collect())
        }
        _ => None,
    }
}
