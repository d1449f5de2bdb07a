//! Sums and means along axes.

use std::sync::Arc;

use tract_hir::internal::*;

use super::compute::{Compute, integers};
use crate::{
    lowered::OnnxNode,
    ops::{attributes::Attributes, axis::axis, sums},
};

/// `ReduceMean` and `ReduceSum` of FP32 and FP64.
#[derive(Debug)]
pub(super) struct Reduce {
    is_mean: bool,
    axes: Vec<i64>,
    keeps_dims: bool,
    no_axes_is_no_op: bool,
}

impl Reduce {
    pub(super) fn of(node: &OnnxNode) -> Self {
        let attributes = Attributes(node);
        Self {
            is_mean: node.op_type == "ReduceMean",
            axes: attributes.ints("axes").to_vec(),
            keeps_dims: attributes.int("keepdims", 1) != 0,
            no_axes_is_no_op: attributes.int("noop_with_empty_axes", 0) != 0,
        }
    }
}

impl Compute for Reduce {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let input = &inputs[0];
        // Of nothing there is another answer.
        if !matches!(input.datum_type(), DatumType::F32 | DatumType::F64) || input.len() == 0 {
            return Ok(None);
        }
        let axes = match inputs.get(1) {
            Some(axes) => integers(axes)?,
            None => self.axes.clone(),
        };
        let mut reduced = vec![axes.is_empty() && !self.no_axes_is_no_op; input.rank()];
        for given in axes {
            reduced[axis(given, input.rank())?] = true;
        }
        if !reduced.contains(&true) {
            return Ok(Some(tvec![input.clone()]));
        }
        let dims = input.shape().iter().zip(&reduced);
        let kept = dims.filter(|(_, reduced)| self.keeps_dims || !**reduced);
        let shape: TVec<usize> = kept
            .map(|(&dim, &reduced)| if reduced { 1 } else { dim })
            .collect();
        let count: usize = shape.iter().product();
        let share = self.is_mean.then(|| count as f64 / input.len() as f64);
        let sums = sums::along(input, reduced, share)?;
        Ok(Some(tvec![Arc::new(sums.into_shape(&shape)?)]))
    }
}

/// `GlobalAveragePool` of FP32 and FP64.
#[derive(Debug)]
pub(super) struct GlobalAverage;

impl Compute for GlobalAverage {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let input = &inputs[0];
        let is_known = matches!(input.datum_type(), DatumType::F32 | DatumType::F64);
        if !is_known || input.len() == 0 || input.rank() < 3 {
            return Ok(None);
        }
        let reduced = (0..input.rank()).map(|axis| axis > 1).collect();
        let places: usize = input.shape()[2..].iter().product();
        let means = sums::along(input, reduced, Some(1.0 / places as f64))?;
        Ok(Some(tvec![Arc::new(means)]))
    }
}
