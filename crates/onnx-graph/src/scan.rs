//! Computes how much memory a file would take when decoded, before decoding it.
//!
//! Two bytes of a file can encode an empty node of hundreds of bytes, so a small file could exhaust memory.
//! The scan walks over the file's fields without storing anything, and adds up what decoding would allocate.

use crate::{
    Error,
    proto::{self, DAMAGED},
};

/// Refuses a file that is truncated or too deeply nested, or that would decode to more than [`MAX_DECODED`]
/// bytes.
pub(crate) fn check(content: &[u8]) -> Result<(), Error> {
    let mut scan = Scan { budget: MAX_DECODED };
    scan.message(content, Kind::Model, 0)
}

/// Maximum size in bytes of a decoded model, not counting the contents of tensors.
const MAX_DECODED: usize = 1 << 30;

/// Maximum nesting of messages; a subgraph adds 3. The decoder's own limit is 100.
const MAX_DEPTH: usize = 90;

/// The message types that the scan distinguishes.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    ValueInfo,
    Type,
    Shape,
    Function,
    /// A message without repeated fields, which takes this many bytes when decoded.
    Leaf(usize),
}

/// Content of a length-delimited field.
enum Field {
    Message(Kind),
    /// A repeated string or byte string.
    Text,
    /// Packed numbers, each of which takes this many bytes when decoded.
    Packed(usize),
    Skipped,
}

impl Kind {
    fn size(self) -> usize {
        match self {
            Self::Model => size_of::<proto::ModelProto>(),
            Self::Graph => size_of::<proto::GraphProto>(),
            Self::Node => size_of::<proto::NodeProto>(),
            Self::Attribute => size_of::<proto::AttributeProto>(),
            Self::Tensor => size_of::<proto::TensorProto>(),
            Self::Sparse => size_of::<proto::SparseTensorProto>(),
            Self::ValueInfo => size_of::<proto::ValueInfoProto>(),
            Self::Type => size_of::<proto::TypeProto>(),
            Self::Shape => size_of::<proto::TensorShapeProto>(),
            Self::Function => size_of::<proto::FunctionProto>(),
            Self::Leaf(size) => size,
        }
    }

    fn field(self, number: u64) -> Field {
        use Field::{Message, Packed, Text};
        let opset = Self::Leaf(size_of::<proto::OperatorSetIdProto>());
        let entry = Self::Leaf(size_of::<proto::StringStringEntryProto>());
        let dimension = Self::Leaf(size_of::<proto::tensor_shape_proto::Dimension>());
        match (self, number) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Message(Self::Graph),
            (Self::Model, 8) | (Self::Function, 9) => Message(opset),
            (Self::Model, 25) => Message(Self::Function),
            (Self::Graph, 1) | (Self::Function, 7) => Message(Self::Node),
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::Sparse, 1 | 2) => Message(Self::Tensor),
            (Self::Graph, 11 | 12) => Message(Self::ValueInfo),
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Message(Self::Sparse),
            (Self::Node, 5) | (Self::Function, 11) => Message(Self::Attribute),
            (Self::Tensor, 13) => Message(entry),
            // The alternatives of a type. A nested type and a tensor's element type have the same field
            // number, but the element type is a varint.
            (Self::ValueInfo, 2) | (Self::Type, 1 | 4 | 5 | 7 | 8 | 9) => Message(Self::Type),
            (Self::Type, 2) => Message(Self::Shape),
            (Self::Shape, 1) => Message(dimension),
            (Self::Node, 1 | 2) | (Self::Attribute, 9) | (Self::Tensor, 6) | (Self::Function, 4..=6) => Text,
            (Self::Attribute, 8) | (Self::Sparse, 3) | (Self::Tensor, 1 | 7 | 11) => Packed(8),
            (Self::Tensor, 5) => Packed(4),
            _ => Field::Skipped,
        }
    }
}

struct Scan {
    budget: usize,
}

impl Scan {
    fn message(&mut self, bytes: &[u8], kind: Kind, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::invalid(
                "the model's graphs are nested too deep inside one another",
            ));
        }
        self.take(kind.size())?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            match key & 7 {
                0 => drop(varint(&mut rest)?),
                1 => drop(split(&mut rest, 8)?),
                5 => drop(split(&mut rest, 4)?),
                2 => {
                    let length = varint(&mut rest)?;
                    let value = split(&mut rest, usize::try_from(length).map_err(|_| damaged())?)?;
                    match kind.field(key >> 3) {
                        Field::Message(kind) => self.message(value, kind, depth + 1)?,
                        Field::Text => self.take(size_of::<bytes::Bytes>() + value.len())?,
                        // A packed number takes at least one byte of the file.
                        Field::Packed(size) => self.take(value.len().saturating_mul(size))?,
                        Field::Skipped => {}
                    }
                }
                _ => return Err(damaged()),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            Error::invalid(format!(
                "the model's structure would take more than {} MiB of memory",
                MAX_DECODED >> 20
            ))
        })?;
        Ok(())
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Error> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or_else(damaged)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(damaged())
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (value, after) = rest.split_at_checked(length).ok_or_else(damaged)?;
    *rest = after;
    Ok(value)
}

fn damaged() -> Error {
    Error::invalid(DAMAGED)
}
