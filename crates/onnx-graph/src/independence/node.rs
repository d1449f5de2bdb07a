//! The node that a rule analyzes: abstract values of its inputs, its attributes, and errors that name it.

use tensor_core::QuotedName;

use super::{
    size::{Size, Symbols},
    value::{Item, Numbering, Origin, Reason, Value},
};
use crate::proto::{AttributeProto, GraphProto, NodeProto};

/// The result of a rule: the outputs of the node, or the reason why their rows are not independent.
pub(super) type RuleResult = Result<Vec<Item>, Reason>;

pub(super) struct Node<'n> {
    pub(super) proto: &'n NodeProto,
    /// The version of the operator set that defines the operator.
    pub(super) opset: i64,
    pub(super) inputs: Vec<Option<Item>>,
    /// The maximum of the integer type in which the node computes.
    pub(super) width: u128,
    pub(super) symbols: &'n mut Symbols,
}

/// Lets rules analyze the subgraphs of their node.
pub(super) trait Follow {
    /// Returns the outputs of `graph` for the inputs `arguments`.
    fn graph(&mut self, graph: &GraphProto, arguments: Vec<Item>, symbols: &mut Symbols) -> RuleResult;
}

impl<'n> Node<'n> {
    /// Returns a reason that begins with the name of this node.
    pub(super) fn refusal(&self, what: impl std::fmt::Display) -> Reason {
        format!("{} {what}", label(self.proto)).into()
    }

    pub(super) fn refuse<T>(&self, what: impl std::fmt::Display) -> Result<T, Reason> {
        Err(self.refusal(what))
    }

    pub(super) fn input(&self, index: usize) -> Result<&Value, Reason> {
        match self.inputs.get(index) {
            Some(Some(Item::Tensor(value))) => Ok(value),
            Some(Some(Item::Sequence(_))) => self.refuse("takes a sequence"),
            _ => self.refuse(format_args!("lacks its input {index}")),
        }
    }

    /// Returns input `index`; `None` if the node omits it.
    pub(super) fn optional(&self, index: usize) -> Result<Option<&Value>, Reason> {
        match self.inputs.get(index) {
            Some(Some(_)) => self.input(index).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the abstract values of all inputs that are present.
    pub(super) fn values(&self) -> Result<Vec<&Value>, Reason> {
        (0..self.inputs.len())
            .filter_map(|index| self.optional(index).transpose())
            .collect()
    }

    /// Checks that all requests share the inputs starting at index `first`.
    pub(super) fn require_same(&self, first: usize) -> Result<(), Reason> {
        (first..self.inputs.len()).try_for_each(|index| self.require_same_input(index))
    }

    pub(super) fn require_same_input(&self, index: usize) -> Result<(), Reason> {
        match self.optional(index)? {
            Some(value) if !value.is_same() => self.refuse(format_args!(
                "has an input {} that is not the same for all requests",
                QuotedName(&self.proto.input[index])
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn dims(&self, index: usize) -> Result<Vec<Size>, Reason> {
        match &self.input(index)?.dims {
            Some(dims) => Ok(dims.clone()),
            None => self.refuse("has an input whose number of dimensions is not known"),
        }
    }

    /// Returns the elements of input `index`, such as a shape or axes.
    pub(super) fn elements(&mut self, index: usize) -> Result<Vec<Option<Size>>, Reason> {
        let value = self.input(index)?.clone();
        match value.elements(self.symbols) {
            Some(elements) => Ok(elements),
            None => self.refuse(format_args!(
                "has an input {} whose elements are not known",
                QuotedName(&self.proto.input[index])
            )),
        }
    }

    /// Returns the numbers of an input, or of the attribute that replaces it in operator sets before `until`.
    pub(super) fn numbers(
        &self,
        index: usize,
        attribute: &str,
        until: i64,
    ) -> Result<Option<Vec<i64>>, Reason> {
        if let Some(value) = self.optional(index)? {
            return match value.numbers() {
                Some(numbers) => Ok(Some(numbers)),
                None => self.refuse(format_args!(
                    "has an input {} whose elements are not constant",
                    QuotedName(&self.proto.input[index])
                )),
            };
        }
        match self.attribute(attribute) {
            Some(_) if self.opset >= until => self.refuse(format_args!(
                "has the attribute '{attribute}' of an old operator set"
            )),
            attribute => Ok(attribute.map(|attribute| attribute.ints.clone())),
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.proto
            .attribute
            .iter()
            .find(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub(super) fn ints(&self, name: &str) -> &[i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }

    pub(super) fn text(&self, name: &str, default: &str) -> String {
        let text = self.attribute(name).map(|attribute| &attribute.s);
        text.map_or(default.to_owned(), |text| {
            String::from_utf8_lossy(text).into_owned()
        })
    }

    pub(super) fn graph(&self, name: &str) -> Result<&'n GraphProto, Reason> {
        let proto: &'n NodeProto = self.proto;
        let attribute = proto.attribute.iter().find(|attribute| attribute.name == name);
        let graph = attribute.and_then(|attribute| attribute.g.as_ref());
        graph.ok_or_else(|| self.refusal(format_args!("lacks its graph '{name}'")))
    }

    pub(super) fn has_output(&self, index: usize) -> bool {
        self.proto.output.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Returns a non-negative axis of a tensor of rank `rank`; a negative `axis` counts from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize, Reason> {
        let length = i64::try_from(rank).unwrap_or(i64::MAX);
        let from_start = if axis < 0 {
            axis.checked_add(length)
        } else {
            Some(axis)
        };
        let index = from_start.and_then(|axis| usize::try_from(axis).ok());
        match index.filter(|index| *index < rank) {
            Some(index) => Ok(index),
            None => self.refuse(format_args!("has the axis {axis} of {rank} dimensions")),
        }
    }

    /// Returns an error if `axis` is the row axis of `value`.
    pub(super) fn keep_off(&self, value: &Value, axis: usize) -> Result<(), Reason> {
        match value.origin {
            Origin::Rows(rows) if rows == axis => self.refuse(format_args!("runs along axis {axis}")),
            Origin::Count => self.refuse_count(),
            _ => Ok(()),
        }
    }

    pub(super) fn refuse_count<T>(&self) -> Result<T, Reason> {
        self.refuse("computes with the number of rows")
    }
}

/// Returns `value` as the only output of the node.
pub(super) fn one(value: Value) -> RuleResult {
    Ok(vec![Item::Tensor(value)])
}

/// Returns a value of unknown contents with the dimensions `dims` and the origin of `like`.
pub(super) fn like(like: &Value, dims: Vec<Size>) -> Value {
    Value {
        dims: Some(dims),
        origin: like.origin,
        content: None,
        numbering: Numbering::None,
        outer: None,
    }
}

/// Returns the name of a node for error messages.
pub(super) fn label(node: &NodeProto) -> String {
    let output = node.output.iter().find(|output| !output.is_empty());
    let name = match output {
        _ if !node.name.is_empty() => node.name.as_str(),
        Some(output) => output,
        None => "",
    };
    format!(
        "{} {}",
        QuotedName(&node.op_type).to_string().trim_matches('\''),
        QuotedName(name)
    )
}
