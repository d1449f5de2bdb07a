//! `Slice`: tract's fails for ends beyond a free axis, for starts and ends that are computed while the model runs, and
//! before operator set 10 for every free axis.

use std::sync::{Arc, OnceLock};

use tract_hir::{internal::*, tract_core::ops::array::Slice as TypedSlice};

use super::{
    attributes::Attributes,
    axis,
    counted::{counted, is_counted},
    elements::elements,
    kernel::{Fact, known, numbers},
    numbers::{FARTHEST, clamped},
    picked::{Places, picked},
};
use crate::{building::BuildContext, lowered::OnnxNode};

/// `Slice` of any operator set.
pub(crate) fn slice(context: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let fixed = (node.opset < 10).then(|| {
        let (starts, ends) = (
            attributes.ints("starts").to_vec(),
            attributes.ints("ends").to_vec(),
        );
        let axes = match attributes.ints("axes") {
            [] => (0..starts.len() as i64).collect(),
            axes => axes.to_vec(),
        };
        let steps = vec![1; starts.len()];
        [starts, ends, axes, steps]
    });
    Ok(Box::new(Slice {
        fixed,
        axes: attributes.position(3),
        steps: attributes.position(4),
        scope: context.symbols.clone(),
        lengths: Arc::default(),
    }))
}

#[derive(Clone, Debug)]
struct Slice {
    /// Starts, ends, axes and steps, where they are attributes.
    fixed: Option<[Vec<i64>; 4]>,
    /// Which inputs hold the axes and steps.
    axes: Option<usize>,
    steps: Option<usize>,
    scope: SymbolScope,
    /// What the sizes are called that are only known while the model runs, by axis.
    lengths: Arc<[OnceLock<Symbol>; MAX_RANK]>,
}

const MAX_RANK: usize = 16;

/// What stands for "to the end" in files: more than any dimension has. Some exporters write this, others the largest
/// number of 32 or 64 bits.
const BEYOND: i64 = 1_000_000_000;

const LARGEST_OF_32_BITS: i64 = i32::MAX as i64;

/// The same for backwards.
const BEFORE: i64 = -BEYOND;

/// One axis of a slice. `None` for bounds that are not known before the model runs.
struct Window {
    axis: usize,
    start: Option<TDim>,
    end: Option<TDim>,
    step: i64,
}

/// What a window takes of its axis.
enum Taken {
    /// From a start to an end, one by one.
    Range(TDim, TDim),
    /// So many elements, and not one by one.
    Some(TDim),
    /// Not known before the model runs.
    Unknown,
}

