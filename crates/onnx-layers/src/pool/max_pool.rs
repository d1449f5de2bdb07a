//! Maxima of windows and their indices, for `MaxPool`.

use onnx_tensor::prelude::*;

use crate::pool::{axis::Axis, pooling};
use onnx_tensor::cancelling::{PART, Pace};
use onnx_tensor::elements::{elements, tensor, written};

/// Returns the maximum of each window and, if `wants_places`, its index in the image. Each position of an
/// image has `depth` elements.
pub(crate) fn pooled(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    wants_places: bool,
) -> Result<(Tensor, Option<Vec<i64>>)> {
    macro_rules! pooled {
        ($least:expr) => {
            pooled_from(input, axes, depth, shape, wants_places, $least)
        };
    }
    match input.element_type() {
        ElementType::F32 => pooled!(f32::NEG_INFINITY),
        ElementType::F64 => pooled!(f64::NEG_INFINITY),
        ElementType::I8 => pooled!(i8::MIN),
        ElementType::U8 => pooled!(u8::MIN),
        other => bail!("a pool of {other:?}"),
    }
}

fn pooled_from<T: Element + Copy + PartialOrd>(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    wants_places: bool,
    least: T,
) -> Result<(Tensor, Option<Vec<i64>>)> {
    let numbers = elements::<T>(input)?;
    if !wants_places {
        let greatest = written(shape, |greatest| {
            pooling::fold(axes, depth, numbers, greatest, least, greater)
        })?;
        return Ok((greatest, None));
    }
    let mut pace = Pace::default();
    let mut greatest = pace.repeat(&least, shape.iter().product())?;
    let mut places = pace.repeat(&-1, greatest.len())?;
    find_places(axes, depth, numbers, &mut greatest, &mut places)?;
    Ok((tensor(shape, greatest)?, Some(places)))
}

/// Finds the first maximum of each window and its index in the image.
fn find_places<T: Copy + PartialOrd>(
    axes: &[Axis],
    depth: usize,
    images: &[T],
    greatest: &mut [T],
    places: &mut [i64],
) -> Result<()> {
    let image = axes.iter().map(|axis| axis.size).product::<usize>() * depth;
    let result = axes.iter().map(|axis| axis.count).product::<usize>() * depth;
    let (Some((last, outer)), true) = (axes.split_last(), image > 0 && result > 0) else {
        return Ok(());
    };
    let results = greatest
        .chunks_exact_mut(result)
        .zip(places.chunks_exact_mut(result));
    // For each window along the last axis, its first index in the image and its number of elements.
    let mut pace = Pace::default();
    let taken = pace.indices(last.count, |window| {
        let mut places = last.taken(window);
        let count = places.len();
        (places.next().unwrap_or(0), count)
    })?;
    let mut lines = Vec::new();
    for (image, (greatest, places)) in images.chunks_exact(image).zip(results) {
        let results = greatest
            .chunks_exact_mut(last.count * depth)
            .zip(places.chunks_exact_mut(last.count * depth));
        for (at, (greatest, places)) in results.enumerate() {
            lines.clear();
            add_lines(outer, at, 0, &mut lines, &mut pace)?;
            let windows = greatest
                .chunks_exact_mut(depth)
                .zip(places.chunks_exact_mut(depth));
            for ((greatest, places), &(first, count)) in windows.zip(&taken) {
                pace.spend(1)?;
                for line in &lines {
                    for step in 0..count {
                        let place = line * last.size + first + step * last.dilation;
                        let numbers = &image[place * depth..][..depth];
                        for part in (0..depth)
                            .step_by(PART)
                            .map(|first| first..depth.min(first + PART))
                        {
                            pace.spend(part.len() as u64)?;
                            let results = greatest[part.clone()].iter_mut().zip(&mut places[part.clone()]);
                            for ((greatest, at), &number) in results.zip(&numbers[part]) {
                                if *at < 0 || !is_kept(*greatest, number) {
                                    (*greatest, *at) = (number, place as i64);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Collects the image lines that the windows of one result line cover. Only one result line is handled at a
/// time, since lists for all of them could take more memory than the image.
fn add_lines(
    axes: &[Axis],
    result_line: usize,
    line: usize,
    lines: &mut Vec<usize>,
    pace: &mut Pace,
) -> Result<()> {
    pace.spend(1)?;
    let Some((axis, inner)) = axes.split_first() else {
        lines.push(line);
        return Ok(());
    };
    let below: usize = inner.iter().map(|axis| axis.count).product();
    for place in axis.taken(result_line / below) {
        add_lines(inner, result_line % below, line * axis.size + place, lines, pace)?;
    }
    Ok(())
}

/// Converts a row-major index into a column-major one (`storage_order` 1).
pub(crate) fn by_columns(mut place: usize, sizes: &[usize]) -> usize {
    let mut result = 0;
    for (axis, &size) in sizes.iter().enumerate().rev() {
        let before: usize = sizes[..axis].iter().product();
        result += place % size.max(1) * before;
        place /= size.max(1);
    }
    result
}

/// Returns the maximum of two numbers, and NaN if one of them is NaN. The order of the comparisons lets the
/// compiler use the processor's maximum.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN")]
fn greater<T: Copy + PartialOrd>(greatest: T, value: T) -> T {
    let larger = if value > greatest { value } else { greatest };
    if value != value { value } else { larger }
}

/// Returns whether `greatest` remains the maximum when compared with `value`. NaN always remains.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN")]
fn is_kept<T: Copy + PartialOrd>(greatest: T, value: T) -> bool {
    greatest >= value || greatest != greatest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_maximum_with_nan_is_nan_wherever_it_is() {
        let depth = 17;
        let axis = Axis {
            size: 2,
            count: 1,
            kernel: 2,
            stride: 2,
            dilation: 1,
            pad: 0,
        };
        for element in [0, 15, 16] {
            for position in 0..4 {
                let mut image = vec![-1.0f32; 4 * depth];
                image[position * depth + element] = f32::NAN;
                let image = tensor(&[1, 2, 2, depth], image).unwrap();
                let (greatest, _) = pooled(&image, &[axis; 2], depth, &[1, 1, 1, depth], false).unwrap();
                for (at, &found) in elements::<f32>(&greatest).unwrap().iter().enumerate() {
                    assert!(
                        if at == element {
                            found.is_nan()
                        } else {
                            found == -1.0
                        },
                        "{position}, {at}: {found}"
                    );
                }
            }
        }
    }

    #[test]
    fn places_are_counted_by_columns() {
        for row in 0..2 {
            for column in 0..3 {
                assert_eq!(by_columns(row * 3 + column, &[2, 3]), row + column * 2);
            }
        }
        let (a, b, c) = (1, 2, 3);
        assert_eq!(by_columns((a * 3 + b) * 4 + c, &[2, 3, 4]), a + b * 2 + c * 6);
    }
}
