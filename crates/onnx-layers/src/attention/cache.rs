//! Key-value caches in preallocated buffers: operators that write new rows, and that read the rows written so
//! far.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis::axis,
    cancelling::{PART, Pace},
    faults::{Unsupported, ensure_input},
    integers::integers,
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::zeros,
};

/// Builds the operator `TensorScatter`, which writes rows into a buffer. There is one start position per
/// batch entry, or one for all.
pub fn tensor_scatter(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let is_circular = match attributes.text("mode", "linear") {
        "linear" => false,
        "circular" => true,
        other => bail!("the mode is {other:?}, expected 'linear' or 'circular'"),
    };
    Ok(Box::new(TensorScatter {
        axis: attributes.int("axis", -2),
        is_circular,
    }))
}

#[derive(Debug)]
struct TensorScatter {
    axis: i64,
    is_circular: bool,
}

impl Compute for TensorScatter {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [buffer, update, ..] = inputs else {
            bail!("expected 2 inputs or more, found {}", inputs.len());
        };
        if buffer.element_type == ElementType::String {
            bail!(Unsupported::Anywhere("is not supported for strings".to_owned()));
        }
        let along = axis(self.axis, buffer.rank())?;
        let fits = |at: usize| match (buffer.shape[at].to_usize(), update.shape[at].to_usize()) {
            (Some(room), Some(rows)) if at == along => rows <= room,
            (Some(size), Some(other)) => size == other,
            _ => true,
        };
        ensure_input!(
            along > 0
                && buffer.element_type == update.element_type
                && buffer.rank() == update.rank()
                && (0..buffer.rank()).all(fits),
            "an update of {:?} for a cache of {:?} along axis {along}, expected as many dimensions, the same ones but for that axis, and another axis than 0",
            update.shape,
            buffer.shape
        );
        Ok(Some(vec![buffer.with(buffer.element_type)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let starts = match inputs.get(2) {
            Some(starts) => positions(starts)?,
            None => vec![0],
        };
        let mut buffer = inputs.remove(0).own()?;
        let shape = buffer.shape().to_vec();
        let update = &inputs[0];
        let along = axis(self.axis, shape.len())?;
        let (batch, room, rows) = (shape[0], shape[along], update.shape()[along]);
        ensure_input!(
            (starts.len() == batch || starts.len() == 1)
                && (self.is_circular
                    || starts
                        .iter()
                        .all(|&start| start.checked_add(rows).is_some_and(|end| end <= room))),
            "{rows} rows are written from {starts:?} on into {batch} batches with room for {room}"
        );
        let width = shape[along + 1..].iter().product::<usize>() * buffer.element_type().size_of();
        let update = update.as_bytes()?;
        if update.is_empty() {
            return Ok(smallvec![Arc::new(buffer)]);
        }
        let outer: usize = shape[..along].iter().product();
        let mut pace = Pace::default();
        let parts = buffer.as_bytes_mut()?.chunks_exact_mut(room * width);
        for (index, (part, update)) in parts.zip(update.chunks_exact(rows * width)).enumerate() {
            let start = starts[if starts.len() == 1 {
                0
            } else {
                index / (outer / batch)
            }];
            for (row, update) in update.chunks_exact(width).enumerate() {
                let at = (start % room + row) % room * width;
                pace.copy_bytes(update, &mut part[at..at + width])?;
            }
        }
        Ok(smallvec![Arc::new(buffer)])
    }
}

/// Builds the operator `CachedRows`, which reads the first rows of a buffer of `batch` x heads x rows x
/// width. The number of rows read is the number of past rows (second input) plus the number of rows of the
/// third input.
///
/// The optional fourth input is the indirection of a beam search. For each group, beam and past row, it
/// contains the index (within the group) of the beam that owns the row.
pub fn cached_rows(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(CachedRows))
}

#[derive(Debug)]
struct CachedRows;

impl Kernel for CachedRows {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [buffer, past, new, beams @ ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let ([batch, heads, _, width], [_, _, added, _]) = (&*buffer.shape, &*new.shape) else {
            bail!(
                "caches of {} and rows of {} dimensions",
                buffer.rank(),
                new.rank()
            );
        };
        let beams = beams.first();
        ensure_input!(
            buffer.element_type == ElementType::F32
                && past.element_type.is_integer()
                && beams.is_none_or(|beams| beams.rank() == 3 && beams.element_type.is_integer()),
            "needs a cache of FP32, past_sequence_length of INT32, and cache_indirection of 3 dimensions"
        );
        let count = match &past.constant {
            Some(past) => one(past)?.to_dim() + added,
            None => Dim::unknown(),
        };
        Ok(vec![Fact::new(ElementType::F32, [*batch, *heads, count, *width])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (buffer, past) = (&inputs[0], one(&inputs[1])?);
        let &[batch, heads, room, width] = buffer.shape() else {
            bail!("a cache of {} dimensions", buffer.rank());
        };
        let count = past.saturating_add(inputs[2].shape()[2]);
        ensure_input!(
            count <= room,
            "past_sequence_length is {past}, and {} rows more do not fit into a cache of {room}",
            inputs[2].shape()[2]
        );
        let from = buffer.as_slice::<f32>()?;
        let mut made = zeros(ElementType::F32, &[batch, heads, count, width])?;
        if made.is_empty() {
            return Ok(smallvec![made]);
        }
        let beams = match inputs.get(3) {
            Some(beams) => Some(Beams::of(beams, batch, past)?),
            None => None,
        };
        let mut pace = Pace::default();
        let parts = made.as_slice_mut::<f32>()?.chunks_exact_mut(count * width);
        for (index, to) in parts.enumerate() {
            let own = index * room * width;
            pace.pairs(&from[own..own + count * width], to, |from, to| {
                to.copy_from_slice(from);
            })?;
            let Some(beams) = &beams else {
                continue;
            };
            for (row, to) in to.chunks_exact_mut(width).enumerate().take(past) {
                pace.spend(4)?;
                let at = ((beams.source(index / heads, row) * heads + index % heads) * room + row) * width;
                pace.pairs(&from[at..at + width], to, |from, to| to.copy_from_slice(from))?;
            }
        }
        Ok(smallvec![made])
    }
}

/// For each beam and row, the beam that owns the row.
struct Beams {
    /// Number of beams in each group.
    count: usize,
    rows: usize,
    sources: Vec<usize>,
}

impl Beams {
    fn of(given: &Tensor, batch: usize, past: usize) -> Result<Self> {
        let &[groups, count, rows] = given.shape() else {
            bail!("cache_indirection of {} dimensions", given.rank());
        };
        let sources = positions(given)?;
        ensure_input!(
            groups.checked_mul(count) == Some(batch)
                && rows >= past
                && sources.iter().all(|&source| source < count),
            "cache_indirection of {:?} for a batch of {batch} with {past} rows, or a beam in it that is not among {count}",
            given.shape()
        );
        Ok(Self { count, rows, sources })
    }

    /// Returns the batch index of the beam that owns `row` of `beam`. Both are indices over all groups.
    fn source(&self, beam: usize, row: usize) -> usize {
        beam / self.count * self.count + self.sources[beam * self.rows + row]
    }
}

/// Reads positions, and refuses negative ones.
fn positions(given: &Tensor) -> Result<Vec<usize>> {
    let numbers = integers(given)?;
    let mut pace = Pace::default();
    let mut positions = Vec::with_capacity(numbers.len());
    for numbers in numbers.chunks(PART) {
        pace.spend(numbers.len() as u64)?;
        for &number in numbers {
            let position = usize::try_from(number).ok();
            ensure_input!(
                position.is_some(),
                "a position is {number}, expected none below 0"
            );
            positions.push(position.unwrap_or_default());
        }
    }
    Ok(positions)
}

/// Reads the only element of a tensor.
fn one(given: &Tensor) -> Result<usize> {
    match positions(given)?[..] {
        [number] => Ok(number),
        ref numbers => bail!(onnx_tensor::faults::BadInput(format!(
            "past_sequence_length has {} numbers, expected 1",
            numbers.len()
        ))),
    }
}
