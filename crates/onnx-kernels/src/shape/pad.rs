//! The operator `Pad` in all modes. Negative pads remove elements.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
    size,
};

/// Builds the operator `Pad`, for all operator sets.
pub fn pad(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let mode = match attributes.text("mode", "constant") {
        "constant" => Mode::Constant,
        "reflect" => Mode::Reflect,
        "edge" => Mode::Edge,
        "wrap" => Mode::Wrap,
        other => bail!(Unsupported::Anywhere(format!(
            "the attribute 'mode' is '{other}', expected constant, reflect, edge or wrap"
        ))),
    };
    let is_old = node.opset < 11;
    let fixed = ["pads", "paddings"]
        .iter()
        .find(|name| is_old && attributes.has(name));
    Ok(kernel(Pad {
        mode,
        fixed: fixed.map(|name| (attributes.ints(name).to_vec(), attributes.float("value", 0.0))),
        pads: attributes.position(1),
        value: attributes.position(2),
        axes: attributes.position(3),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

#[derive(Debug)]
struct Pad {
    mode: Mode,
    /// The pads and the value, if they are attributes.
    fixed: Option<(Vec<i64>, f32)>,
    pads: Option<usize>,
    value: Option<usize>,
    axes: Option<usize>,
}

impl Pad {
    /// Returns the begin and end pads of each axis; `None` if they are unknown.
    fn pads(&self, rank: usize, inputs: &[Fact]) -> Result<Option<Vec<[i64; 2]>>> {
        let fact = |place: Option<usize>| place.and_then(|place| inputs.get(place));
        let given = match &self.fixed {
            Some((pads, _)) => Some(pads.clone()),
            None => fact(self.pads).context("no pads")?.integers(),
        };
        let axes = match fact(self.axes) {
            Some(axes) => axes.integers(),
            None => Some((0..rank as i64).collect()),
        };
        let (Some(given), Some(axes)) = (given, axes) else {
            return Ok(None);
        };
        ensure!(
            given.len() == 2 * axes.len(),
            "{} pads for {} axes",
            given.len(),
            axes.len()
        );
        let mut pads = vec![[0, 0]; rank];
        for (index, &axis) in axes.iter().enumerate() {
            pads[axis::axis(axis, rank)?] = [given[index], given[axes.len() + index]];
        }
        Ok(Some(pads))
    }
}

/// Maximum sum of all pads in the modes that repeat values of the input.
const MAX_PLACES: u64 = 1 << 24;

/// Appends a value `count` times.
fn fill_up<T: Clone>(made: &mut Vec<T>, value: &T, count: usize, pace: &mut Pace) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let part = left.min(PART);
        pace.spend(part as u64)?;
        made.resize(made.len() + part, value.clone());
        left -= part;
    }
    Ok(())
}

/// Returns the indices of an axis that remain after negative pads; empty if none remain.
fn kept(size: usize, [before, after]: [i64; 2]) -> std::ops::Range<i64> {
    before.min(0).saturating_neg()..(size as i64).saturating_add(after.min(0))
}

/// Splits an axis of the result into pieces.
fn pieces(mode: Mode, size: usize, [before, after]: [i64; 2]) -> Result<Vec<Piece>> {
    let length = size as i64;
    // Elements that a negative pad removes are not repeated in the padding of the other end.
    let kept = kept(size, [before, after]);
    let end = length.checked_add(after).context("a pad is too large")?;
    let mut pieces = Vec::new();
    let beside = |places: std::ops::Range<i64>| match mode {
        Mode::Constant => Piece::Value(places.end.abs_diff(places.start) as usize),
        _ => Piece::Beside {
            mode,
            kept: kept.clone(),
            places,
        },
    };
    let start = before.checked_neg().context("a pad is too large")?;
    if start < end.min(0) {
        pieces.push(beside(start..end.min(0)));
    }
    let copied = start.max(0)..end.min(length);
    if copied.start < copied.end {
        pieces.push(Piece::Places(copied.start as usize..copied.end as usize));
    }
    if start.max(length) < end {
        pieces.push(beside(start.max(length)..end));
    }
    Ok(pieces)
}

impl Mode {
    /// Returns the index of the kept element that is repeated at position `at` of the padding.
    fn inside(self, at: i64, kept: &std::ops::Range<i64>) -> usize {
        let (at, length) = (at - kept.start, kept.end - kept.start);
        let place = match self {
            Self::Constant => at,
            Self::Edge => at.clamp(0, length - 1),
            Self::Wrap => at.rem_euclid(length),
            Self::Reflect if length == 1 => 0,
            Self::Reflect => {
                let around = at.rem_euclid(2 * (length - 1));
                around.min(2 * (length - 1) - around)
            }
        };
        (kept.start + place) as usize
    }
}

impl Kernel for Pad {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let input = inputs.first().context("no input")?;
        let mut output = input.with(input.element_type);
        let Some(pads) = self.pads(input.rank(), inputs)? else {
            output.shape.fill_with(Dim::unknown);
            return Ok(vec![output]);
        };
        for (dim, [before, after]) in output.shape.iter_mut().zip(pads) {
            let added = before.checked_add(after).context("a pad is too large")?;
            *dim += added;
            if let Some(size) = dim.to_i64() {
                ensure!(size >= 0, "negative pads remove more elements than there are");
            }
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = Fact::of_values(inputs);
        let input = &inputs[0];
        let pads = self.pads(input.rank(), &facts)?.context("no pads")?;
        let mut shape = Vec::with_capacity(pads.len());
        let mut listed = 0u64;
        for (&size, pads) in input.shape().iter().zip(&pads) {
            let size_after = (size as i64)
                .checked_add(pads[0])
                .and_then(|sum| sum.checked_add(pads[1]));
            let Some(size_after) = size_after.and_then(|size| usize::try_from(size).ok()) else {
                bail!(BadInput(format!(
                    "pads {pads:?} do not fit a dimension of {size}"
                )));
            };
            if self.mode != Mode::Constant {
                if kept(size, *pads).is_empty() && size_after != 0 {
                    bail!(BadInput(
                        "a dimension without elements has no values to pad with".to_owned()
                    ));
                }
                let beside = pads.iter().map(|&pad| pad.max(0).unsigned_abs());
                listed = beside.fold(listed, u64::saturating_add);
                if listed > MAX_PLACES {
                    bail!(BadInput(format!(
                        "pads {pads:?} of a dimension of {size} exceed the limit of {MAX_PLACES} for all pads"
                    )));
                }
            }
            shape.push(size_after);
        }
        // Empty results take no memory, even if their other dimensions are large.
        if shape.contains(&0) {
            return Ok(smallvec![Tensor::zero_of(input.element_type(), &shape)?]);
        }
        onnx_tensor::size::admit_shape(input.element_type(), &shape)?;
        let axes = input.shape().iter().zip(pads);
        let axes = axes.map(|(&size, pads)| pieces(self.mode, size, pads));
        let axes: Vec<_> = axes.collect::<Result<_>>()?;
        let value = match (&self.fixed, self.value.and_then(|place| inputs.get(place))) {
            (Some((_, value)), _) => Tensor::scalar(*value)
                .cast_to_type(input.element_type())?
                .into_owned(),
            (None, Some(value)) => (**value).clone(),
            (None, None) => Tensor::zero_of(input.element_type(), &[])?,
        };
        let padded = with_unit!(input.element_type(), U => padded::<U>(input, &value, &axes));
        Ok(smallvec![padded?])
    }
}

fn padded<U: Unit>(input: &Tensor, value: &Tensor, axes: &[Vec<Piece>]) -> Result<Tensor> {
    let values = input.as_units::<U>()?;
    let value = value.as_units::<U>()?.first().context("no value")?;
    let sizes = axes.iter().map(|pieces| pieces.iter().map(Piece::len).sum());
    let shape: Vec<usize> = sizes.collect();
    let mut pace = Pace::default();
    if U::HAS_CONTENTS {
        // For strings, first computes the lengths of the result's strings, and checks their total size.
        let sizes: Vec<u64> = values.iter().map(|value| value.contents() as u64).collect();
        let mut lengths = vec![];
        let value = value.contents() as u64;
        fill(input.shape(), &sizes, &value, axes, &mut lengths, &mut pace)?;
        let lengths = lengths.iter().map(|length| length + size::TEXT);
        size::admit_texts(lengths.fold(0, u64::saturating_add))?;
    }
    let mut made: Vec<U> = Vec::with_capacity(shape.iter().product());
    fill(input.shape(), values, value, axes, &mut made, &mut pace)?;
    Tensor::from_units(input.element_type(), &shape, made)
}

/// A piece of an axis of the result, by the origin of its elements.
enum Piece {
    /// The constant padding value, repeated this many times.
    Value(usize),
    /// The elements of the input at these indices.
    Places(std::ops::Range<usize>),
    /// Padding at the positions `places`, before or after the input, that repeats values of the input. `kept`
    /// is the range of indices that remains after negative pads.
    Beside {
        mode: Mode,
        kept: std::ops::Range<i64>,
        places: std::ops::Range<i64>,
    },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Value(count) => *count,
            Self::Places(places) => places.len(),
            Self::Beside { places, .. } => places.end.abs_diff(places.start) as usize,
        }
    }
}

