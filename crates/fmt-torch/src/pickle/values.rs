//! The values of an interpreted pickle.

use std::collections::BTreeSet;

use crate::globals::{Elements, Global, UnreadKind};

/// A value: small values are inline, all others refer to a node by number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Node(u32),
}

/// A composite or named value.
#[derive(Debug)]
pub(crate) enum Node {
    Text(Box<str>),
    Tuple(Box<[Value]>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// An object of an unknown class, represented by its attributes.
    Object(Vec<(Value, Value)>),
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Box<StoredTensor>),
    Unread(Box<UnreadTensor>),
    /// An ignored object, such as bytes.
    Other,
}

/// Bytes that tensors are views of.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) key: Box<str>,
    pub(crate) elements: Elements,
    /// Number of elements.
    pub(crate) count: u64,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) storage: Storage,
    pub(crate) elements: Elements,
    /// The offset in the storage, in elements, like the strides.
    pub(crate) offset: u64,
    pub(crate) dims: Vec<u64>,
    pub(crate) strides: Vec<u64>,
    /// A lazy operation on the elements, which is not applied here.
    pub(crate) pending: Option<LazyOperation>,
}

/// A tensor or array that is listed but not read.
#[derive(Debug)]
pub(crate) struct UnreadTensor {
    pub(crate) kind: UnreadKind,
    /// The dimensions, if known.
    pub(crate) dims: Option<Vec<u64>>,
    /// The attributes of the object, which may include the tensors that it consists of.
    pub(crate) attributes: Vec<(Value, Value)>,
}

/// A lazy operation that PyTorch applies when elements are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LazyOperation {
    Conj,
    Neg,
}

/// The result of interpreting a pickle.
#[derive(Debug)]
pub(crate) struct PickleResult {
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: Value,
    /// Unknown globals that were ignored.
    pub(crate) unknown: BTreeSet<String>,
    /// Unknown tensor subclasses. Their tensors are read like plain tensors.
    pub(crate) tensor_classes: BTreeSet<String>,
}

impl PickleResult {
    pub(crate) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(number) => self.nodes.get(number as usize),
            _ => None,
        }
    }

    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match self.node(value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }
}
