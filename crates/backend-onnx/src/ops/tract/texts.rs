//! `Concat`, `Expand`, `Gather`, `Tile` and `Where` of texts. tract copies texts without a look at how long they are: one of a megabyte,
//! a million times.

use std::sync::Arc;

use tract_hir::{internal::*, tract_core::broadcast::multi_broadcast};

use super::rewired::Rewire;
use crate::{
    faults::BadInput,
    input_check::within,
    ops::{
        axis,
        elements::{elements, tensor},
        kernel::{Fact, Kernel, typed},
        picked::{Places, picked},
        wiring::facts,
    },
    size,
};

/// Which of the operators it is; of other values it stays tract's.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfTexts {
    Concat { axis: i64 },
    Expand,
    Gather { axis: i64 },
    Tile,
    Where,
}

impl Rewire for OfTexts {
    fn wire<E: Expansion>(
        &self,
        operator: &E,
        prefix: &str,
        model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let is_text = |fact: &Fact| fact.datum_type == DatumType::String;
        match facts(model, inputs)?.iter().any(is_text) {
            true => model.wire_node(prefix, typed(*self), inputs),
            false => operator.wire(prefix, model, inputs),
        }
    }
}

impl Kernel for OfTexts {
    fn name(&self) -> &'static str {
        match self {
            Self::Concat { .. } => "Concat",
            Self::Expand => "Expand",
            Self::Gather { .. } => "Gather",
            Self::Tile => "Tile",
            Self::Where => "Where",
        }
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let shape = match (self, inputs) {
            (Self::Concat { axis }, [first, ..]) => {
                let axis = axis::axis(*axis, first.rank())?;
                let mut shape = first.shape.clone();
                let fits =
                    |input: &Fact| input.datum_type == DatumType::String && input.rank() == shape.len();
                ensure!(
                    inputs.iter().all(fits),
                    "expected texts of the same number of dimensions"
                );
                shape[axis] = inputs.iter().map(|input| input.shape[axis].clone()).sum();
                shape
            }
            (Self::Expand, [input, shape]) => {
                let shape = shape.dims().context("a shape that is not known")?;
                multi_broadcast(&[&input.shape[..], &shape])?
            }
            (Self::Gather { axis }, [data, indices]) => {
                let axis = axis::axis(*axis, data.rank())?;
                gathered(&data.shape, axis, &indices.shape)
            }
            (Self::Tile, [input, repeats]) => {
                let repeats = repeats.dims().context("repetitions that are not known")?;
                ensure!(
                    repeats.len() == input.rank(),
                    "expected a number for each dimension"
                );
                let dims = input.shape.iter().zip(repeats);
                dims.map(|(dim, repeats)| dim.clone() * repeats).collect()
            }
            (Self::Where, [condition, then, otherwise]) => {
                multi_broadcast(&[&condition.shape, &then.shape, &otherwise.shape])?
            }
            _ => bail!("{} has {} inputs", self.name(), inputs.len()),
        };
        Ok(vec![Fact::new(DatumType::String, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let made = match (self, inputs) {
            (Self::Concat { axis }, [first, ..]) => {
                let all = inputs.iter().map(|input| elements::<String>(input));
                let all: Vec<&[String]> = all.collect::<TractResult<_>>()?;
                size::admit_contents(all.into_iter().flatten().map(|text| (text, 1)))?;
                let axis = axis::axis(*axis, first.rank())?;
                Tensor::stack_tensors(axis, inputs)?
            }
            (Self::Expand, [input, shape]) => {
                let sizes = shape.cast_to::<i64>()?;
                let sizes = elements::<i64>(&sizes)?.iter().map(|&size| usize::try_from(size));
                let sizes: TVec<usize> = sizes.collect::<Result<_, _>>()?;
                let shape: TVec<usize> = multi_broadcast(&[input.shape(), &sizes])?;
                size::admit_shape(DatumType::String, &shape)?;
                let texts = input.to_plain_array_view::<String>()?;
                let texts = texts
                    .broadcast(&*shape)
                    .context("shapes that do not fit together")?;
                copied(&shape, || texts.iter())?
            }
            (Self::Gather { axis }, [data, indices]) => {
                let axis = axis::axis(*axis, data.rank())?;
                let shape = gathered(data.shape(), axis, indices.shape());
                size::admit_shape(DatumType::String, &shape)?;
                let indices = indices.cast_to::<i64>()?;
                let places = elements::<i64>(&indices)?.iter();
                let places = places.map(|&index| Ok(within(index, data.shape()[axis])? as usize));
                let places: Vec<usize> = places.collect::<TractResult<_>>()?;
                picked(data, axis, Places::List(&places))?.into_shape(&shape)?
            }
            (Self::Tile, [input, repeats]) => {
                let repeats = repeats.cast_to::<i64>()?;
                let repeats = elements::<i64>(&repeats)?;
                let dims = input.shape().iter().zip(repeats).map(|(&dim, &repeats)| {
                    usize::try_from(repeats)
                        .ok()
                        .and_then(|repeats| dim.checked_mul(repeats))
                });
                let shape: Option<TVec<usize>> = dims.collect();
                let shape = shape.filter(|shape| shape.len() == input.rank());
                let shape = shape.ok_or_else(|| {
                    let dims = input.shape();
                    BadInput(format!("{repeats:?} repetitions of dimensions of {dims:?}"))
                })?;
                size::admit_shape(DatumType::String, &shape)?;
                let texts = elements::<String>(input)?;
                copied(&shape, || tiled(texts, input.shape(), &shape))?
            }
            (Self::Where, [condition, then, otherwise]) => {
                let shapes = [condition.shape(), then.shape(), otherwise.shape()];
                let shape: TVec<usize> = multi_broadcast(&shapes)?;
                size::admit_shape(DatumType::String, &shape)?;
                let condition = condition.to_plain_array_view::<bool>()?;
                let [then, otherwise] = [then, otherwise].map(|texts| texts.to_plain_array_view::<String>());
                let (then, otherwise) = (then?, otherwise?);
                let (Some(condition), Some(then), Some(otherwise)) = (
                    condition.broadcast(&*shape),
                    then.broadcast(&*shape),
                    otherwise.broadcast(&*shape),
                ) else {
                    bail!("shapes that do not fit together");
                };
                let chosen = || {
                    let both = then.iter().zip(otherwise.iter());
                    let all = condition.iter().zip(both);
                    all.map(|(condition, (then, otherwise))| if *condition { then } else { otherwise })
                };
                copied(&shape, chosen)?
            }
            _ => bail!("{} has {} inputs", self.name(), inputs.len()),
        };
        Ok(tvec![made])
    }
}

/// The shape of what is taken along an axis.
fn gathered<D: Clone>(data: &[D], axis: usize, indices: &[D]) -> TVec<D> {
    let parts = [&data[..axis], indices, &data[axis + 1..]];
    parts.into_iter().flatten().cloned().collect()
}

/// Texts of one shape, repeated until they fill another.
fn tiled<'t>(texts: &'t [String], from: &'t [usize], to: &'t [usize]) -> impl Iterator<Item = &'t String> {
    (0..to.iter().product()).map(move |mut index| {
        let (mut place, mut step) = (0, 1);
        for (&from, &to) in from.iter().zip(to).rev() {
            place += index % to % from * step;
            index /= to;
            step *= from;
        }
        &texts[place]
    })
}

