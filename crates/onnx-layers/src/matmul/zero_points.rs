//! Subtracts zero points from 8-bit factors, and rounds results to 8 bits.

use std::ops::Range;

use onnx_tensor::prelude::*;

use crate::{
    least_work::ELEMENTS,
    quant::quantize::{self, low_bits},
};
use onnx_tensor::elements::elements;
use onnx_tensor::{
    cancelling::Pace,
    faults::{Refusal, Unsupported},
    split,
};

/// Returns an error for types other than 8-bit integers.
pub(crate) fn expect_bytes(element_type: ElementType) -> Result<()> {
    match element_type {
        ElementType::U8 | ElementType::I8 => Ok(()),
        other => {
            Err(Unsupported::Anywhere(format!("is not supported for {other:?}, expected 8 bits")).into())
        }
    }
}

/// How the elements of a factor share zero points.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    /// There is one zero point per row, of this length.
    Row(usize),
    /// One zero point per column; the numbers are the rows and columns of each matrix.
    Column([usize; 2]),
}

/// Subtracts zero points: one for all elements, one per line of a matrix, or one per line of all matrices.
///
/// # Errors
/// Returns [`Refusal`] for any other number of zero points.
pub(crate) fn without_zero_points(
    factor: &Tensor,
    zero_points: Option<&Tensor>,
    line: Line,
    matrices: usize,
    pace: &mut Pace,
) -> Result<Vec<i16>> {
    let given = match zero_points {
        Some(zero_points) => quantize::integers(zero_points)?,
        None => vec![0],
    };
    let given = pace.map(&given, |&number| number as i16)?;
    let for_all = if given.len() == 1 { given[0] } else { 0 };
    let mut numbers = vec![0i16; factor.len()];
    match factor.element_type() {
        ElementType::I8 => split::mapped(elements::<i8>(factor)?, &mut numbers, ELEMENTS, |from, to| {
            quantize::each_to(from, to, |number| i16::from(number) - for_all);
        })?,
        ElementType::U8 => split::mapped(elements::<u8>(factor)?, &mut numbers, ELEMENTS, |from, to| {
            quantize::each_to(from, to, |number| i16::from(number) - for_all);
        })?,
        other => bail!("a factor of {other:?}"),
    }
    if numbers.is_empty() || given.len() == 1 {
        return Ok(numbers);
    }
    let lines = match line {
        Line::Row(width) => numbers.len() / width / matrices,
        Line::Column([_, columns]) => columns,
    };
    if given.len() != lines && given.len() != lines * matrices {
        bail!(Refusal(format!(
            "has {} zero points for {matrices} matrices of {lines} rows or columns",
            given.len()
        )));
    }
    match line {
        Line::Row(width) => {
            for (row, zero_point) in numbers.chunks_exact_mut(width).zip(given.iter().cycle()) {
                pace.over(row, |row| row.iter_mut().for_each(|number| *number -= zero_point))?;
            }
        }
        Line::Column([rows, columns]) => {
            let of_matrices = given.chunks_exact(columns).cycle();
            for (matrix, zero_points) in numbers.chunks_exact_mut(rows * columns).zip(of_matrices) {
                for row in matrix.chunks_exact_mut(columns) {
                    pace.pairs(zero_points, row, |zero_points, row| {
                        let pairs = row.iter_mut().zip(zero_points);
                        pairs.for_each(|(number, zero_point)| *number -= zero_point);
                    })?;
                }
            }
        }
    }
    Ok(numbers)
}

/// Subtracts a zero point from the elements `range` of a factor.
pub(crate) fn less(
    factor: &Tensor,
    range: Range<usize>,
    zero_point: i32,
    pace: &mut Pace,
) -> Result<Vec<i16>> {
    let mut numbers = vec![0i16; range.len()];
    // `zero_point` has 8 bits.
    let zero_point = zero_point as i16;
    match factor.element_type() {
        ElementType::I8 => pace.pairs(&elements::<i8>(factor)?[range], &mut numbers, |from, to| {
            quantize::each_to(from, to, |number| i16::from(number) - zero_point);
        })?,
        _ => pace.pairs(&elements::<u8>(factor)?[range], &mut numbers, |from, to| {
            quantize::each_to(from, to, |number| i16::from(number) - zero_point);
        })?,
    }
    Ok(numbers)
}

/// Requantizes a sum: scales it, rounds ties to even, adds the zero point, and saturates to the 8-bit type
/// whose minimum is `least`.
#[inline(always)]
pub(crate) fn rounded(sum: f32, scale: f32, zero_point: i32, least: i32) -> i32 {
    let (below, above) = ((least - zero_point) as f32, (least + 255 - zero_point) as f32);
    let scaled = sum * scale;
    let scaled = if scaled.is_nan() { 0.0 } else { scaled };
    // `clamp` would check its bounds, which prevents vectorization.
    let scaled = if scaled < below { below } else { scaled };
    let scaled = if scaled > above { above } else { scaled };
    i32::from(low_bits(scaled) as i16) + zero_point
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn zero_points_are_for_all_for_lines_or_for_lines_of_each_matrix() {
        let factor = Tensor::from_shape(&[2, 1, 2], &[1u8, 2, 3, 4]).unwrap();
        let of = |zero_points: &[u8], line: Line| {
            let zero_points = Tensor::vector(zero_points);
            without_zero_points(&factor, Some(&zero_points), line, 2, &mut Pace::default())
        };
        let (row, column) = (Line::Row(2), Line::Column([1, 2]));
        assert_eq!(of(&[1], row).unwrap(), [0, 1, 2, 3]);
        assert_eq!(of(&[1, 2], row).unwrap(), [0, 1, 1, 2]);
        assert_eq!(of(&[1, 2], column).unwrap(), [0, 0, 2, 2]);
        assert_eq!(of(&[1, 2, 3, 255], column).unwrap(), [0, 0, 0, -251]);
        assert!(of(&[1, 2, 3], column).unwrap_err().is::<Refusal>());
        assert!(of(&[], row).unwrap_err().is::<Refusal>());
    }

    #[test]
    fn sums_are_rounded_to_even_and_kept_within_their_type() {
        let found = [1.0, 3.0, 5.0, 1000.0, -1000.0].map(|sum| rounded(sum, 0.5, 10, 0));
        assert_eq!(found, [10, 12, 12, 255, 0]);
        let found = [1.0, 3.0, -3.0, 1000.0, -1000.0].map(|sum| rounded(sum, 0.5, -10, -128));
        assert_eq!(found, [-10, -8, -12, 127, -128]);
        assert_eq!([0.0, 1.0].map(|sum| rounded(sum, f32::NAN, 7, 0)), [7; 2]);
        assert_eq!(
            [0.0, 1.0, -1.0].map(|sum| rounded(sum, f32::INFINITY, 7, 0)),
            [7, 255, 0]
        );
        for (zero_point, least) in [(0, 0), (255, 0), (-128, -128), (127, -128)] {
            for sum in -2000..2000 {
                let expected = (sum as f32 * 0.25).round_ties_even() as i32 + zero_point;
                assert_eq!(
                    rounded(sum as f32, 0.25, zero_point, least),
                    expected.clamp(least, least + 255)
                );
            }
        }
    }
}
