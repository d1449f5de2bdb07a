//! Computes how much memory decoded messages take: two bytes of a file can decode to hundreds. The contents
//! of tensors are not counted, since they are shared, not copied.

use prost::{Message, bytes::Bytes};

use crate::proto::{AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto};

/// A message with an upper bound on its memory: a copy takes at most `held` bytes.
pub(super) trait DecodedSize {
    fn held(&self) -> usize;
}

impl<T: DecodedSize> DecodedSize for [T] {
    fn held(&self) -> usize {
        let each = self.iter().map(DecodedSize::held);
        each.fold(0, usize::saturating_add)
    }
}

impl<T: DecodedSize> DecodedSize for Option<T> {
    fn held(&self) -> usize {
        self.as_ref().map_or(0, DecodedSize::held)
    }
}

impl DecodedSize for String {
    fn held(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

impl DecodedSize for Bytes {
    fn held(&self) -> usize {
        size_of::<Self>()
    }
}

impl DecodedSize for NodeProto {
    fn held(&self) -> usize {
        let names = self.name.len() + self.op_type.len() + self.domain.len() + self.overload.len();
        let values = self.input.held() + self.output.held();
        size_of::<Self>() + names + values + self.attribute.held()
    }
}

impl DecodedSize for AttributeProto {
    fn held(&self) -> usize {
        let names = self.name.len() + self.ref_attr_name.len();
        let numbers = size_of_val(&*self.floats) + size_of_val(&*self.ints);
        let tensors = self.t.held() + self.tensors.held();
        let sparse = self.sparse_tensor.held() + self.sparse_tensors.held();
        let graphs = self.g.held() + self.graphs.held();
        size_of::<Self>() + names + numbers + self.strings.held() + tensors + sparse + graphs
    }
}

impl DecodedSize for TensorProto {
    fn held(&self) -> usize {
        let numbers = [
            size_of_val(&*self.dims),
            size_of_val(&*self.float_data),
            size_of_val(&*self.double_data),
            size_of_val(&*self.int32_data),
            size_of_val(&*self.int64_data),
            size_of_val(&*self.uint64_data),
        ];
        let files = self
            .external_data
            .iter()
            .map(|entry| size_of_val(entry) + entry.encoded_len());
        let lists = numbers.into_iter().chain(files).sum::<usize>();
        size_of::<Self>() + self.name.len() + self.string_data.held() + lists
    }
}

impl DecodedSize for SparseTensorProto {
    fn held(&self) -> usize {
        size_of::<Self>() + self.values.held() + self.indices.held() + size_of_val(&*self.dims)
    }
}

impl DecodedSize for ValueInfoProto {
    fn held(&self) -> usize {
        // A dimension, or a nested type, takes as little as two bytes in the file.
        size_of::<Self>() + self.encoded_len().saturating_mul(32)
    }
}

impl DecodedSize for GraphProto {
    fn held(&self) -> usize {
        let constants = self.initializer.held() + self.sparse_initializer.held();
        let ports = self.input.held() + self.output.held();
        size_of::<Self>() + self.name.len() + self.node.held() + constants + ports
    }
}
