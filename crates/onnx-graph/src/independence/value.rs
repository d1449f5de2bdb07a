//! Abstract values: dimensions, the axis of the rows, and the contents of small integer tensors.

use std::rc::Rc;

use super::size::{Size, Symbols};

/// Why rows are not known to be independent.
pub(super) type Reason = Rc<str>;

/// What a name of the graph stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Tensor(Value),
    /// Tensors that are alike; `None` for a sequence without elements.
    Sequence(Option<Value>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    /// `None` if even their number is unknown.
    pub(super) dims: Option<Vec<Size>>,
    pub(super) origin: Origin,
    /// The elements of a small integer tensor in row-major order. `None` may depend on the number of rows.
    pub(super) content: Option<Rc<[Option<Size>]>>,
    pub(super) numbering: Numbering,
    /// The size of an outer axis that was merged into the axis of the rows, such as the steps of a sequence.
    pub(super) outer: Option<Size>,
}

/// Whether the elements of a value with rows depend on where in the batch a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// They do not.
    None,
    /// Each element is the index of its row.
    Index,
    /// The last axis holds tuples: the index of the row, and what does not depend on it.
    Tuples,
    /// They may, in any way: nothing but the dimensions can be used.
    Mixed,
}

/// What a value is computed from. Let requests be joined: then a value is
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// the same as for each request alone;
    Same,
    /// computed from the number of rows, and from nothing else of them;
    Count,
    /// those of each request, concatenated along this axis; its dimension is a multiple of the number of rows.
    Rows(usize),
}

/// Contents that are followed: shapes, axes, pads.
pub(super) const MAX_CONTENT: usize = 64;

impl Value {
    /// A value that is the same for all requests.
    pub(super) fn same(dims: Vec<Size>) -> Self {
        Self {
            dims: Some(dims),
            origin: Origin::Same,
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// A value of which nothing is known but that it is the same for all requests.
    pub(super) fn same_of_any_rank() -> Self {
        Self {
            dims: None,
            origin: Origin::Same,
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// A value whose rows lie along `axis`, where `dims` has a multiple of the number of rows.
    pub(super) fn rows(dims: Vec<Size>, axis: usize) -> Self {
        Self {
            dims: Some(dims),
            origin: Origin::Rows(axis),
            content: None,
            numbering: Numbering::None,
            outer: None,
        }
    }

    /// A value whose elements are all equal, so that only its dimensions matter. `None` if several of these
    /// depend on the number of rows.
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

    /// Integers of rank 0 (`is_scalar`) or 1.
    pub(super) fn integers(content: Vec<Option<Size>>, is_scalar: bool) -> Self {
        let length = i64::try_from(content.len()).unwrap_or(i64::MAX);
        let dims = if is_scalar {
            vec![]
        } else {
            vec![Size::number(length)]
        };
        Self::integers_of(dims, content)
    }

    /// As many integers as `dims` take.
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

    /// The elements; those of a tensor of rank 0 or 1 that is the same for all requests get a symbol each.
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

    /// The elements, if each is a number that the file tells.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        let number = |size: &Option<Size>| size.as_ref().and_then(Size::as_number);
        self.content.as_ref()?.iter().map(number).collect()
    }
}
