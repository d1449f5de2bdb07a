//! `GatherElements` of numbers.

use onnx_tensor::prelude::*;

use crate::{
    gather::coordinates::{advance, coordinates},
    least_work::ELEMENTS,
};
use onnx_tensor::{cancelling::PART, elements::elements, input_check::within, split};

/// Cost per element, relative to a loop that reads and writes one element.
const COST: u64 = 4;

/// Returns the elements of `data` whose position on `axis` is given by `indices`, and whose other coordinates
/// are those of the index. `indices` has no larger dimensions than `data` except along `axis`, and elements.
pub(crate) fn gathered<U: Unit>(data: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    let (shape, given) = (data.shape(), indices.shape());
    let mut made = Tensor::unset_of(data.element_type(), given)?;
    let indices = indices.cast_to::<i64>()?;
    let indices = elements::<i64>(&indices)?;
    let data = data.as_units::<U>()?;
    let step = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let steps: ShortVec<usize> = (0..shape.len()).map(step).collect();
    let (last, size) = (given.len() - 1, shape[axis]);
    let (line, work) = (given[last], [indices.len() as u64 * COST, ELEMENTS]);
    split::lines(made.as_units_mut::<U>()?, line, work, |first, units, pace| {
        let mut at = coordinates(first, &given[..last]);
        let rows = indices[first * line..].chunks_exact(line);
        for (row, units) in rows.zip(units.chunks_exact_mut(line)) {
            let axes = (0..last).filter(|&other| other != axis);
            let base: usize = axes.map(|other| at[other] * steps[other]).sum();
            for (part, (row, units)) in row.chunks(PART).zip(units.chunks_mut(PART)).enumerate() {
                pace.spend(row.len() as u64)?;
                match axis == last {
                    true => take(&data[base..][..size], [size, 1, 0], row, units)?,
                    // Without elements along the axis, the index is out of range, wherever its row begins.
                    false => {
                        let data = data.get(base + part * PART..).unwrap_or_default();
                        take(data, [size, steps[axis], 1], row, units)?;
                    }
                }
            }
            advance(&mut at, &given[..last]);
        }
        Ok(())
    })?;
    Ok(made)
}

/// Copies, for each index, the element at `index * step`. After each index, moves on by `ahead` elements.
#[inline(always)]
fn take<U: Unit>(
    data: &[U],
    [size, step, ahead]: [usize; 3],
    indices: &[i64],
    units: &mut [U],
) -> Result<()> {
    for (at, (unit, &index)) in units.iter_mut().zip(indices).enumerate() {
        let from_start = if index < 0 {
            index.wrapping_add(size as i64)
        } else {
            index
        };
        let place = from_start as usize;
        if place >= size {
            within(index, size)?;
        }
        unit.clone_from(&data[place * step + at * ahead]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::threads::Threads;

    #[test]
    fn no_index_fits_an_axis_without_elements() {
        let (data, indices) = (
            Tensor::zero::<f32>(&[0, 200, 1000]).unwrap(),
            Tensor::zero::<i64>(&[1, 200, 1000]).unwrap(),
        );
        for threads in [1, 2] {
            let pool: &'static Threads = Box::leak(Box::new(Threads::new(threads)));
            let _run = pool.start(0);
            assert!(gathered::<u32>(&data, &indices, 0).is_err(), "{threads} threads");
        }
    }
}