impl Slice {
    /// What is sliced, `None` if even the axes are only known while the model runs.
    fn windows(&self, inputs: &[Fact]) -> TractResult<Option<Vec<Window>>> {
        let rank = inputs[0].rank();
        ensure!(rank <= MAX_RANK, "more than {MAX_RANK} dimensions");
        let plain = |values: &[i64]| {
            values
                .iter()
                .map(|value| Some(value.to_dim()))
                .collect::<Vec<_>>()
        };
        let (starts, ends, axes, steps) = match &self.fixed {
            Some([starts, ends, axes, steps]) => (plain(starts), plain(ends), axes.clone(), steps.clone()),
            None => {
                ensure!(inputs.len() >= 3, "expected 3 inputs, found {}", inputs.len());
                let count = match inputs[1].shape.as_slice() {
                    [count] => count.to_usize()?,
                    _ => bail!("starts have {} dimensions, expected 1", inputs[1].rank()),
                };
                let list = |input: Option<usize>, default: Vec<i64>| match input
                    .and_then(|input| inputs.get(input))
                {
                    Some(fact) => fact.integers(),
                    None => Some(default),
                };
                let (axes, steps) = (
                    list(self.axes, (0..count as i64).collect()),
                    list(self.steps, vec![1; count]),
                );
                let (Some(axes), Some(steps)) = (axes, steps) else {
                    return Ok(None);
                };
                (
                    bounds(&inputs[1], count)?,
                    bounds(&inputs[2], count)?,
                    axes,
                    steps,
                )
            }
        };
        ensure!(
            starts.len() == ends.len() && starts.len() == axes.len() && starts.len() == steps.len(),
            "starts, ends, axes and steps are of different lengths"
        );
        let mut windows: Vec<Window> = Vec::with_capacity(starts.len());
        for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
            let axis = axis::axis(axis, rank)?;
            ensure!(step != 0, "a step of 0");
            // To ONNX Runtime these stand for "to the end" backwards too.
            let is_open = |end: &TDim| matches!(end.to_i64(), Ok(i64::MAX) | Ok(LARGEST_OF_32_BITS));
            let end = match step < 0 && end.as_ref().is_some_and(is_open) {
                true => Some((-FARTHEST).to_dim()),
                false => end.map(within_reach),
            };
            let (start, step) = (start.map(within_reach), clamped(step));
            ensure!(
                windows.iter().all(|window| window.axis != axis),
                "axis {axis} is sliced twice"
            );
            windows.push(Window {
                axis,
                start,
                end,
                step,
            });
        }
        Ok(Some(windows))
    }

    fn output(&self, inputs: &[Fact]) -> TractResult<Fact> {
        let mut fact = Fact::new(inputs[0].datum_type, inputs[0].shape.iter().cloned());
        let Some(windows) = self.windows(inputs)? else {
            for axis in 0..fact.rank() {
                fact.shape[axis] = self.length(axis);
            }
            return Ok(fact);
        };
        for window in windows {
            let dim = &mut fact.shape[window.axis];
            *dim = match window.taken(dim) {
                Taken::Range(start, end) => end - start,
                Taken::Some(count) => count,
                Taken::Unknown => self.length(window.axis),
            };
        }
        Ok(fact)
    }

    fn length(&self, axis: usize) -> TDim {
        let symbol = self.lengths[axis].get_or_init(|| counted(&self.scope, "slice"));
        symbol.to_dim()
    }
}

/// Starts or ends, as far as they are known.
fn bounds(fact: &Fact, count: usize) -> TractResult<Vec<Option<TDim>>> {
    let Some(constant) = &fact.constant else {
        return Ok(vec![None; count]);
    };
    ensure!(
        constant.len() == count,
        "starts and ends are of different lengths"
    );
    // tract turns integers into dimensions by way of 32 bits.
    if constant.datum_type() != DatumType::TDim {
        let numbers = fact.integers().context("starts and ends that are not integers")?;
        return Ok(numbers.iter().map(|number| Some(number.to_dim())).collect());
    }
    let dims = constant.cast_to::<TDim>()?;
    Ok(elements::<TDim>(&dims)?.iter().cloned().map(Some).collect())
}

/// A bound that is a number, as near as it may be for the same slice; another one as it is.
fn within_reach(bound: TDim) -> TDim {
    match bound {
        TDim::Val(number) => clamped(number).to_dim(),
        other => other,
    }
}

