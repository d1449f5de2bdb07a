//! Abstract values: dimensions, the row axis, and the contents of small integer tensors.

use std::rc::Rc;

use super::size::{Size, Symbols};

/// The reason why the rows may not be independent.
pub(super) type Reason = Rc<str>;

/// The abstract value of a tensor or a sequence in the graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Tensor(Value),
    /// A sequence of tensors with one common value; `None` if it is empty.
    Sequence(Option<Value>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    /// The dimensions; `None` if the rank is unknown.
    pub(super) dims: Option<Vec<Size>>,
    pub(super) origin: Origin,
    /// The elements of a small integer tensor in row-major order. An element that is `None` may depend on the
    /// row count.
    pub(super) content: Option<Rc<[Option<Size>]>>,
    pub(super) numbering: Numbering,
    /// The size of an outer axis that is merged into the row axis, such as the steps of a sequence.
    pub(super) outer: Option<Size>,
}

/// Whether the elements of a value depend on the position of their row in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The elements do not depend on the position.
    None,
    /// Each element is the index of its row.
    Index,
    /// The last axis holds tuples: the row index, and values that do not depend on the position.
    Tuples,
    /// The elements may depend on the position in an unknown way, so rules may only use the dimensions.
    Mixed,
}

/// How a value in a batch of requests relates to the values for each request alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The value is the same as for each request alone.
    Same,
    /// The value is computed from the row count only.
    Count,
    /// The value is the concatenation of the values of all requests along this axis, whose dimension is a
    /// multiple of the row count.
    Rows(usize),
}

/// The maximum element count of tensors whose contents are tracked: shapes, axes, pads.
pub(super) const MAX_CONTENT: usize = 64;

impl Value {
    /// Creates a value that is shared by all requests.
    pub(super) fn same(dims: Vec<Size>) -> Self {
        Self {
            dims: Some(dims),
            origin: Origin::Same,
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// Creates an unknown value that is shared by all requests.
    pub(super) fn same_of_any_rank() -> Self {
        Self {
            dims: None,
            origin: Origin::Same,
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// Creates a value whose rows lie along `axis`, a dimension that is a multiple of the row count.
    pub(super) fn rows(dims: Vec<Size>, axis: usize) -> Self {
        Self {
            dims: Some(dims),
            origin: Origin::Rows(axis),
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// Creates a value whose elements are all equal, so that only its dimensions matter. Returns `None` if
    /// several dimensions depend on the row count.
    pub(super) fn filled(dims: Vec<Size>) -> Option<Self> {
        let mut axes = dims
            .iter()
            .enumerate()
            .filter(|(_, dim)| dim.has_rows())
            .map(|(axis, _)| axis);
        match (axes.next(), axes.next()) {
            (None, _) => Some(Self::same(dims)),
            (Some(axis), None) => Some(Self::rows(dims, axis)),
            (Some(_), Some(_)) => None,
        }
    }

    /// Creates integers of rank 0 (`is_scalar`) or 1.
    pub(super) fn integers(content: Vec<Option<Size>>, is_scalar: bool) -> Self {
        let length = i64::try_from(content.len()).unwrap_or(i64::MAX);
        let dims = if is_scalar {
            vec![]
        } else {
            vec![Size::number(length)]
        };
        Self::integers_of(dims, content)
    }

    /// Creates integers of shape `dims`.
    pub(super) fn integers_of(dims: Vec<Size>, content: Vec<Option<Size>>) -> Self {
        let is_same = content
            .iter()
            .all(|size| size.as_ref().is_some_and(|size| !size.has_rows()));
        Self {
            dims: Some(dims),
            origin: if is_same { Origin::Same } else { Origin::Count },
            content: (content.len() <= MAX_CONTENT).then(|| content.into()),
            numbering: Numbering::None,
            outer: None,
        }
    }

    pub(super) fn rank(&self) -> Option<usize> {
        self.dims.as_ref().map(Vec::len)
    }

    pub(super) fn is_same(&self) -> bool {
        self.origin == Origin::Same && self.numbering == Numbering::None
    }

    pub(super) fn row_axis(&self) -> Option<usize> {
        match self.origin {
            Origin::Rows(axis) => Some(axis),
            Origin::Same | Origin::Count => None,
        }
    }

    /// Returns the elements. A shared tensor of rank 0 or 1 with unknown contents gets a symbol per element.
    pub(super) fn elements(&self, symbols: &mut Symbols) -> Option<Vec<Option<Size>>> {
        if let Some(content) = &self.content {
            return Some(content.to_vec());
        }
        let count = match self.dims.as_deref()? {
            [] => 1,
            [length] => usize::try_from(length.as_number()?).ok()?,
            _ => return None,
        };
        let is_followed = self.is_same() && count <= MAX_CONTENT;
        is_followed.then(|| (0..count).map(|_| Some(symbols.real())).collect())
    }

    /// Returns the elements if all are literal numbers.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        let number = |size: &Option<Size>| size.as_ref().and_then(Size::as_number);
        self.content.as_ref()?.iter().map(number).collect()
    }
}
