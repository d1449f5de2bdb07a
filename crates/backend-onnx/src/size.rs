//! How large single values may become: a few bytes of a request can ask for a product of terabytes.

use std::{cell::Cell, collections::HashSet};

use oip_service::available_memory;
use oip_types::{ByteSize, ServiceError, TensorValue};
use onnx_graph::MAX_TENSOR_BYTES;
use tract_hir::{
    internal::*,
    tract_core::ops::{
        array::Slice,
        cnn::{Conv, MaxPool, PaddingSpec, SumPool},
        einsum::EinSum,
    },
};

use crate::{
    cancelling::Pace,
    faults::{BadInput, Limit, Misfit, NoRoom, Refusal, ensure_input},
    ops::elements::{Element, elements},
};

/// Bytes of a value: an input, an output or what flows between two operators.
pub(crate) const MAX_BYTES: u64 = MAX_TENSOR_BYTES;

/// The same for a value without elements, as if each dimension of 0 were 1: it costs its sender nothing, and what operators make
/// of its other dimensions takes memory and time. A value between operators may have up to [`MAX_BYTES`], counted so.
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

/// Refuses to go on where hardly any memory is free.
///
/// # Errors
/// As [`admit_now`].
pub(crate) fn admit_more() -> TractResult<()> {
    const LEAST: u64 = 64 << 20;
    match available_memory() {
        Some(free) if free < LEAST => Err(NoRoom(format!(
            "the values between the model's operators fill the memory: {} MiB are free",
            free >> 20
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Refuses what is known, before the model runs, to be too large.
pub(crate) fn admit(datum_type: DatumType, dims: &[TDim]) -> TractResult<()> {
    // A free dimension may be 1.
    let known = dims.iter().map(|dim| Some(dim.to_i64().map_or(1, i128::from)));
    match bytes(datum_type.size_of(), known) {
        Some(bytes) if bytes > MAX_BYTES => Err(Refusal(format!(
            "gives {}, which is beyond the limit of {} GiB",
            gib(bytes),
            MAX_BYTES >> 30
        ))
        .into()),
        _ => Ok(()),
    }
}

/// The same of a value that tract computes at once, while it plans, if all that it is made of are constants.
pub(crate) fn admit_planned(of_constants: bool, datum_type: DatumType, dims: &[TDim]) -> TractResult<()> {
    admit(datum_type, dims)?;
    if !of_constants {
        return Ok(());
    }
    let known = dims.iter().map(|dim| dim.to_i64().ok().map(i128::from));
    admit_now(bytes(datum_type.size_of(), known).unwrap_or(0))
}

thread_local! {
    /// Bytes that a value may have which this thread computes.
    static MOST: Cell<u64> = const { Cell::new(MAX_BYTES) };
}

/// Runs something whose values may have fewer bytes than others, in one value.
pub(crate) fn limited<T>(bytes: u64, run: impl FnOnce() -> T) -> T {
    struct Reset(u64);
    impl Drop for Reset {
        fn drop(&mut self) {
            MOST.set(self.0);
        }
    }
    let _reset = Reset(MOST.replace(bytes.min(MAX_BYTES)));
    run()
}

/// Refuses a value that a request asks for.
///
/// # Errors
/// [`BadInput`] with the size; as [`admit_now`].
pub(crate) fn admit_shape(datum_type: DatumType, shape: &[usize]) -> TractResult<()> {
    let dims = shape.iter().map(|&dim| Some(dim as i128));
    let bytes = bytes(datum_type.size_of(), dims).unwrap_or(0);
    let most = MOST.get();
    if bytes > most {
        bail!(BadInput(format!(
            "a value between two operators takes {}, which is beyond the limit of {:#}",
            gib(bytes),
            ByteSize(most)
        )));
    }
    admit_now(bytes)
}

/// Bytes of a text beside its contents, with what an allocation takes.
pub(crate) const TEXT: u64 = 40;

/// Bytes of all texts of a value.
const MAX_TEXTS: u64 = 1 << 30;

/// Refuses texts that together take too many bytes.
///
/// # Errors
/// [`BadInput`] with both sizes; as [`admit_now`].
pub(crate) fn admit_texts(bytes: u64) -> TractResult<()> {
    ensure_input!(
        bytes <= MAX_TEXTS,
        "the texts together take {bytes} bytes, which is beyond the limit of {} GiB",
        MAX_TEXTS >> 30
    );
    admit_now(bytes)
}

/// Refuses elements of a value, each so many times, whose contents take too much memory together; a value's own size is looked at
/// by [`admit_shape`]. Only texts have contents.
///
/// # Errors
/// As [`admit_texts`].
pub(crate) fn admit_contents<'e, T: Element>(
    elements: impl IntoIterator<Item = (&'e T, usize)>,
) -> TractResult<()> {
    if !T::HAS_CONTENTS {
        return Ok(());
    }
    let mut pace = Pace::default();
    let mut bytes = 0u64;
    for (element, times) in elements {
        pace.spend(4)?;
        let each = TEXT + element.contents() as u64;
        bytes = bytes.saturating_add(each.saturating_mul(times as u64));
    }
    admit_texts(bytes)
}

/// Bytes of a value, with the contents of texts.
pub(crate) fn of_value(value: &Tensor) -> u64 {
    if value.datum_type() != DatumType::String {
        return (value.len() * value.datum_type().size_of()) as u64;
    }
    let texts = elements::<String>(value).unwrap_or_default().iter();
    texts.map(|text| TEXT + text.len() as u64).sum()
}

/// Why a size is not known.
pub(crate) enum Unknown<'d> {
    /// This part of it is not known yet.
    Symbol(&'d Symbol),
    /// Dimensions that would have to be equal, or one of them 1, are not.
    Mismatch(i128, i128),
    /// No number at all.
    Undefined,
}

/// A size with what is known of symbols, without bounds. tract's own function makes an error of text for each that is not known.
pub(crate) fn value<'d>(dim: &'d TDim, symbols: &SymbolValues) -> Result<i128, Unknown<'d>> {
    let of = |dim: &'d TDim| value(dim, symbols);
    let fold = |dims: &'d [TDim], first: i128, next: fn(i128, i128) -> i128| {
        dims.iter().try_fold(first, |all, dim| Ok(next(all, of(dim)?)))
    };
    match dim {
        TDim::Val(value) => Ok((*value).into()),
        TDim::Sym(symbol) => symbols.get(symbol).map(i128::from).ok_or(Unknown::Symbol(symbol)),
        TDim::Add(dims) => fold(dims, 0, i128::saturating_add),
        TDim::Mul(dims) => fold(dims, 1, i128::saturating_mul),
        TDim::Min(dims) => fold(dims, i128::MAX, i128::min),
        TDim::Max(dims) => fold(dims, i128::MIN, i128::max),
        TDim::MulInt(factor, dim) => Ok(of(dim)?.saturating_mul((*factor).into())),
        TDim::Div(dim, divisor) => of(dim)?.checked_div((*divisor).into()).ok_or(Unknown::Undefined),
        TDim::Broadcast(dims) => dims.iter().try_fold(1, |all, dim| match (all, of(dim)?) {
            (1, size) | (size, 1) => Ok(size),
            (one, other) if one == other => Ok(one),
            (one, other) => Err(Unknown::Mismatch(one, other)),
        }),
        TDim::Ge(a, b) => Ok((of(a)? >= of(b)?).into()),
        TDim::Eq(a, b) => Ok((of(a)? == of(b)?).into()),
    }
}

/// Parts of the expression of a free dimension: a symbol, a number, or an operation. tract compares expressions in ways that
/// take exponential time and memory; real models have 9 parts at most.
const MAX_PARTS: usize = 24;

/// Refuses a plan in which a size follows from free ones in too many steps.
pub(crate) fn admit_expressions(model: &TypedModel) -> TractResult<()> {
    let outputs = model.nodes().iter().flat_map(|node| &node.outputs);
    let mut dims = outputs.flat_map(|output| output.fact.shape.iter());
    dims.try_for_each(admit_expression)
}

/// Refuses a size that follows from free ones in too many steps.
pub(crate) fn admit_expression(dim: &TDim) -> TractResult<()> {
    match parts(dim) > MAX_PARTS {
        true => Err(Limit("a size follows from free ones in too many steps".to_owned()).into()),
        false => Ok(()),
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
    free: Vec<Free>,
    /// Bytes of all others together, but for constants.
    fixed: u64,
}

/// The size of an output that depends on a request.
#[derive(Debug)]
struct Free {
    /// Bytes of an element.
    element: usize,
    dims: TVec<TDim>,
    /// Whether these are the neighbourhoods of all places of an image, which a product is made of. Their shape says nothing of
    /// their size.
    is_packed: bool,
}

impl OutputSizes {
    /// Refuses a node whose outputs are too large whatever the request is.
    pub(crate) fn of(node: &TypedNode) -> TractResult<Self> {
        let mut sizes = Self::default();
        for output in &node.outputs {
            let fact = &output.fact;
            let Some(packed) = fact.exotic_fact() else {
                sizes.add(fact.datum_type, fact.shape.to_tvec(), fact.konst.is_some(), false)?;
                continue;
            };
            for buffer in packed.buffer_sizes() {
                // The buffers are of one matrix each.
                let mut dims = fact.shape.to_tvec();
                dims.push(buffer);
                sizes.add(DatumType::U8, dims, fact.konst.is_some(), true)?;
            }
        }
        Ok(sizes)
    }

    fn add(
        &mut self,
        datum_type: DatumType,
        dims: TVec<TDim>,
        is_constant: bool,
        is_packed: bool,
    ) -> TractResult<()> {
        admit(datum_type, &dims)?;
        let element = datum_type.size_of();
        let known: Option<TVec<i64>> = dims.iter().map(|dim| dim.to_i64().ok()).collect();
        match known {
            None => self.free.push(Free {
                element,
                dims,
                is_packed,
            }),
            Some(_) if is_constant => {}
            Some(known) => {
                let known = known.into_iter().map(|dim| Some(dim.into()));
                self.fixed += bytes(element, known).unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Looks, before the node runs, whether its outputs would be too large for this request.
    ///
    /// # Errors
    /// [`BadInput`] with the size, or a [`Misfit`] where another plan may take less memory; as [`admit_now`].
    pub(crate) fn check(&self, symbols: &SymbolValues) -> TractResult<()> {
        let mut all = self.fixed;
        for Free {
            element,
            dims,
            is_packed,
        } in &self.free
        {
            // What depends on values of other nodes is not known yet; operators that make such sizes have checks of their own.
            let sizes = dims.iter().map(|dim| value(dim, symbols).ok());
            let bytes = bytes(*element, sizes).unwrap_or(0);
            if bytes > MAX_BYTES {
                if *is_packed {
                    let (gib, limit) = (bytes >> 30, MAX_BYTES >> 30);
                    bail!(Misfit::Neighbourhoods { gib, limit });
                }
                let (size, limit) = (gib(bytes), MAX_BYTES >> 30);
                bail!(BadInput(format!(
                    "with these shapes a value between two operators takes {size}, which is beyond the limit of {limit} GiB"
                )));
            }
            all = all.saturating_add(bytes);
        }
        admit_now(all)
    }
}

/// What two sizes differ by, or a size that is a difference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Difference {
    dim: TDim,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// What is left of an image around a window; not below zero.
    Window,
    /// Of two factors of a product, in a dimension that they share; zero.
    Factors,
    /// A dimension of a value; not below zero.
    Dimension,
}

impl Difference {
    fn misfit(&self, value: i128) -> Option<Misfit> {
        match self.kind {
            Kind::Factors if value != 0 => Some(Misfit::Factors(small(value))),
            Kind::Window if value < 0 => Some(Misfit::Window(small(value).saturating_neg())),
            Kind::Dimension if value < 0 => Some(Misfit::Dimension(small(value))),
            _ => None,
        }
    }

    fn may_misfit(&self) -> bool {
        self.kind == Kind::Factors || may_be_negative(&self.dim) || may_be_unequal(&self.dim)
    }
}

/// The dimensions of a model's values that are below zero where inputs are too small for it, such as an image that is smaller
/// than a window, and those of factors that must be equal.
///
/// tract multiplies two of them to a size that looks good, and its matrix products then read memory that is not theirs. Of images
/// that are one step smaller than a window it makes nothing, where ONNX Runtime refuses them, and windows of pools it cuts off.
#[derive(Debug, Default)]
pub(crate) struct Differences(Vec<Difference>);

impl Differences {
    /// Finds them; to be asked before the optimization, which multiplies them.
    ///
    /// # Errors
    /// [`Misfit`] for one that is below zero whatever the request is.
    pub(crate) fn of(model: &TypedModel) -> TractResult<Self> {
        let mut found = HashSet::new();
        let running: HashSet<usize> = model.eval_order()?.into_iter().collect();
        for node in model.nodes() {
            let dims = node.outputs.iter().flat_map(|output| output.fact.shape.iter());
            let mut differences: Vec<Difference> = of_kind(Kind::Dimension, dims.cloned()).collect();
            differences.extend(of_kind(Kind::Window, around_windows(model, node)?));
            differences.extend(of_kind(Kind::Dimension, around_slice(model, node)?));
            // Of nodes that no output needs only the sizes are used.
            if running.contains(&node.id) {
                add_factors(model, node, &mut differences)?;
            }
            for difference in differences {
                let misfit = match value(&difference.dim, &SymbolValues::default()) {
                    Ok(known) => difference.misfit(known),
                    Err(Unknown::Mismatch(one, other)) => Some(Misfit::Sizes(small(one), small(other))),
                    Err(Unknown::Symbol(_) | Unknown::Undefined) => None,
                };
                if let Some(misfit) = misfit {
                    return Err(TractError::from(misfit).context(node.name.clone()));
                }
                if difference.dim.to_i64().is_err() && difference.may_misfit() {
                    found.insert(difference);
                }
            }
        }
        let mut found: Vec<Difference> = found.into_iter().collect();
        // They are looked at from the last one on: a dimension below zero says most.
        found.sort_by_key(|difference| difference.kind);
        Ok(Self(found))
    }

    /// All of them, to be compared with the sizes of a request.
    pub(crate) fn all(&self) -> Pending<'_> {
        Pending {
            ready: self.0.iter().collect(),
            waiting: vec![],
        }
    }
}

fn of_kind(kind: Kind, dims: impl IntoIterator<Item = TDim>) -> impl Iterator<Item = Difference> {
    dims.into_iter().map(move |dim| Difference { dim, kind })
}

/// What the factors of a product differ by where they are summed over or where both of them have rows of the result. tract takes
/// sizes that it does not know for equal, and reads beyond the smaller factor where they are not.
fn add_factors(model: &TypedModel, node: &TypedNode, found: &mut Vec<Difference>) -> TractResult<()> {
    let Some(product) = node.op_as::<EinSum>() else {
        return Ok(());
    };
    for axis in product.axes.iter_all_axes() {
        let mut sizes: TVec<TDim> = tvec![];
        for (input, places) in node.inputs.iter().zip(&axis.inputs) {
            let shape = &model.outlet_fact(*input)?.shape;
            sizes.extend(places.iter().map(|&place| shape[place].clone()));
        }
        let pairs = sizes.iter().zip(sizes.iter().skip(1));
        // A size of 1 is repeated, where tract knows it.
        let pairs =
            pairs.filter(|(a, b)| a != b && !(is_number(a) && is_number(b) && (a.is_one() || b.is_one())));
        found.extend(of_kind(Kind::Factors, pairs.map(|(a, b)| a.clone() - b.clone())));
    }
    Ok(())
}

fn is_number(dim: &TDim) -> bool {
    matches!(dim, TDim::Val(_))
}

/// What a slice leaves of its axis before and behind it. tract makes one of two slices, of which the first may reach beyond its axis.
fn around_slice(model: &TypedModel, node: &TypedNode) -> TractResult<TVec<TDim>> {
    let Some(slice) = node.op_as::<Slice>() else {
        return Ok(tvec![]);
    };
    let dim = &model.outlet_fact(node.inputs[0])?.shape[slice.axis];
    Ok(tvec![slice.start.clone(), dim.clone() - &slice.end])
}

/// The room that an image leaves around the windows of a convolution or pool.
fn around_windows(model: &TypedModel, node: &TypedNode) -> TractResult<Vec<TDim>> {
    let spec = if let Some(conv) = node.op_as::<Conv>() {
        &conv.pool_spec
    } else if let Some(pool) = node.op_as::<MaxPool>() {
        &pool.pool_spec
    } else if let Some(pool) = node.op_as::<SumPool>() {
        &pool.pool_spec
    } else {
        return Ok(vec![]);
    };
    let pads = match &spec.padding {
        PaddingSpec::Explicit(before, after) | PaddingSpec::ExplicitOnnxPool(before, after, _) => before
            .iter()
            .zip(after)
            .map(|(before, after)| before + after)
            .collect(),
        PaddingSpec::Valid => vec![0; spec.rank()],
        // Places are as many as the image has.
        PaddingSpec::SameUpper | PaddingSpec::SameLower => return Ok(vec![]),
    };
    let image = model.outlet_fact(node.inputs[0])?.shape.to_tvec();
    let image = spec.data_format.shape(image)?;
    let windows = spec.kernel_shape.iter().zip(spec.dilations().into_owned());
    let reaches = windows.map(|(&size, dilation)| size.saturating_sub(1).saturating_mul(dilation) + 1);
    // Where places are rounded up, one of them may reach beyond the image by less than a step.
    let is_rounded_up = matches!(spec.padding, PaddingSpec::ExplicitOnnxPool(_, _, true));
    let steps = spec.strides().into_owned().into_iter();
    let beyond = steps.map(|step| if is_rounded_up { step - 1 } else { 0 });
    let axes = image.hw_dims().iter().zip(pads).zip(reaches).zip(beyond);
    Ok(axes
        .map(|(((size, pads), reach), beyond)| size.clone() + pads + beyond - reach)
        .collect())
}

/// Sizes that were not compared yet with those of a request.
pub(crate) struct Pending<'p> {
    /// To be looked at next.
    ready: Vec<&'p Difference>,
    /// By a symbol that is not known yet: it follows from values that nodes are still to give.
    waiting: Vec<(&'p Symbol, Vec<&'p Difference>)>,
}

impl<'p> Pending<'p> {
    /// Looks whether the sizes of this request fit, each once it can be told.
    ///
    /// # Errors
    /// [`Misfit`].
    pub(crate) fn check(&mut self, symbols: &SymbolValues) -> TractResult<()> {
        let ready = &mut self.ready;
        self.waiting.retain_mut(|(symbol, differences)| {
            let is_unknown = symbols.get(symbol).is_none();
            if !is_unknown {
                ready.append(differences);
            }
            is_unknown
        });
        while let Some(difference) = self.ready.pop() {
            match value(&difference.dim, symbols) {
                Ok(value) => {
                    if let Some(misfit) = difference.misfit(value) {
                        bail!(misfit);
                    }
                }
                Err(Unknown::Mismatch(one, other)) => bail!(Misfit::Sizes(small(one), small(other))),
                Err(Unknown::Undefined) => {}
                Err(Unknown::Symbol(symbol)) => self.wait(symbol, difference),
            }
        }
        Ok(())
    }

    fn wait(&mut self, symbol: &'p Symbol, difference: &'p Difference) {
        let waiting = self.waiting.iter_mut().find(|(other, _)| *other == symbol);
        match waiting {
            Some((_, differences)) => differences.push(difference),
            None => self.waiting.push((symbol, vec![difference])),
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

/// Whether a dimension follows from two that need not be equal: those of values that meet in one operator.
fn may_be_unequal(dim: &TDim) -> bool {
    match dim {
        TDim::Val(_) | TDim::Sym(_) => false,
        TDim::Broadcast(_) => true,
        TDim::MulInt(_, dim) | TDim::Div(dim, _) => may_be_unequal(dim),
        TDim::Add(dims) | TDim::Mul(dims) | TDim::Min(dims) | TDim::Max(dims) => {
            dims.iter().any(may_be_unequal)
        }
        TDim::Ge(a, b) | TDim::Eq(a, b) => may_be_unequal(a) || may_be_unequal(b),
    }
}

/// A size for a message.
fn small(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The size of a value, at least `u64::MAX` if it has no bounds; `None` if a dimension is not known.
fn bytes(element: usize, dims: impl Iterator<Item = Option<i128>>) -> Option<u64> {
    let mut bytes = element as u64;
    let mut is_empty = false;
    for dim in dims {
        let dim = u64::try_from(dim?.min(u64::MAX.into())).ok()?;
        is_empty |= dim == 0;
        bytes = bytes.saturating_mul(dim.max(1));
    }
    // What an operator makes on its way to such a value is as large as the other dimensions say.
    Some(if is_empty && bytes <= MAX_EMPTY_BYTES {
        0
    } else {
        bytes
    })
}

pub(crate) fn gib(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more bytes than can be counted".to_owned(),
        bytes if bytes < 1 << 30 => format!("{} MiB", bytes >> 20),
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
    fn values_without_elements_are_counted_by_their_other_dimensions() {
        let bytes = |dims: &[i128]| bytes(4, dims.iter().copied().map(Some));
        assert_eq!(bytes(&[0, 1 << 20]), Some(0));
        assert_eq!(bytes(&[3, 0, 1 << 46]), Some(3 << 48));
        assert!(admit_shape(DatumType::F32, &[0, 1 << 20]).is_ok());
        assert!(admit_shape(DatumType::F32, &[0, 1 << 46]).is_err());
        assert!(admit(DatumType::F32, &[0.to_dim(), (1i64 << 46).to_dim()]).is_err());
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
    fn sizes_are_computed_as_tract_does_and_beyond_its_numbers() {
        let scope = SymbolScope::default();
        let [height, width, free] = ["h", "w", "f"].map(|name| scope.sym(name));
        let symbols = SymbolValues::default().with(&height, 7).with(&width, 1 << 40);
        let [h, w, f] = [&height, &width, &free].map(ToDim::to_dim);
        for dim in [
            (h.clone() + 3) / 2,
            (h.clone() - 9) / 2 + 1,
            h.clone() * 3 - 1,
            h.clone() * w.clone(),
            h.clone().maxi(9.to_dim()).mini(w.clone()),
            TDim::Broadcast(vec![1.to_dim(), h.clone()]),
            TDim::Ge(Box::new(h.clone()), Box::new(w.clone())),
            TDim::Eq(Box::new(h.clone()), Box::new(7.to_dim())),
        ] {
            let expected: i128 = dim.eval_to_i64(&symbols).unwrap().into();
            assert!(
                matches!(value(&dim, &symbols), Ok(found) if found == expected),
                "{dim}"
            );
        }
        assert!(matches!(value(&(w.clone() * w.clone()), &symbols), Ok(found) if found == 1 << 80));
        let unknown = w * f;
        assert!(matches!(value(&unknown, &symbols), Err(Unknown::Symbol(symbol)) if *symbol == free));
        let unequal = TDim::Broadcast(vec![2.to_dim(), h]);
        assert!(matches!(value(&unequal, &symbols), Err(Unknown::Mismatch(2, 7))));
    }

    /// A size that follows from values of nodes is looked at when they are there, and not at each node before.
    #[test]
    fn differences_wait_for_their_symbols() {
        let scope = SymbolScope::default();
        let [known, late] = ["k", "l"].map(|name| scope.sym(name));
        let difference = |dim: TDim| Difference {
            dim,
            kind: Kind::Dimension,
        };
        let dims = [
            known.to_dim() - 1,
            late.to_dim() - 2,
            late.to_dim() - known.to_dim(),
        ];
        let all = Differences(dims.map(difference).to_vec());
        let mut pending = all.all();
        let symbols = SymbolValues::default().with(&known, 5);
        for _ in 0..2 {
            pending.check(&symbols).unwrap();
            let waiting: usize = pending.waiting.iter().map(|(_, waiting)| waiting.len()).sum();
            assert_eq!((pending.ready.len(), waiting), (0, 2));
        }
        let error = pending.check(&symbols.with(&late, 4)).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Misfit::Dimension(-1))));
        assert!(all.all().check(&SymbolValues::default().with(&known, 0)).is_err());
    }

    #[test]
    fn values_of_constants_have_a_limit_of_their_own() {
        let admits = |count| admit_shape(DatumType::F32, &[count]).is_ok();
        assert!(limited(100, || admits(25) && !admits(26)));
        assert!(admits(26));
        assert!(std::panic::catch_unwind(|| limited(100, || panic!("on its way"))).is_err());
        assert!(admits(26));
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
