//! Computes the mask term of ONNX Runtime's `Attention`, for each format of the mask.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator that converts a mask into the term added to scores of `batch` x heads x rows x
/// columns: 0 for visible keys, and a large negative number for masked ones.
pub fn attention_mask(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(AttentionMask {
        filter: Attributes(node).float("mask_filter_value", -10000.0),
    }))
}

#[derive(Debug)]
struct AttentionMask {
    filter: f32,
}

impl Kernel for AttentionMask {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [mask, scores] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(scores.rank() == 4, "scores of {} dimensions", scores.rank());
        if mask.element_type != ElementType::I32 {
            bail!(Unsupported::Here(
                "is supported with masks of INT32 only".to_owned()
            ));
        }
        let shape: ShortVec<Dim> = match *mask.shape.as_slice() {
            [ref count] if of_batch(count, &scores.shape[0]) => {
                smallvec![scores.shape[0], 1.to_dim(), 1.to_dim(), scores.shape[3]]
            }
            [ref batch, ref columns] => smallvec![*batch, 1.to_dim(), 1.to_dim(), *columns],
            [ref batch, ref rows, ref columns] => {
                smallvec![*batch, 1.to_dim(), *rows, *columns]
            }
            _ => bail!(Limit(format!(
                "is not supported with a mask of the shape {:?} for a batch of {}",
                mask.shape, scores.shape[0]
            ))),
        };
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (mask, scores) = (elements::<i32>(&inputs[0])?, inputs[1].shape());
        let value = |lets_through: bool| if lets_through { 0.0 } else { self.filter };
        let mut pace = Pace::default();
        let (shape, values): ([usize; 4], Vec<f32>) = match *inputs[0].shape() {
            [_] => {
                let [batch, _, _, columns] = *scores else {
                    bail!("scores of {} dimensions", scores.len());
                };
                let end = |&end: &i32| {
                    let end = usize::try_from(end).map(|end| end.min(columns));
                    end.map_err(|_| BadInput("a length or position of a mask is below zero".to_owned()))
                };
                // If `batch` more numbers follow the end positions, they are the start positions.
                let starts = mask.get(batch..).filter(|starts| starts.len() == batch);
                let mut values = pace.repeat(&self.filter, batch * columns)?;
                for (index, length) in mask.iter().take(batch).enumerate() {
                    pace.spend(1)?;
                    let start = starts.map_or(Ok(0), |starts| end(&starts[index]))?;
                    let seen = start..end(length)?.max(start);
                    pace.over(&mut values[index * columns..][seen], |seen| seen.fill(0.0))?;
                }
                ([batch, 1, 1, columns], values)
            }
            [batch, columns] => ([batch, 1, 1, columns], pace.map(mask, |&mask| value(mask > 0))?),
            [batch, rows, columns] => (
                [batch, 1, rows, columns],
                pace.map(mask, |&mask| value(mask > 0))?,
            ),
            _ => bail!("a mask of {} dimensions", inputs[0].rank()),
        };
        Ok(smallvec![tensor(&shape, values)?])
    }
}

/// Returns whether a mask of `count` numbers has one of the formats with values per batch entry: end
/// positions; end and start positions; or lengths with the cumulative lengths of queries and keys.
fn of_batch(count: &Dim, batch: &Dim) -> bool {
    let batches = |factor: i64, more: i64| *batch * factor + more;
    [batches(1, 0), batches(2, 0), batches(3, 2)].contains(count)
}

/// Builds the causal mask: row `i` (a query) attends to columns (keys) up to index `past + i`, where `past`
/// is the number of past keys in the optional second input. The last row attends to all columns.
pub fn causal_mask(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(CausalMask))
}

#[derive(Debug)]
struct CausalMask;

impl Kernel for CausalMask {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [_, _, rows, columns] = &*inputs[0].shape else {
            bail!("scores of {} dimensions", inputs[0].rank());
        };
        Ok(vec![Fact::new(
            ElementType::F32,
            [1.into(), 1.into(), *rows, *columns],
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let &[_, _, rows, columns] = inputs[0].shape() else {
            bail!("scores of {} dimensions", inputs[0].rank());
        };
        let past = inputs.get(1).and_then(|past| past.shape().get(2).copied());
        let past = past.unwrap_or(0);
        let mut values = vec![0.0; rows * columns];
        let last = rows.saturating_sub(1);
        let mut pace = Pace::default();
        for (row, values) in values.chunks_exact_mut(columns.max(1)).enumerate().take(last) {
            pace.spend(1)?;
            let seen = past.saturating_add(row + 1).min(columns);
            pace.over(&mut values[seen..], |values| values.fill(f32::MIN))?;
        }
        Ok(smallvec![tensor(&[1, 1, rows, columns], values)?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn keys_are_seen_from_their_start_to_their_end() {
        let scores = Tensor::zero::<f32>(&[2, 1, 1, 4]).unwrap().into_arc();
        let masked = |numbers: &[i32]| {
            let mask = AttentionMask { filter: -7.0 };
            let outputs = mask.run(&[Tensor::vector(numbers).into_arc(), scores.clone()]);
            outputs.map(|outputs| elements::<f32>(&outputs[0]).unwrap().to_vec())
        };
        let (o, x) = (0.0, -7.0);
        assert_eq!(masked(&[3, 9]).unwrap(), [o, o, o, x, o, o, o, o]);
        // The mask contains the end positions, followed by the start positions. With a start after its end,
        // no key is visible.
        assert_eq!(masked(&[3, 1, 1, 2]).unwrap(), [x, o, o, x, x, x, x, x]);
        assert!(masked(&[3, -1]).unwrap_err().is::<BadInput>());
    }
}
