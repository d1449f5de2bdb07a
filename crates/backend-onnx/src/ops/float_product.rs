//! Products of two FP32 matrices that both are computed, in row-major order.

use tract_hir::prelude::TractResult;

use super::{
    cells::ScalarProducts,
    computed_product::WeightedSums,
    products::{self, InParts, copy_line},
};
use crate::cancelling::Pace;

/// Below so many rows nothing is packed.
const FEW_ROWS: usize = 4;

/// Multiplications between two looks at whether the request is cancelled.
const PART: usize = 1 << 20;

/// Writes the product of two matrices.
///
/// # Errors
/// As [`Pace::spend`].
pub(super) fn multiply(
    a: &[f32],
    b: &[f32],
    [rows, depth, columns]: [usize; 3],
    made: &mut [f32],
    pace: &mut Pace,
) -> TractResult<()> {
    if depth == 0 || columns == 0 {
        made.fill(0.0);
        return Ok(());
    }
    // One column, whose numbers stand beside each other as those of a row would.
    if columns == 1 {
        let together = (PART / depth).max(4);
        for (a, product) in a.chunks(together * depth).zip(made.chunks_mut(together)) {
            pace.spend(a.len() as u64 / 8 + 1)?;
            pulp::Arch::new().dispatch(ScalarProducts {
                row: b,
                b: a,
                stride: depth,
                product,
            });
        }
        return Ok(());
    }
    let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
    if rows < FEW_ROWS {
        let together = (PART / depth).next_multiple_of(64);
        for (row, sums) in a.chunks_exact(depth).zip(made.chunks_exact_mut(columns)) {
            for (part, sums) in sums.chunks_mut(together).enumerate() {
                pace.spend((sums.len() * depth) as u64 / 8 + 1)?;
                pulp::Arch::new().dispatch(WeightedSums {
                    row,
                    values: &b[part * together..],
                    offsets: &offsets,
                    sums,
                });
            }
        }
        return Ok(());
    }
    InParts {
        rows,
        weights: &products::packed(rows, a),
        values: b,
        offsets: &offsets,
        columns,
    }
    .run(pace, &mut |row, first, sums: &[f32]| {
        copy_line(sums, &mut made[row * columns + first..][..sums.len()]);
    })
}