impl Window {
    fn taken(&self, dim: &TDim) -> Taken {
        let (Some(start), Some(end)) = (&self.start, &self.end) else {
            return Taken::Unknown;
        };
        if let (Ok(start), Ok(end), Ok(dim)) = (start.to_i64(), end.to_i64(), dim.to_i64()) {
            let (first, count) = positions(start, end, self.step, dim);
            return match self.step {
                1 => Taken::Range(first.to_dim(), (first + count).to_dim()),
                _ => Taken::Some(count.to_dim()),
            };
        }
        let is_all = match (start.to_i64(), end.to_i64(), self.step > 0) {
            (Ok(0), Ok(BEYOND..), true) => true,
            (Ok(start), Ok(end), false) => (start == -1 || start >= BEYOND) && end <= BEFORE,
            _ => false,
        };
        match self.step {
            // No other plan is made for such a size.
            1 if !is_all && [dim, start, end].into_iter().any(is_counted) => Taken::Unknown,
            1 => {
                // Bounds of a free dimension are taken to be inside of it; where they are not, the run fails, and another
                // plan is made for the size.
                let bound = |bound: &TDim| match bound.to_i64() {
                    Ok(BEYOND..) => dim.clone(),
                    Ok(..=BEFORE) => 0.to_dim(),
                    Ok(..=-1) => dim.clone() + bound,
                    Err(_) if is_negative(bound) => dim.clone() + bound,
                    _ => bound.clone(),
                };
                Taken::Range(bound(start), bound(end))
            }
            step if is_all => Taken::Some(dim.clone().divceil(step.unsigned_abs() as usize)),
            _ => Taken::Unknown,
        }
    }
}

/// Whether a bound made of dimensions counts from the end: whether it is negative for large ones.
fn is_negative(bound: &TDim) -> bool {
    let mut values = SymbolValues::default();
    for symbol in bound.symbols() {
        values = values.with(&symbol, 100_000_000);
    }
    bound.eval(&values).to_i64().is_ok_and(|bound| bound < 0)
}

/// The first element of a slice and how many there are, as ONNX clamps them.
pub(super) fn positions(start: i64, end: i64, step: i64, dim: i64) -> (i64, i64) {
    let from_start = |bound: i64| {
        if bound < 0 {
            bound.saturating_add(dim)
        } else {
            bound
        }
    };
    let (start, end) = (from_start(start), from_start(end));
    let (start, distance) = match step > 0 {
        true => {
            let start = start.clamp(0, dim);
            (start, end.clamp(0, dim) - start)
        }
        false => {
            // Other than in NumPy, a start before the first element is the first one.
            let last = dim - 1;
            let start = start.clamp(0.min(last), last);
            (start, start - end.clamp(-1, last))
        }
    };
    let step = step.unsigned_abs();
    match u64::try_from(distance) {
        Ok(distance @ 1..) => (start, distance.div_ceil(step) as i64),
        _ => (0, 0),
    }
}

impl Op for Slice {
    fn name(&self) -> StaticName {
        "Slice".into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.lengths.iter().any(|length| length.get().is_some())
    }

    op_as_typed_op!();
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lengths, &other.lengths)
    }
}

impl Eq for Slice {}

impl EvalOp for Slice {
    op_out_of_plan!();

    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        // Dimensions that are sliced stay what they are: they may be symbols.
        let parameters = inputs[1..]
            .iter()
            .map(|input| numbers(input.clone(), context.symbols));
        let parameters: Vec<Arc<Tensor>> = parameters.collect::<TractResult<_>>()?;
        let mut facts = vec![Fact::new(
            inputs[0].datum_type(),
            inputs[0].shape().iter().map(ToDim::to_dim),
        )];
        facts.extend(parameters.into_iter().map(|value| Fact {
            constant: Some(value.clone()),
            ..Fact::new(value.datum_type(), value.shape().iter().map(ToDim::to_dim))
        }));
        let windows = self.windows(&facts)?.context("axes without values")?;
        let mut value = inputs[0].clone().into_arc_tensor();
        for window in windows {
            let (Some(start), Some(end)) = (&window.start, &window.end) else {
                bail!("bounds without values");
            };
            let dim = value.shape()[window.axis];
            let (first, count) = positions(start.to_i64()?, end.to_i64()?, window.step, dim as i64);
            if (first, count as usize) == (0, dim) && window.step == 1 {
                continue;
            }
            value = taken(&value, window.axis, first, count as usize, window.step)?.into_arc_tensor();
        }
        Ok(tvec![value.into_tvalue()])
    }
}

