//! The mask that is added to the scores of attention.

use onnx_tensor::{
    cancelling::Pace,
    elements::{copied, elements},
    faults::ensure_input,
    prelude::*,
    size,
};

/// The score of a masked key: the lowest finite number, as in ONNX Runtime.
pub(crate) const LEAST: f32 = f32::MIN;

/// The mask term that is added to scores. The term broadcasts over batch, heads and rows.
pub(crate) struct Mask {
    numbers: Vec<f32>,
    dims: [usize; 4],
}

impl Mask {
    pub(crate) fn of(given: &Tensor, scores: [usize; 4]) -> Result<Self> {
        let mut dims = [1; 4];
        let shape = given.shape();
        ensure_input!(
            shape.len() <= 4,
            "a mask of {} dimensions, expected 4 at most",
            shape.len()
        );
        dims[4 - shape.len().min(4)..].copy_from_slice(&shape[shape.len().saturating_sub(4)..]);
        let fits = dims
            .iter()
            .zip(&scores)
            .take(3)
            .all(|(&dim, &score)| dim == score || dim == 1);
        ensure_input!(
            fits && dims[3] == scores[3],
            "a mask of {shape:?} for scores of {scores:?}"
        );
        let numbers = match given.element_type() {
            ElementType::Bool => {
                size::admit_now((given.len() * size_of::<f32>()) as u64)?;
                Pace::default().map(elements::<bool>(given)?, |&is_chosen| match is_chosen {
                    true => 0.0,
                    false => f32::NEG_INFINITY,
                })?
            }
            _ => copied::<f32>(given)?,
        };
        Ok(Self { numbers, dims })
    }

    /// Adds the mask term to `scores`, which are consecutive rows of a head, starting at row `first`.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn add(
        &self,
        [batch, head, first]: [usize; 3],
        scores: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let [batches, heads, rows, total] = self.dims;
        let place = |at: usize, count: usize| if count == 1 { 0 } else { at };
        let start = (place(batch, batches) * heads + place(head, heads)) * rows;
        for (row, scores) in scores.chunks_exact_mut(total.max(1)).enumerate() {
            let added = &self.numbers[(start + place(first + row, rows)) * total..][..total];
            pace.pairs(added, scores, |added, scores| {
                for (score, added) in scores.iter_mut().zip(added) {
                    // Keeps the sum finite, so that the softmax of a fully masked row is not NaN.
                    let sum = *score + added;
                    *score = if sum < LEAST { LEAST } else { sum };
                }
            })?;
        }
        Ok(())
    }
}
