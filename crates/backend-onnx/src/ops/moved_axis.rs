//! An axis at another place, which is what `Transpose` is made of. Where what moves are single numbers, tract goes through the memory in
//! the order of one side alone.

use std::sync::Arc;

use tract_hir::{internal::*, tract_core::ops::change_axes::AxisOp};

use super::kernel::{Fact, Kernel, typed};

/// Takes the place of tract's in a plan.
pub(super) fn quicken(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let node = &model.nodes[id];
        let Some(&AxisOp::Move(from, to)) = node.op_as::<AxisOp>() else {
            continue;
        };
        let fact = model.outlet_fact(node.inputs[0])?;
        if fact.datum_type.is_copy() && !fact.is_exotic() {
            model.nodes[id].op = Box::new(typed(MovedAxis { from, to }));
        }
    }
    Ok(())
}

#[derive(Debug)]
struct MovedAxis {
    from: usize,
    to: usize,
}

impl MovedAxis {
    fn moved<D: Clone>(&self, shape: &[D]) -> TVec<D> {
        let mut moved: TVec<D> = shape.into();
        let dim = moved.remove(self.from);
        moved.insert(self.to, dim);
        moved
    }
}

impl Kernel for MovedAxis {
    fn name(&self) -> &'static str {
        "MovedAxis"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        Ok(vec![Fact::new(
            inputs[0].datum_type,
            self.moved(&inputs[0].shape),
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (input, shape) = (&inputs[0], inputs[0].shape());
        let mut made = Tensor::zero_dt(input.datum_type(), &self.moved(shape))?;
        if made.len() == 0 {
            return Ok(tvec![made]);
        }
        // The axis changes places with all that it passes.
        let (first, last) = (self.from.min(self.to), self.from.max(self.to));
        let split = if self.from < self.to { first + 1 } else { last };
        let product = |range: std::ops::Range<usize>| shape[range].iter().product::<usize>();
        let (rows, columns) = (product(first..split), product(split..last + 1));
        let bytes = product(last + 1..shape.len()) * input.datum_type().size_of();
        let matrices = input.as_bytes().chunks_exact(rows * columns * bytes);
        for (from, to) in matrices.zip(made.as_bytes_mut().chunks_exact_mut(rows * columns * bytes)) {
            match bytes {
                1 => transpose::<1>(from, to, rows, columns),
                2 => transpose::<2>(from, to, rows, columns),
                4 => transpose::<4>(from, to, rows, columns),
                8 => transpose::<8>(from, to, rows, columns),
                16 => transpose::<16>(from, to, rows, columns),
                _ => {
                    for (at, to) in to.chunks_exact_mut(bytes).enumerate() {
                        let place = at % rows * columns + at / rows;
                        to.copy_from_slice(&from[place * bytes..][..bytes]);
                    }
                }
            }
        }
        Ok(tvec![made])
    }
}

/// Turns a matrix of elements of so many bytes, in tiles that stay in the nearest cache.
pub(super) fn transpose<const BYTES: usize>(from: &[u8], to: &mut [u8], rows: usize, columns: usize) {
    const TILE: usize = 16;
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    for first_row in (0..rows).step_by(TILE) {
        let count = TILE.min(rows - first_row);
        for first in (0..columns).step_by(TILE) {
            for column in first..columns.min(first + TILE) {
                let to = &mut to[column * rows + first_row..][..count];
                let from = from[first_row * columns + column..].iter().step_by(columns);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn axes_move_as_in_tract() {
        let shapes: [&[usize]; 6] = [
            &[5, 7],
            &[37, 18],
            &[2, 3, 4, 5],
            &[3, 20, 33, 2],
            &[1, 4, 1, 3, 2],
            &[2, 0, 3],
        ];
        for shape in shapes {
            let count = shape.iter().product::<usize>() as i64;
            let numbers = Tensor::from_shape(shape, &(0..count).collect::<Vec<i64>>()).unwrap();
            for datum_type in [DatumType::U8, DatumType::I16, DatumType::F32, DatumType::I64] {
                let numbers = numbers.cast_to_dt(datum_type).unwrap().into_owned();
                for (from, to) in (0..shape.len()).flat_map(|from| (0..shape.len()).map(move |to| (from, to)))
                {
                    let expected = numbers.clone().move_axis(from, to).unwrap();
                    let found = MovedAxis { from, to }.run(&[numbers.clone().into_arc_tensor()]);
                    assert_eq!(
                        found.unwrap()[0],
                        expected,
                        "{datum_type:?} {shape:?} from {from} to {to}"
                    );
                }
            }
        }
    }
}