/// `count` elements of an axis, from the `first` on.
fn taken(value: &Tensor, axis: usize, first: i64, count: usize, step: i64) -> TractResult<Tensor> {
    let first = usize::try_from(first)?;
    picked(value, axis, Places::Steps { first, step, count })
}

impl TypedOp for Slice {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let inputs: Vec<Fact> = inputs.iter().map(|fact| Fact::of(fact)).collect();
        let fact = self.output(&inputs)?;
        Ok(tvec![fact.datum_type.fact(fact.shape)])
    }

    as_op!();
}

impl InferenceOp for Slice {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        let facts: Option<Vec<Fact>> = inputs.iter().map(|fact| known(fact)).collect();
        let mut inferred: TVec<InferenceFact> = outputs.into_iter().cloned().collect();
        if let Some(facts) = facts {
            let fact = self.output(&facts)?;
            crate::size::admit(fact.datum_type, &fact.shape)?;
            inferred[0].unify_with(&InferenceFact::dt_shape(fact.datum_type, fact.shape))?;
        } else if let Some(datum_type) = inputs[0].datum_type.concretize() {
            inferred[0].datum_type.unify_with(&datum_type.into())?;
        }
        let inputs = inputs.into_iter().cloned().collect();
        Ok((inputs, inferred, observed.into_iter().cloned().collect()))
    }

    fn to_typed(
        &self,
        _source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        let mut facts = Vec::with_capacity(inputs.len());
        for input in &inputs {
            facts.push(Fact::of(target.outlet_fact(*input)?));
        }
        let windows = self.windows(&facts)?.unwrap_or_default();
        let ranges: Option<Vec<(usize, TDim, TDim)>> = windows
            .iter()
            .map(|window| match window.taken(&facts[0].shape[window.axis]) {
                Taken::Range(start, end) => Some((window.axis, start, end)),
                Taken::Some(_) | Taken::Unknown => None,
            })
            .collect();
        let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) else {
            return target.wire_node(&*node.name, self.clone(), &inputs);
        };
        let mut outlet = inputs[0];
        for (axis, start, end) in ranges {
            if start == 0.to_dim() && end == facts[0].shape[axis] {
                continue;
            }
            let name = format!("{}.axis-{axis}", node.name);
            outlet = target.wire_node(name, TypedSlice::new(axis, start, end), &[outlet])?[0];
        }
        Ok(tvec![outlet])
    }

    as_op!();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Of nothing there is nothing to list, however long the axis is.
    #[test]
    fn what_is_cut_of_nothing_takes_no_memory() {
        for (shape, axis) in [([0, 1 << 40], 1), ([1 << 40, 0], 0)] {
            let nothing = Tensor::zero::<i64>(&shape).unwrap();
            let cut = taken(&nothing, axis, (1 << 40) - 1, 1 << 39, -2).unwrap();
            let mut expected = shape;
            expected[axis] = 1 << 39;
            assert_eq!(cut.shape(), expected);
        }
    }

    #[test]
    fn bounds_are_clamped() {
        for (start, end, step, dim, expected) in [
            (0, 5, 1, 3, (0, 3)),
            (1, i64::MAX, 1, 3, (1, 2)),
            (-2, i64::MAX, 1, 3, (1, 2)),
            (i64::MIN, 2, 1, 3, (0, 2)),
            (5, 9, 1, 3, (0, 0)),
            (2, 1, 1, 3, (0, 0)),
            (0, 3, 2, 3, (0, 2)),
            (-1, i64::MIN, -1, 3, (2, 3)),
            (9, -9, -2, 4, (3, 2)),
            (0, -1, 1, 0, (0, 0)),
            (-1, -9, -1, 0, (0, 0)),
            (-5, -9, -2, 3, (0, 1)),
            (-5, -3, -1, 3, (0, 0)),
        ] {
            assert_eq!(
                positions(start, end, step, dim),
                expected,
                "{start}:{end}:{step} of {dim}"
            );
        }
    }
}
