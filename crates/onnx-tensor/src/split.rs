//! Splits results into disjoint ranges of lines for several threads. Each part must contain enough work to
//! justify waking a helper thread, which takes a few microseconds. Sums are never split, so results are
//! bit-identical for any number of threads.

use crate::prelude::*;

use crate::{
    cancelling::{PART, Pace, in_parts},
    elements::written,
    reuse,
    tensor::count,
    threads,
};

/// Minimum number of elements to read, compute and write per part: 25 us at 10 GB/s.
pub const ELEMENTS: u64 = 1 << 15;

/// Parts consist of multiples of this number of elements, so that no two threads write to the same cache
/// line.
pub const LINE: usize = 64;

/// Calls `run` for the lines of a result, each of `unit` elements: once for all lines, or, if `work` is large
/// enough for several parts of at least `least`, for disjoint ranges on several threads. `run` receives the
/// index of its first line.
///
/// # Errors
/// Returns the first error of `run`.
pub fn lines<T: Send>(
    made: &mut [T],
    unit: usize,
    [work, least]: [u64; 2],
    run: impl Fn(usize, &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<()> {
    // The trait object lets `lines_by` be compiled once per type, instead of once per `run`.
    lines_by(made, unit, [work, least], &run)
}

/// Computes consecutive lines, starting at the line with the given index.
type Lines<'r, T> = &'r (dyn Fn(usize, &mut [T], &mut Pace) -> Result<()> + Sync);

fn lines_by<T: Send>(made: &mut [T], unit: usize, [work, least]: [u64; 2], run: Lines<'_, T>) -> Result<()> {
    let parts = threads::parts(work, least);
    if parts == 1 {
        return run(0, made, &mut Pace::default());
    }
    let unit = unit.max(1);
    let count = made.len().div_ceil(unit).div_ceil(parts).max(1);
    let items = made.chunks_mut(count * unit).enumerate();
    let items = items.map(|(part, made)| (part * count, made)).collect();
    in_parts(items, |(first, made), pace| run(first, made, pace))
}

/// Creates a tensor, and calls `run` for its lines as [`lines`] does. `run` must set every element.
///
/// On one thread, new memory is zeroed a part at a time, which is then still in the processor's caches.
///
/// # Errors
/// Returns the first error of `run`, and an error if there are more elements than addresses in memory.
pub fn created<T: Element + Copy + Default>(
    shape: &[usize],
    unit: usize,
    work: [u64; 2],
    run: impl Fn(usize, &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<Tensor> {
    created_by(shape, unit, work, &run)
}

fn created_by<T: Element + Copy + Default>(
    shape: &[usize],
    unit: usize,
    work: [u64; 2],
    run: Lines<'_, T>,
) -> Result<Tensor> {
    let (count, unit) = (count(T::ELEMENT_TYPE, shape)?, unit.max(1));
    // Debug builds fill what is written with a pattern, so that tests notice an element that is left out.
    let is_checked = cfg!(debug_assertions);
    if is_checked || threads::parts(work[0], work[1]) > 1 || reuse::has(T::ELEMENT_TYPE, count) {
        return written(shape, |made| lines_by(made, unit, work, run));
    }
    grown(shape, [count, unit], run)
}

/// Creates a tensor of `count` elements as [`created`] does on one thread.
fn grown<T: Element + Copy + Default>(
    shape: &[usize],
    [count, unit]: [usize; 2],
    run: Lines<'_, T>,
) -> Result<Tensor> {
    let together = (PART / unit).max(1) * unit;
    let (mut made, mut pace) = (Vec::with_capacity(count), Pace::default());
    while made.len() < count {
        let start = made.len();
        made.resize(count.min(start + together), T::default());
        run(start / unit, &mut made[start..], &mut pace)?;
    }
    Tensor::from_vec(shape, made)
}

/// Calls `run` on the elements of `tensor` as [`lines`] does, and returns the result. If there are other
/// references to the tensor or its bytes, such as those of a request, its elements are copied first, a part at a
/// time, which is then still in the processor's caches.
///
/// # Errors
/// Returns the first error of `run`, and an error if the elements have another type.
pub fn replaced<T: Element + Copy + Default>(
    mut tensor: Arc<Tensor>,
    unit: usize,
    work: [u64; 2],
    run: impl Fn(usize, &mut [T], &mut Pace) -> Result<()> + Sync,
) -> Result<Arc<Tensor>> {
    if let Some(owned) = Arc::get_mut(&mut tensor).filter(|tensor| tensor.is_owned()) {
        lines(owned.as_slice_mut()?, unit, work, run)?;
        return Ok(tensor);
    }
    let from = tensor.as_slice()?;
    let unit = unit.max(1);
    let together = (PART / unit).max(1);
    let parts = || from.chunks(together * unit);
    if threads::parts(work[0], work[1]) == 1 && !reuse::has(T::ELEMENT_TYPE, from.len()) {
        // A growing vector is not zeroed before its elements are copied.
        let (mut made, mut pace) = (Vec::with_capacity(from.len()), Pace::default());
        for (part, from) in parts().enumerate() {
            let start = made.len();
            pace.append(from, &mut made)?;
            run(part * together, &mut made[start..], &mut pace)?;
        }
        return Ok(Tensor::from_vec(tensor.shape(), made)?.into_arc());
    }
    let mut made = Tensor::unset_of(T::ELEMENT_TYPE, tensor.shape())?;
    lines(made.as_slice_mut()?, unit, work, |first, made, pace| {
        let from = &from[first * unit..][..made.len()];
        let parts = from.chunks(together * unit).zip(made.chunks_mut(together * unit));
        for (part, (from, made)) in parts.enumerate() {
            pace.pairs(from, made, |from, made| made.copy_from_slice(from))?;
            run(first + part * together, made, pace)?;
        }
        Ok(())
    })?;
    Ok(made.into_arc())
}

/// Calls `run` for elements of `from` and the corresponding elements of `made`, on several threads if there
/// are enough elements for parts of at least `least`.
///
/// # Errors
/// Fails if the request is cancelled.
pub fn mapped<A: Sync, B: Send>(
    from: &[A],
    made: &mut [B],
    least: u64,
    run: impl Fn(&[A], &mut [B]) + Sync,
) -> Result<()> {
    let work = [made.len() as u64, least];
    lines(made, LINE, work, |first, made, pace| {
        pace.pairs(&from[first * LINE..][..made.len()], made, &run)
    })
}

/// Creates a tensor, and calls `run` as [`mapped`] does, which must set every element.
///
/// # Errors
/// Fails if the request is cancelled.
pub fn converted<A: Sync, B: Element + Copy + Default>(
    from: &[A],
    shape: &[usize],
    least: u64,
    run: impl Fn(&[A], &mut [B]) + Sync,
) -> Result<Tensor> {
    created(shape, LINE, [from.len() as u64, least], |first, made, pace| {
        pace.pairs(&from[first * LINE..][..made.len()], made, &run)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_grows_is_what_is_written_at_once() {
        for (count, unit) in [
            (0, 1),
            (1, 64),
            (100, 7),
            (3 * PART + 5, 64),
            (2 * PART + 6, PART + 3),
        ] {
            let run = |first: usize, made: &mut [u32], _: &mut Pace| {
                let lines = (first..).zip(made.chunks_mut(unit));
                lines.for_each(|(line, made)| made.fill(line as u32 + 1));
                Ok(())
            };
            let made = grown(&[count], [count, unit], &run).unwrap();
            let wanted: Vec<u32> = (0..count).map(|at| (at / unit) as u32 + 1).collect();
            assert_eq!(made.as_slice::<u32>().unwrap(), wanted);
            let written = created(&[count], unit, [count as u64, 1], run).unwrap();
            assert_eq!(written, made);
        }
    }
}
