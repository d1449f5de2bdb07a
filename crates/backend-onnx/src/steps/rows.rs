//! Tensors stacked along an axis: what iterations give, and sequences joined.

use std::sync::Arc;

use tract_onnx::{
    prelude::{DatumType, Tensor, TractResult},
    tract_hir::internal::{TractErrorContext, bail},
};

use super::values::Failure;
use crate::{
    faults::BadInput,
    size::{self, MAX_BYTES},
};

/// What each iteration gives of some outputs.
pub(super) struct Rows {
    pub(super) made: Vec<Vec<Arc<Tensor>>>,
    bytes: u64,
}

impl Rows {
    pub(super) fn new(count: usize) -> Self {
        Self {
            made: vec![Vec::new(); count],
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, index: usize, row: Arc<Tensor>) -> Result<(), Failure> {
        // What tract has of each row beside its bytes.
        const ROW: u64 = 320;
        // Bytes after which the memory that is free is looked at again.
        const PERIOD: u64 = 128 << 20;
        let before = self.bytes;
        self.bytes += ROW + (row.len() * row.datum_type().size_of()) as u64;
        if self.bytes > MAX_BYTES {
            let limit = size::gib(MAX_BYTES);
            return Err(BadInput(format!("a loop gives more than the limit of {limit}")).into());
        }
        if before / PERIOD != self.bytes / PERIOD {
            // Stacking needs as much again.
            size::admit_now(self.bytes)?;
        }
        if let Some(first) = self.made[index].first()
            && (first.shape() != row.shape() || first.datum_type() != row.datum_type())
        {
            return Err(BadInput("iterations of a loop give values of different sizes".to_owned()).into());
        }
        self.made[index].push(row);
        Ok(())
    }

    /// All rows of an output in one, along a new axis.
    pub(super) fn stacked(
        &mut self,
        index: usize,
        axis: i64,
        declared: Option<&tract_onnx::pb::type_proto::Tensor>,
    ) -> TractResult<Tensor> {
        let rows = std::mem::take(&mut self.made[index]);
        match rows.first() {
            Some(first) => {
                let axis = place(axis, first.rank() + 1)?;
                let mut shape = first.shape().to_vec();
                shape.insert(axis, 1);
                stacked(&rows, axis, &shape)
            }
            None => empty(declared),
        }
    }
}

/// Tensors in one, each with a shape that has the axis already.
pub(super) fn stacked(rows: &[Arc<Tensor>], axis: usize, shape: &[usize]) -> TractResult<Tensor> {
    let rows = rows.iter().map(|row| (**row).clone().into_shape(shape));
    Tensor::stack_tensors(axis, &rows.collect::<TractResult<Vec<Tensor>>>()?)
}

/// No rows of what the file declares; dimensions that it does not tell are 0, as in ONNX Runtime.
fn empty(declared: Option<&tract_onnx::pb::type_proto::Tensor>) -> TractResult<Tensor> {
    use tract_onnx::pb::tensor_shape_proto::dimension::Value;
    let declared = declared.context("a loop without iterations gives a value of unknown type")?;
    let datatype = crate::dtype::from_onnx(declared.elem_type).and_then(crate::dtype::to_tract);
    let datum_type: DatumType = datatype.context("a loop gives a value of a type that is not supported")?;
    let mut shape = vec![0];
    for dim in declared.shape.iter().flat_map(|shape| &shape.dim) {
        shape.push(match dim.value {
            Some(Value::DimValue(size)) => usize::try_from(size).unwrap_or(0),
            _ => 0,
        });
    }
    Tensor::zero_dt(datum_type, &shape)
}

/// An axis, counted from the start.
pub(super) fn place(axis: i64, rank: usize) -> TractResult<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_start) {
        Ok(place) if place < rank => Ok(place),
        _ => bail!("axis {axis} of {rank} dimensions"),
    }
}
