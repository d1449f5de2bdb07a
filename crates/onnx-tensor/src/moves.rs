//! Moves elements of any type: slices tensors along an axis, concatenates and broadcasts them.

use std::borrow::Borrow;

use anyhow::{Context, Result, ensure};

use crate::{
    ShortVec, Tensor, Unit,
    cancelling::{PART, Pace},
    with_unit,
};

impl Tensor {
    /// Returns the element at `index` in row-major order, as a tensor of rank 0.
    ///
    /// # Errors
    /// Fails if the index is out of range.
    pub fn nth(&self, index: usize) -> Result<Self> {
        ensure!(
            index < self.len(),
            "expected an element at index {index}, found {} elements",
            self.len()
        );
        with_unit!(self.element_type(), U => {
            Self::from_units(self.element_type(), &[], self.as_units::<U>()?[index..=index].to_vec())
        })
    }

    /// Returns the slice `start..end` along an axis.
    ///
    /// # Errors
    /// Fails if the axis does not exist, if the range is not within it, or if the run is cancelled.
    ///
    /// ```
    /// use onnx_tensor::Tensor;
    ///
    /// let table = Tensor::matrix(&[[1i64, 2, 3], [4, 5, 6]]);
    /// assert_eq!(table.slice(1, 1, 3)?, Tensor::matrix(&[[2i64, 3], [5, 6]]));
    /// # Ok::<(), onnx_tensor::prelude::Error>(())
    /// ```
    pub fn slice(&self, axis: usize, start: usize, end: usize) -> Result<Self> {
        let size = size_of_axis(self.shape(), axis)?;
        ensure!(
            start <= end && end <= size,
            "the slice {start}..{end} does not lie within the {size} elements of axis {axis}"
        );
        let mut shape: ShortVec<usize> = self.shape().into();
        shape[axis] = end - start;
        if self.is_empty() {
            return Self::zero_of(self.element_type(), &shape);
        }
        let inner = shape[axis + 1..].iter().product::<usize>();
        with_unit!(self.element_type(), U => {
            let mut units = Vec::with_capacity(self.len() / size * (end - start));
            let mut pace = Pace::default();
            for block in self.as_units::<U>()?.chunks_exact(size * inner) {
                append(&mut units, &block[start * inner..end * inner], &mut pace)?;
            }
            Self::from_units(self.element_type(), &shape, units)
        })
    }

    /// Concatenates tensors along an axis.
    ///
    /// # Errors
    /// Fails if the list is empty, if the tensors differ in type, or in shape along another axis, or if the
    /// run is cancelled.
    pub fn concat(axis: usize, tensors: &[impl Borrow<Self>]) -> Result<Self> {
        let first = tensors.first().context("no tensors to concatenate")?.borrow();
        size_of_axis(first.shape(), axis)?;
        let mut shape: ShortVec<usize> = first.shape().into();
        shape[axis] = 0;
        for tensor in tensors.iter().map(Borrow::borrow) {
            let is_same =
                |other: usize| other == axis || tensor.shape().get(other) == first.shape().get(other);
            ensure!(
                tensor.rank() == first.rank() && (0..first.rank()).all(is_same),
                "the shapes {:?} and {:?} cannot be concatenated along axis {axis}",
                first.shape(),
                tensor.shape()
            );
            ensure!(
                tensor.element_type() == first.element_type(),
                "expected elements of {}, found {}",
                first.element_type(),
                tensor.element_type()
            );
            shape[axis] = shape[axis]
                .checked_add(tensor.shape()[axis])
                .context("the concatenated axis is too long")?;
        }
        let total = tensors.iter().map(|tensor| tensor.borrow().len()).sum();
        if total == 0 {
            return Self::zero_of(first.element_type(), &shape);
        }
        let outer = shape[..axis].iter().product::<usize>();
        with_unit!(first.element_type(), U => {
            let parts = tensors.iter().map(|tensor| tensor.borrow().as_units::<U>());
            let parts = parts.collect::<Result<Vec<&[U]>>>()?;
            let mut units = Vec::with_capacity(total);
            let mut pace = Pace::default();
            for at in 0..outer {
                for part in &parts {
                    let block = part.len() / outer;
                    append(&mut units, &part[at * block..][..block], &mut pace)?;
                }
            }
            Self::from_units(first.element_type(), &shape, units)
        })
    }

    /// Broadcasts the tensor to `shape`: repeats axes of size 1, and prepends missing axes.
    ///
    /// # Errors
    /// Fails if another axis has a different size than the shape, or if the run is cancelled.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self> {
        let missing = shape.len().checked_sub(self.rank());
        let fits = missing.filter(|&missing| {
            let mut axes = self.shape().iter().zip(&shape[missing..]);
            axes.all(|(&from, &to)| from == 1 || from == to)
        });
        let missing =
            fits.with_context(|| format!("the shape {:?} cannot be broadcast to {shape:?}", self.shape()))?;
        let mut made = Self::zero_of(self.element_type(), shape)?;
        if made.is_empty() {
            return Ok(made);
        }
        with_unit!(self.element_type(), U => {
            let (from, to) = (self.as_units::<U>()?, made.as_units_mut::<U>()?);
            repeat(from, self.shape(), &shape[missing..], to, &mut Pace::default())?;
        });
        Ok(made)
    }
}

/// Appends a copy of a block. Even for blocks of a few elements, this costs little more than copying them.
fn append<U: Unit>(units: &mut Vec<U>, block: &[U], pace: &mut Pace) -> Result<()> {
    if block.len() > PART {
        return pace.append(block, units);
    }
    pace.spend(1 + block.len() as u64)?;
    units.extend_from_slice(block);
    Ok(())
}

/// Broadcasts `from` from the shape `sizes` to `shape`, which has the same rank, and repeats the result until
/// `to` is full. None of the slices may be empty.
fn repeat<U: Unit>(
    from: &[U],
    sizes: &[usize],
    shape: &[usize],
    to: &mut [U],
    pace: &mut Pace,
) -> Result<()> {
    if let [unit] = from {
        return pace.over(to, |to| to.fill(unit.clone()));
    }
    if sizes == shape {
        return copies(from, to, pace);
    }
    let part = from.len() / sizes[0];
    let block = shape.iter().product::<usize>();
    let (first, others) = to.split_at_mut(block);
    for (at, to) in first.chunks_exact_mut(block / shape[0]).enumerate() {
        // An axis of size 1 is repeated.
        let at = if sizes[0] == 1 { 0 } else { at };
        repeat(&from[at * part..][..part], &sizes[1..], &shape[1..], to, pace)?;
    }
    copies(first, others, pace)
}

/// Fills `to` with copies of `from`.
fn copies<U: Unit>(from: &[U], to: &mut [U], pace: &mut Pace) -> Result<()> {
    for to in to.chunks_exact_mut(from.len()) {
        pace.pairs(from, to, |from, to| to.clone_from_slice(from))?;
    }
    Ok(())
}

/// Returns the number of elements along an axis.
fn size_of_axis(shape: &[usize], axis: usize) -> Result<usize> {
    let size = shape.get(axis).copied();
    size.with_context(|| format!("expected an axis below the rank {}, found {axis}", shape.len()))
}
