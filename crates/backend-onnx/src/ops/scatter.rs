//! `ScatterElements` along a row at a time; tract finds the place of each number by all its coordinates.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_core::ops::array::{ScatterElements, ScatterReduction},
};

use super::{
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, typed},
};
use crate::{faults::BadInput, input_check::within};

/// Puts it in the place of tract's for the numbers that models compute with.
pub(super) fn quicken(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let Some(op) = node.op_as::<ScatterElements>() else {
            continue;
        };
        let types: TVec<DatumType> = model
            .node_input_facts(id)?
            .iter()
            .map(|fact| fact.datum_type)
            .collect();
        let &[data, _, updates] = &*types else { continue };
        if data != updates
            || !matches!(
                data,
                DatumType::F32 | DatumType::F64 | DatumType::I32 | DatumType::I64
            )
        {
            continue;
        }
        let scatter = Scatter {
            axis: op.axis,
            reduction: op.reduction,
        };
        model.node_mut(id).op = Box::new(typed(scatter));
    }
    Ok(())
}

#[derive(Debug)]
struct Scatter {
    axis: usize,
    reduction: ScatterReduction,
}

impl Kernel for Scatter {
    fn name(&self) -> &'static str {
        "ScatterElements"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        Ok(vec![inputs[0].with(inputs[0].datum_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let [data, indices, updates] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let indices = indices.cast_to::<i64>()?;
        let scattered = match data.datum_type() {
            DatumType::F32 => self.scatter::<f32>(data, &indices, updates),
            DatumType::F64 => self.scatter::<f64>(data, &indices, updates),
            DatumType::I32 => self.scatter::<i32>(data, &indices, updates),
            DatumType::I64 => self.scatter::<i64>(data, &indices, updates),
            other => bail!("{other:?} is not scattered here"),
        };
        Ok(tvec![scattered?])
    }
}

impl Scatter {
    fn scatter<T: Number>(&self, data: &Tensor, indices: &Tensor, updates: &Tensor) -> TractResult<Tensor> {
        let (shape, given) = (data.shape(), updates.shape());
        let is_inside = |(axis, (&given, &dim)): (usize, (&usize, &usize))| axis == self.axis || given <= dim;
        if given != indices.shape()
            || given.len() != shape.len()
            || !given.iter().zip(shape).enumerate().all(is_inside)
        {
            bail!(BadInput(format!(
                "indices of {:?} and updates of {given:?} for data of {shape:?}",
                indices.shape()
            )));
        }
        let (indices, updates) = (elements::<i64>(indices)?, elements::<T>(updates)?);
        let mut scattered = elements::<T>(data)?.to_vec();
        ensure!(self.axis < shape.len(), "an axis that is not there");
        let updates = Updates {
            shape,
            axis: self.axis,
            given,
            indices,
            updates,
        };
        // Each is compiled by itself: a call for each number would take longer than the sum.
        match self.reduction {
            ScatterReduction::None => updates.join(&mut scattered, |_, new| new),
            ScatterReduction::Add => updates.join(&mut scattered, T::plus),
            ScatterReduction::Mul => updates.join(&mut scattered, T::times),
            ScatterReduction::Min => updates.join(&mut scattered, T::least),
            ScatterReduction::Max => updates.join(&mut scattered, T::greatest),
        }?;
        tensor(shape, scattered)
    }
}

/// Numbers, and their places in data of a shape.
struct Updates<'a, T> {
    shape: &'a [usize],
    /// The axis along which the indices count.
    axis: usize,
    /// The shape of the indices and updates.
    given: &'a [usize],
    indices: &'a [i64],
    updates: &'a [T],
}

impl<T: Number> Updates<'_, T> {
    /// Joins each update with the number at its place, in row-major order.
    fn join(&self, scattered: &mut [T], join: impl Fn(T, T) -> T) -> TractResult<()> {
        let &Self {
            shape,
            axis,
            given,
            indices,
            updates,
        } = self;
        if updates.is_empty() {
            return Ok(());
        }
        let (last, dim) = (given.len() - 1, shape[axis]);
        let steps: TVec<usize> = (0..shape.len())
            .map(|axis| shape[axis + 1..].iter().product())
            .collect();
        // Along the last axis; the place on the axis that indices name comes from them.
        let step = if axis == last { 0 } else { 1 };
        let mut at: TVec<usize> = tvec![0; last];
        for (indices, updates) in indices
            .chunks_exact(given[last])
            .zip(updates.chunks_exact(given[last]))
        {
            let axes = (0..last).filter(|&other| other != axis);
            let mut base: usize = axes.map(|other| at[other] * steps[other]).sum();
            for (&index, &update) in indices.iter().zip(updates) {
                let place = &mut scattered[base + within(index, dim)? as usize * steps[axis]];
                *place = join(*place, update);
                base += step;
            }
            for (at, &given) in at.iter_mut().zip(given).rev() {
                *at += 1;
                if *at < given {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }
}

/// Arithmetic as NumPy has it: integers wrap, NaN is the least and the greatest.
trait Number: Element + Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn times(self, other: Self) -> Self {
                self * other
            }

            fn least(self, other: Self) -> Self {
                if other < self || other.is_nan() { other } else { self }
            }

            fn greatest(self, other: Self) -> Self {
                if other > self || other.is_nan() { other } else { self }
            }
        }
    )*};
}

