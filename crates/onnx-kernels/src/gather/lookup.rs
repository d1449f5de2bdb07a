//! The operator `OneHot`, which turns indices into one-hot vectors.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis,
    elements::{copied, elements, scalar},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{cancelling::Pace, faults::BadInput, node::Node, operator::Compute, size};

/// Builds the operator `OneHot`. For an index out of range, all values are the off value.
pub fn one_hot(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(OneHot {
        axis: Attributes(node).int("axis", -1),
    }))
}

#[derive(Debug)]
struct OneHot {
    axis: i64,
}

impl OneHot {
    fn axis(&self, rank: usize) -> Result<usize> {
        axis::axis(self.axis, rank + 1)
    }
}

impl Kernel for OneHot {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [indices, depth, values] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let depth = match depth.integers().as_deref() {
            None => Dim::unknown(),
            Some(&[depth]) if (0..=MAX_DEPTH).contains(&depth) => depth.to_dim(),
            Some(depth) => bail!(BadInput(format!(
                "the input depth is {depth:?}, expected one number from 0 to {MAX_DEPTH}"
            ))),
        };
        ensure!(
            values.shape.as_slice() == [2.to_dim()],
            "the input values must have two elements, for off and on"
        );
        let mut shape = indices.shape.clone();
        shape.insert(self.axis(shape.len())?, depth);
        Ok(vec![Fact::new(values.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (indices, values) = (&inputs[0], &inputs[2]);
        let depth = scalar::<i64>(&inputs[1])?;
        let axis = self.axis(indices.rank())?;
        // Checks that there is enough memory for the converted indices and for the offsets.
        size::admit_now(indices.len() as u64 * 32)?;
        let mut pace = Pace::default();
        let place = |index: i64| {
            pace.spend(1)?;
            let index = if index < 0 { index + depth } else { index };
            Ok(usize::try_from(index).ok().filter(|_| index < depth))
        };
        let mut hot = 0;
        let places = floored(indices)?.into_iter().map(place);
        let places = places.inspect(|place| hot += usize::from(matches!(place, Ok(Some(_)))));
        let places: Vec<Option<usize>> = places.collect::<Result<_>>()?;
        let mut shape: ShortVec<usize> = indices.shape().into();
        shape.insert(axis, depth as usize);
        let inner: usize = indices.shape()[axis..].iter().product();
        let hot = with_unit!(values.element_type(), U => scatter::<U>(values, (&places, hot), inner, &shape));
        Ok(smallvec![hot?])
    }
}

const MAX_DEPTH: i64 = 1 << 20;

fn scatter<U: Unit>(
    values: &Tensor,
    (places, hot): (&[Option<usize>], usize),
    inner: usize,
    shape: &[usize],
) -> Result<Tensor> {
    let element_type = values.element_type();
    let values = values.as_units::<U>()?;
    let depth = shape
        .iter()
        .product::<usize>()
        .checked_div(places.len())
        .unwrap_or(0);
    let off = (places.len() * depth).saturating_sub(hot);
    size::admit_contents([(&values[0], off), (&values[1], hot)])?;
    let mut pace = Pace::default();
    let mut hot = pace.repeat(&values[0], places.len() * depth)?;
    for (index, place) in places.iter().enumerate() {
        pace.spend(1)?;
        if let Some(place) = place {
            let (outer, lane) = (index / inner, index % inner);
            hot[(outer * depth + place) * inner + lane] = values[1].clone();
        }
    }
    Tensor::from_units(element_type, shape, hot)
}

/// Converts indices, which may be floats, to integers by rounding down.
fn floored(indices: &Tensor) -> Result<Vec<i64>> {
    if indices.element_type() == ElementType::F32 {
        return Pace::default().map(elements::<f32>(indices)?, |&index| index as i64);
    }
    copied::<i64>(&*indices.cast_to::<i64>()?)
}