/// Copies of texts, which are asked for twice.
fn copied<'t, I: Iterator<Item = &'t String>>(shape: &[usize], texts: impl Fn() -> I) -> TractResult<Tensor> {
    size::admit_contents(texts().map(|text| (text, 1)))?;
    tensor(shape, texts().cloned().collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn texts(shape: &[usize], texts: &[&str]) -> Arc<Tensor> {
        Arc::new(tensor(shape, texts.iter().map(|&text| text.to_owned()).collect()).unwrap())
    }

    fn run(op: OfTexts, inputs: &[Arc<Tensor>]) -> TractResult<Tensor> {
        let fact = &op.outputs(&Fact::of_values(inputs))?[0];
        let made = op.run(inputs)?.remove(0);
        let shape: TVec<TDim> = made.shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(fact.shape, shape);
        Ok(made)
    }

    #[test]
    fn texts_are_copied() {
        let table = texts(&[2, 2], &["a", "b", "c", "d"]);
        let indices = tensor(&[1, 3], vec![1i64, -2, 1]).unwrap();
        for (axis, expected) in [
            (0, texts(&[1, 3, 2], &["c", "d", "a", "b", "c", "d"])),
            (-1, texts(&[2, 1, 3], &["b", "a", "b", "d", "c", "d"])),
        ] {
            let inputs = [table.clone(), Arc::new(indices.clone())];
            assert_eq!(run(OfTexts::Gather { axis }, &inputs).unwrap(), *expected);
        }
        let row = texts(&[2], &["x", "y"]);
        let shape = Arc::new(tensor1(&[3i64, 1]));
        let expanded = run(OfTexts::Expand, &[row.clone(), shape]).unwrap();
        assert_eq!(expanded, *texts(&[3, 2], &["x", "y", "x", "y", "x", "y"]));
        let condition = Arc::new(tensor(&[2, 1], vec![true, false]).unwrap());
        let repeats = Arc::new(tensor1(&[2i64, 2]));
        let tiled = run(OfTexts::Tile, &[texts(&[1, 2], &["a", "b"]), repeats]).unwrap();
        assert_eq!(tiled, *texts(&[2, 4], &["a", "b", "a", "b", "a", "b", "a", "b"]));
        let nothing = Arc::new(tensor1(&[0i64, 3]));
        let tiled = run(OfTexts::Tile, &[texts(&[1, 2], &["a", "b"]), nothing]).unwrap();
        assert_eq!(tiled.shape(), [0, 6]);
        let chosen = run(OfTexts::Where, &[condition, row.clone(), table.clone()]).unwrap();
        assert_eq!(chosen, *texts(&[2, 2], &["x", "y", "c", "d"]));
        let joined = run(OfTexts::Concat { axis: -1 }, &[table.clone(), table]).unwrap();
        assert_eq!(joined, *texts(&[2, 4], &["a", "b", "a", "b", "c", "d", "c", "d"]));
    }

    /// A text of a megabyte, 8192 times.
    #[test]
    fn long_texts_are_not_repeated_without_end() {
        let long = "x".repeat(1 << 20);
        let (one, row) = (texts(&[1], &[&long]), texts(&[8192], &vec!["y"; 8192]));
        let indices = Arc::new(tensor1(&vec![0i64; 8192]));
        let condition = Arc::new(tensor1(&vec![true; 8192]));
        for (op, inputs) in [
            (OfTexts::Gather { axis: 0 }, vec![one.clone(), indices]),
            (OfTexts::Expand, vec![one.clone(), Arc::new(tensor1(&[8192i64]))]),
            (OfTexts::Where, vec![condition, one.clone(), row.clone()]),
            (OfTexts::Concat { axis: 0 }, vec![one.clone(); 8192]),
        ] {
            let error = run(op, &inputs).unwrap_err();
            let text = error.downcast_ref::<BadInput>().unwrap().to_string();
            assert!(text.starts_with("the texts together take 859"), "{text}");
        }
        // One that is not chosen is not counted.
        let condition = Arc::new(tensor1(&vec![false; 8192]));
        assert_eq!(run(OfTexts::Where, &[condition, one, row.clone()]).unwrap(), *row);
    }
}