integers!(i32, i64);
floats!(f32, f64);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const REDUCTIONS: [ScatterReduction; 5] = [
        ScatterReduction::None,
        ScatterReduction::Add,
        ScatterReduction::Mul,
        ScatterReduction::Min,
        ScatterReduction::Max,
    ];

    fn run<T: Element>(
        op: ScatterElements,
        data: (&[usize], Vec<T>),
        indices: Vec<i64>,
        updates: (&[usize], Vec<T>),
        is_ours: bool,
    ) -> TractResult<Tensor> {
        let mut model = TypedModel::default();
        let inputs = [
            model.add_source("data", T::fact(data.0))?,
            model.add_source("indices", i64::fact(updates.0))?,
            model.add_source("updates", T::fact(updates.0))?,
        ];
        let output = model.wire_node("y", op, &inputs)?;
        model.select_output_outlets(&output)?;
        if is_ours {
            quicken(&mut model)?;
            assert!(model.nodes()[3].op_as::<ScatterElements>().is_none());
        }
        let inputs = tvec![
            tensor(data.0, data.1)?.into(),
            tensor(updates.0, indices)?.into(),
            tensor(updates.0, updates.1)?.into(),
        ];
        Ok(model.into_runnable()?.run(inputs)?[0].clone().into_tensor())
    }

    #[test]
    fn numbers_are_scattered_as_by_tract() {
        for (shape, given) in [
            (&[4, 3, 5][..], &[4, 3, 5][..]),
            (&[4, 3, 5], &[2, 2, 3]),
            (&[6], &[9]),
            (&[3, 7], &[3, 0]),
        ] {
            let count = |shape: &[usize]| shape.iter().product::<usize>();
            for axis in 0..shape.len() {
                if given
                    .iter()
                    .zip(shape)
                    .enumerate()
                    .any(|(at, (given, dim))| at != axis && given > dim)
                {
                    continue;
                }
                // Some places twice, and some from the end.
                let dim = shape[axis] as i64;
                let indices: Vec<i64> = (0..count(given) as i64)
                    .map(|at| at * 7 % (2 * dim) - dim)
                    .collect();
                for reduction in REDUCTIONS {
                    let scattered = |is_ours| {
                        let op = ScatterElements { axis, reduction };
                        let data = (0..count(shape)).map(|at| at as f32 / 3.0).collect();
                        let updates = (0..count(given)).map(|at| 5.0 - at as f32).collect();
                        run(op, (shape, data), indices.clone(), (given, updates), is_ours).unwrap()
                    };
                    assert_eq!(
                        scattered(true),
                        scattered(false),
                        "{shape:?} {given:?} {axis} {reduction:?}"
                    );
                    let whole = |is_ours| {
                        let op = ScatterElements { axis, reduction };
                        let data = (0..count(shape) as i64).collect();
                        let updates = (0..count(given) as i64).map(|at| 5 - at).collect();
                        run(op, (shape, data), indices.clone(), (given, updates), is_ours).unwrap()
                    };
                    assert_eq!(
                        whole(true),
                        whole(false),
                        "{shape:?} {given:?} {axis} {reduction:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_nan_stays() {
        let op = |reduction| ScatterElements { axis: 0, reduction };
        let sum = run(
            op(ScatterReduction::Add),
            (&[1], vec![i64::MAX]),
            vec![0],
            (&[1], vec![1]),
            true,
        );
        assert_eq!(elements::<i64>(&sum.unwrap()).unwrap(), [i64::MIN]);
        for reduction in [ScatterReduction::Min, ScatterReduction::Max] {
            for (data, updates) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let found = run(
                    op(reduction),
                    (&[1], vec![data]),
                    vec![0],
                    (&[1], vec![updates]),
                    true,
                )
                .unwrap();
                assert!(elements::<f32>(&found).unwrap()[0].is_nan());
            }
        }
    }

    #[test]
    fn places_that_are_not_there_are_the_inputs_fault() {
        let op = ScatterElements {
            axis: 0,
            reduction: ScatterReduction::None,
        };
        let error = run(op, (&[2], vec![0.0f32; 2]), vec![2], (&[1], vec![1.0]), true).unwrap_err();
        assert!(
            error.chain().any(<dyn std::error::Error>::is::<BadInput>),
            "{error:?}"
        );
    }
}
