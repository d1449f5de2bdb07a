//! How large single values may become: a few bytes of a request can ask for a product of terabytes.

use std::collections::HashSet;

use oip_service::available_memory;
use oip_types::{ServiceError, TensorValue};
use tract_onnx::tract_hir::internal::*;

use crate::faults::{BadInput, Limit, NoRoom, Refusal, TooSmall};

/// Bytes of a value: an input, an output or what flows between two operators.
pub(crate) const MAX_BYTES: u64 = 4 << 30;

/// The same for an input without elements, as if each dimension of nothing were one: it costs its sender nothing, and what
/// operators make of its other dimensions takes memory and time.
const MAX_EMPTY_BYTES: u64 = 256 << 20;

/// Bytes from which on a value is checked against the memory that is free, which takes longer than a small run.
const LARGE: u64 = 256 << 20;

/// Refuses a value that the machine, or this process' share of it, has no memory for now.
///
/// # Errors
/// [`NoRoom`] with both sizes.
pub(crate) fn admit_now(bytes: u64) -> TractResult<()> {
    if bytes < LARGE {
        return Ok(());
    }
    match available_memory() {
        Some(free) if free < bytes => Err(NoRoom(format!(
            "the model needs {} MiB at once, and {} MiB of memory are free",
            bytes >> 20,
            free >> 20
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Refuses what is known, before the model runs, to be too large.
pub(crate) fn admit(datum_type: DatumType, dims: &[TDim]) -> TractResult<()> {
    let known = dims.iter().map(|dim| dim.to_i64().ok());
    match bytes(datum_type, known) {
        Some(bytes) if bytes > MAX_BYTES => Err(Refusal(format!(
            "gives {}, which is beyond the limit of {} GiB",
            gib(bytes),
            MAX_BYTES >> 30
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Parts of the expression of a free dimension: a symbol, a number, or an operation. tract compares expressions in ways that
/// take exponential time and memory; real models have 9 parts at most.
const MAX_PARTS: usize = 24;

/// Refuses a plan in which a size follows from free ones in too many steps.
pub(crate) fn admit_expressions(model: &TypedModel) -> TractResult<()> {
    let outputs = model.nodes().iter().flat_map(|node| &node.outputs);
    let mut dims = outputs.flat_map(|output| output.fact.shape.iter());
    match dims.find(|dim| parts(dim) > MAX_PARTS) {
        None => Ok(()),
        Some(_) => Err(Limit("a size follows from free ones in too many steps".to_owned()).into()),
    }
}

fn parts(dim: &TDim) -> usize {
    let all = |dims: &[TDim]| dims.iter().map(parts).sum::<usize>();
    1 + match dim {
        TDim::Val(_) | TDim::Sym(_) => 0,
        TDim::Add(dims) | TDim::Mul(dims) | TDim::Broadcast(dims) | TDim::Min(dims) | TDim::Max(dims) => {
            all(dims)
        }
        TDim::MulInt(_, dim) | TDim::Div(dim, _) => parts(dim),
        TDim::Ge(a, b) | TDim::Eq(a, b) => parts(a) + parts(b),
    }
}

/// Refuses a request's input before anything is made of it. A dimension of nothing hides how large the others are.
pub(crate) fn admit_input(value: &TensorValue) -> Result<(), ServiceError> {
    let element = value.datatype().dtype().map_or(1, |dtype| dtype.size() as u64);
    let sizes = value.shape().dims().iter().map(|&dim| dim.max(1));
    let bytes = sizes.fold(element, u64::saturating_mul);
    let limit = match value.shape().dims().contains(&0) {
        true => MAX_EMPTY_BYTES,
        false => MAX_BYTES,
    };
    if bytes <= limit {
        return Ok(());
    }
    let (shape, mib) = (value.shape(), limit >> 20);
    let size = match bytes {
        u64::MAX => "more bytes than can be counted".to_owned(),
        bytes => format!("{} MiB", bytes >> 20),
    };
    Err(ServiceError::invalid(format!(
        "dimensions {shape} stand for {size}, the limit is {mib} MiB"
    )))
}

/// How large the outputs of a node are, as far as it is looked at before each run.
#[derive(Debug, Default)]
pub(crate) struct OutputSizes {
    /// The outputs whose sizes depend on a request.
    free: Vec<(DatumType, TVec<TDim>)>,
    /// Bytes of all others together, but for constants.
    fixed: u64,
}

impl OutputSizes {
    /// Refuses a node whose outputs are too large whatever the request is.
    pub(crate) fn of(node: &TypedNode) -> TractResult<Self> {
        let mut sizes = Self::default();
        for output in &node.outputs {
            let fact = &output.fact;
            admit(fact.datum_type, &fact.shape)?;
            if !fact.shape.is_concrete() {
                sizes.free.push((fact.datum_type, fact.shape.to_tvec()));
            } else if fact.konst.is_none() {
                let dims = fact.shape.iter().map(|dim| dim.to_i64().ok());
                sizes.fixed += bytes(fact.datum_type, dims).unwrap_or(0);
            }
        }
        Ok(sizes)
    }

    /// Looks, before the node runs, whether its outputs would be too large for this request.
    ///
    /// # Errors
    /// [`BadInput`] with the size; as [`admit_now`].
    pub(crate) fn check(&self, symbols: &SymbolValues) -> TractResult<()> {
        let mut all = self.fixed;
        for (datum_type, dims) in &self.free {
            // What depends on values of other nodes is not known yet; operators that make such sizes have checks of their own.
            let sizes = dims.iter().map(|dim| dim.eval_to_i64(symbols).ok());
            let bytes = bytes(*datum_type, sizes).unwrap_or(0);
            if bytes > MAX_BYTES {
                let (size, limit) = (gib(bytes), MAX_BYTES >> 30);
                bail!(BadInput(format!(
                    "with these shapes a value between two operators takes {size}, which is beyond the limit of {limit} GiB"
                )));
            }
            all += bytes;
        }
        admit_now(all)
    }
}

/// The dimensions of a model's values that are below zero where inputs are too small for it, such as an image that is smaller
/// than a window.
///
/// tract multiplies two of them to a size that looks good, and its matrix products then read memory that is not theirs.
#[derive(Debug, Default)]
pub(crate) struct Differences(HashSet<TDim>);

impl Differences {
    /// Finds them; to be asked before the optimization, which multiplies them.
    ///
    /// # Errors
    /// [`TooSmall`] for one that is below zero whatever the request is.
    pub(crate) fn of(model: &TypedModel) -> TractResult<Self> {
        let mut found = HashSet::new();
        // Nodes that no output needs do not run.
        for id in model.eval_order()? {
            let node = model.node(id);
            for dim in node.outputs.iter().flat_map(|output| output.fact.shape.iter()) {
                match dim.to_i64() {
                    Ok(dim) if dim < 0 => {
                        return Err(TractError::from(TooSmall(dim)).context(node.name.clone()));
                    }
                    Err(_) if may_be_negative(dim) && !found.contains(dim) => {
                        found.insert(dim.clone());
                    }
                    _ => {}
                }
            }
        }
        Ok(Self(found))
    }

    /// All of them, to be compared with the sizes of a request.
    pub(crate) fn all(&self) -> Vec<&TDim> {
        self.0.iter().collect()
    }

    /// Looks whether one of these is below zero for this request, and leaves those that cannot be told yet: they follow from
    /// values that nodes are still to give.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub(crate) fn check(left: &mut Vec<&TDim>, symbols: &SymbolValues) -> TractResult<()> {
        let mut below_zero = None;
        left.retain(|dim| match dim.eval_to_i64(symbols) {
            Ok(dim) => {
                below_zero = below_zero.or((dim < 0).then_some(dim));
                false
            }
            Err(_) => true,
        });
        match below_zero {
            Some(dim) => bail!(TooSmall(dim)),
            None => Ok(()),
        }
    }
}

/// Whether a dimension may be below zero where all its symbols are not.
fn may_be_negative(dim: &TDim) -> bool {
    match dim {
        TDim::Val(value) => *value < 0,
        TDim::Sym(_) | TDim::Ge(..) | TDim::Eq(..) => false,
        TDim::MulInt(factor, dim) => *factor < 0 || may_be_negative(dim),
        TDim::Div(dim, _) => may_be_negative(dim),
        TDim::Max(dims) => dims.iter().all(may_be_negative),
        TDim::Add(dims) | TDim::Mul(dims) | TDim::Broadcast(dims) | TDim::Min(dims) => {
            dims.iter().any(may_be_negative)
        }
    }
}

/// The size of a value, at least `u64::MAX` if it has no bounds; `None` if a dimension is not known.
fn bytes(datum_type: DatumType, dims: impl Iterator<Item = Option<i64>>) -> Option<u64> {
    let element = datum_type.size_of() as u64;
    let mut bytes = element;
    let mut is_empty = false;
    for dim in dims {
        let dim = u64::try_from(dim?).ok()?;
        is_empty |= dim == 0;
        bytes = bytes.saturating_mul(dim.max(1));
    }
    Some(if is_empty { 0 } else { bytes })
}

pub(crate) fn gib(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more bytes than can be counted".to_owned(),
        bytes => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn every_operation_is_a_part_of_an_expression() {
        let scope = SymbolScope::default();
        let size = scope.sym("n").to_dim();
        assert_eq!(parts(&size), 1);
        // Made by hand: tract's own arithmetic takes minutes for ten of these.
        let halved = |dim: &TDim| TDim::Div(Box::new(TDim::Add(vec![dim.clone(), size.clone()])), 2);
        let once = halved(&size);
        assert_eq!(parts(&once), 4);
        let often = (0..8).fold(once, |dim, _| halved(&dim));
        assert_eq!(parts(&often), 28);
    }

    #[test]
    fn what_costs_its_sender_nothing_is_small() {
        let admits = |dims: &[u64]| {
            let shape = tensor_core::Shape::new(dims).expect("a shape");
            let value = tensor_core::Tensor::from_vec(shape, Vec::<f32>::new()).expect("a tensor");
            admit_input(&value.into()).map_err(|error| error.to_string())
        };
        assert_eq!(admits(&[0, 3, 4096, 4096]), Ok(()));
        let error = "dimensions [0, 8388608, 16] stand for 512 MiB, the limit is 256 MiB";
        assert_eq!(admits(&[0, 1 << 23, 16]), Err(error.to_owned()));
    }

    #[test]
    fn differences_are_told_from_other_sizes() {
        let scope = SymbolScope::default();
        let height = || scope.sym("h").to_dim();
        for (dim, expected) in [
            (height(), false),
            ((height() + 7) / 8, false),
            (height() * 3, false),
            (height() - 2, true),
            ((height() - 3) / 2 + 1, true),
            ((height() - 2) * (height() - 2), true),
        ] {
            assert_eq!(may_be_negative(&dim), expected, "{dim}");
        }
    }

    #[test]
    fn what_no_memory_is_free_for_is_refused() {
        admit_now(LARGE - 1).unwrap();
        if available_memory().is_some() {
            let error = admit_now(1 << 60).unwrap_err();
            let text = error.downcast_ref::<NoRoom>().unwrap().to_string();
            assert!(
                text.starts_with("the model needs 1099511627776 MiB at once, and "),
                "{text}"
            );
        }
    }
}
