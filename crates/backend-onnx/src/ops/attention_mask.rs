//! What ONNX Runtime's `Attention` adds to its scores for a mask, which has one of several forms.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    attributes::Attributes,
    elements::{elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    building::BuildContext,
    faults::{BadInput, Unsupported},
    lowered::OnnxNode,
};

/// From a mask and scores of `batch`, heads, rows and columns to what is added to the scores: nothing where the mask lets
/// through, and elsewhere a number far below zero.
pub(crate) fn attention_mask(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(AttentionMask {
        filter: Attributes(node).float("mask_filter_value", -10000.0),
    }))
}

#[derive(Debug)]
struct AttentionMask {
    filter: f32,
}

impl Kernel for AttentionMask {
    fn name(&self) -> &'static str {
        "AttentionMask"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [mask, scores] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(scores.rank() == 4, "scores of {} dimensions", scores.rank());
        if mask.datum_type != DatumType::I32 {
            bail!(Unsupported::Here(
                "is supported with masks of INT32 only".to_owned()
            ));
        }
        let shape = match *mask.shape.as_slice() {
            // How long each row is. Twice as many numbers would have the beginnings too.
            [ref batch] if *batch == scores.shape[0] => {
                tvec![batch.clone(), 1.to_dim(), 1.to_dim(), scores.shape[3].clone()]
            }
            [ref batch, ref columns] => tvec![batch.clone(), 1.to_dim(), 1.to_dim(), columns.clone()],
            [ref batch, ref rows, ref columns] => {
                tvec![batch.clone(), 1.to_dim(), rows.clone(), columns.clone()]
            }
            _ => bail!(Unsupported::Here(
                "masks of this form are not supported".to_owned()
            )),
        };
        Ok(vec![Fact::new(DatumType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (mask, scores) = (elements::<i32>(&inputs[0])?, inputs[1].shape());
        let value = |lets_through: bool| if lets_through { 0.0 } else { self.filter };
        let (shape, values): ([usize; 4], Vec<f32>) = match *inputs[0].shape() {
            [batch] => {
                let columns = scores[3];
                let rows = mask.iter().map(|&length| {
                    let length = usize::try_from(length).ok().filter(|&length| length <= columns);
                    length.ok_or_else(|| BadInput("a length of a mask is not within its row".to_owned()))
                });
                let lengths = rows.collect::<Result<Vec<_>, _>>()?;
                let row = |length: usize| (0..columns).map(move |column| value(column < length));
                (
                    [batch, 1, 1, columns],
                    lengths.into_iter().flat_map(row).collect(),
                )
            }
            [batch, columns] => (
                [batch, 1, 1, columns],
                mask.iter().map(|&mask| value(mask > 0)).collect(),
            ),
            [batch, rows, columns] => (
                [batch, 1, rows, columns],
                mask.iter().map(|&mask| value(mask > 0)).collect(),
            ),
            _ => bail!("a mask of {} dimensions", inputs[0].rank()),
        };
        Ok(tvec![tensor(&shape, values)?])
    }
}

/// What is added to scores so that no row sees columns that come after it; the last row sees all.
pub(crate) fn causal_mask(_: &BuildContext, _: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(CausalMask))
}

#[derive(Debug)]
struct CausalMask;

impl Kernel for CausalMask {
    fn name(&self) -> &'static str {
        "CausalMask"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [_, _, rows, columns] = &*inputs[0].shape else {
            bail!("scores of {} dimensions", inputs[0].rank());
        };
        Ok(vec![Fact::new(
            DatumType::F32,
            [1.into(), 1.into(), rows.clone(), columns.clone()],
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let &[_, _, rows, columns] = inputs[0].shape() else {
            bail!("scores of {} dimensions", inputs[0].rank());
        };
        let mut values = vec![0.0; rows * columns];
        for (row, values) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            let seen = (row + 1 + columns).saturating_sub(rows).min(columns);
            values[seen..].fill(f32::MIN);
        }
        Ok(tvec![tensor(&[1, 1, rows, columns], values)?])
    }
}