/// Writes the pieces of the first axis to `made`, and recurses over the remaining axes.
fn fill<T: Element>(
    shape: &[usize],
    values: &[T],
    value: &T,
    axes: &[Vec<Piece>],
    made: &mut Vec<T>,
    pace: &mut Pace,
) -> Result<()> {
    let (Some((first, rest)), Some((_, inner))) = (axes.split_first(), shape.split_first()) else {
        made.extend(values.first().cloned());
        return Ok(());
    };
    let size: usize = inner.iter().product();
    let filled: usize = rest
        .iter()
        .map(|pieces| pieces.iter().map(Piece::len).sum::<usize>())
        .product();
    let at = |place: usize| &values[place * size..(place + 1) * size];
    let is_whole = |(pieces, &size): (&Vec<Piece>, &usize)| matches!(&**pieces, [Piece::Places(places)] if *places == (0..size));
    let are_whole = rest.iter().zip(inner).all(is_whole);
    for piece in first {
        pace.spend(1)?;
        match piece {
            Piece::Value(count) => fill_up(made, value, count * filled, pace)?,
            Piece::Places(places) if are_whole => {
                pace.append(&values[places.start * size..places.end * size], made)?;
            }
            Piece::Places(places) => {
                for place in places.clone() {
                    fill(inner, at(place), value, rest, made, pace)?;
                }
            }
            Piece::Beside { mode, kept, places } => {
                let mut places = places.clone().map(|at| mode.inside(at, kept));
                if !rest.is_empty() {
                    places.try_for_each(|place| fill(inner, at(place), value, rest, made, pace))?;
                    continue;
                }
                let count = piece.len();
                for first in (0..count).step_by(PART) {
                    pace.spend(PART.min(count - first) as u64)?;
                    made.extend(places.by_ref().take(PART).map(|place| values[place].clone()));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    fn pad(mode: Mode, shape: &[usize], pads: &[i64]) -> Result<Tensor> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|at: usize| at as f32).collect();
        let input = Tensor::from_shape(shape, &values)?.into_arc();
        let pad = Pad {
            mode,
            fixed: Some((pads.to_vec(), -1.0)),
            pads: None,
            value: None,
            axes: None,
        };
        Ok(pad.run(&[input])?.remove(0))
    }

    fn line(mode: Mode, size: usize, before: i64, after: i64) -> Vec<f32> {
        let padded = pad(mode, &[size], &[before, after]).unwrap();
        padded.as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn each_mode_repeats_its_own_places() {
        assert_eq!(line(Mode::Constant, 3, 2, 1), [-1.0, -1.0, 0.0, 1.0, 2.0, -1.0]);
        assert_eq!(
            line(Mode::Reflect, 3, 3, 2),
            [1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]
        );
        assert_eq!(line(Mode::Edge, 3, 2, 1), [0.0, 0.0, 0.0, 1.0, 2.0, 2.0]);
        assert_eq!(
            line(Mode::Wrap, 3, 2, 4),
            [1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
        );
        for mode in [Mode::Constant, Mode::Reflect, Mode::Edge, Mode::Wrap] {
            assert_eq!(line(mode, 4, -1, -2), [1.0]);
            assert_eq!(line(mode, 4, -1, 0), [1.0, 2.0, 3.0]);
        }
        // The negative pad removes more than the input, so the result consists of padding.
        assert_eq!(line(Mode::Constant, 3, -5, 4), [-1.0, -1.0]);
    }

    #[test]
    fn inner_axes_without_pads_are_copied_with_the_others() {
        for mode in [Mode::Constant, Mode::Edge] {
            let padded = pad(mode, &[2, 2, 2], &[0, 1, 0, 0, 0, 0]).unwrap();
            let [first, second] = match mode {
                Mode::Constant => [-1.0, -1.0],
                _ => [0.0, 4.0],
            };
            let beside = |number: f32| [number, if number < 0.0 { number } else { number + 1.0 }];
            let wanted = [
                &beside(first)[..],
                &[0.0, 1.0, 2.0, 3.0],
                &beside(second),
                &[4.0, 5.0, 6.0, 7.0],
            ]
            .concat();
            assert_eq!(
                (padded.shape(), padded.as_slice::<f32>().unwrap()),
                (&[2, 3, 2][..], &*wanted)
            );
        }
        let cut = pad(Mode::Constant, &[2, 3, 1], &[-1, 0, 0, 1, -1, 0]).unwrap();
        assert_eq!(cut.as_slice::<f32>().unwrap(), [3.0, 4.0, -1.0, -1.0]);
    }

    /// Checks that a negative pad removes elements before the other end is padded.
    #[test]
    fn what_is_left_of_a_cut_is_repeated() {
        assert_eq!(line(Mode::Wrap, 4, -1, 3), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        assert_eq!(line(Mode::Wrap, 4, 2, -2), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(line(Mode::Wrap, 4, -2, 5), [2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0]);
        assert_eq!(line(Mode::Wrap, 4, 1, -3), [0.0, 0.0]);
        assert_eq!(line(Mode::Reflect, 4, -1, 2), [1.0, 2.0, 3.0, 2.0, 1.0]);
        assert_eq!(line(Mode::Edge, 4, -2, 2), [2.0, 3.0, 3.0, 3.0]);
        assert_eq!(line(Mode::Edge, 4, 3, -1), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
        for mode in [Mode::Edge, Mode::Reflect, Mode::Wrap] {
            for pads in [[4, -5], [-5, 4], [-4, 4]] {
                let error = pad(mode, &[4], &pads).unwrap_err();
                assert!(error.is::<BadInput>(), "{mode:?} {pads:?}: {error}");
            }
        }
    }

    /// Checks that long pads are stored as a few pieces, since lists of indices would take more memory than
    /// the result.
    #[test]
    fn long_pads_are_few_pieces() {
        for mode in [Mode::Edge, Mode::Reflect, Mode::Wrap] {
            for size in [1, 2, 1000] {
                let pieces = pieces(mode, size, [1 << 20, 1 << 20]).unwrap();
                let places: usize = pieces.iter().map(Piece::len).sum();
                assert_eq!((places, pieces.len()), (size + (2 << 20), 3), "{mode:?}");
            }
        }
    }

    #[test]
    fn texts_are_padded_as_far_as_there_is_room() {
        let texts = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            tensor::<String>(&[texts.len()], texts).unwrap()
        };
        let padded = |text: &str, mode, pads| {
            let axes = [pieces(mode, 1, pads).unwrap()];
            super::padded::<String>(&texts(&[text]), &texts(&["-"]), &axes)
        };
        assert_eq!(
            padded("a", Mode::Constant, [1, 2]).unwrap(),
            texts(&["-", "a", "-", "-"])
        );
        assert_eq!(padded("a", Mode::Wrap, [1, 0]).unwrap(), texts(&["a", "a"]));
        let long = "x".repeat(1 << 20);
        assert_eq!(padded(&long, Mode::Constant, [4200, 0]).unwrap().len(), 4201);
        assert!(padded(&long, Mode::Edge, [4200, 0]).unwrap_err().is::<BadInput>());
    }

    #[test]
    fn nothing_is_made_of_nothing_and_no_more_than_there_is_room_for() {
        let large = 1 << 22;
        let padded = pad(
            Mode::Reflect,
            &[8192, 8192, 0],
            &[large, large, 0, large, large, 0],
        )
        .unwrap();
        assert_eq!(padded.shape(), [8192 + (2 << 22), 8192 + (2 << 22), 0]);
        for (mode, pad_by) in [(Mode::Edge, 1 << 25), (Mode::Constant, 1 << 40)] {
            assert!(pad(mode, &[2], &[pad_by, 0]).is_err());
        }
    }
}
