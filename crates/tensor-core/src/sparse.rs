//! Sparse tensors in coordinate (COO) form.

use std::borrow::Cow;

use crate::{Bytes, DType, Shape, SparseError, Tensor, TensorSpec, TensorView, element::cast_or_copy};

/// A sparse tensor in coordinate (COO) form: `nnz` values, each with its coordinates.
///
/// Indices are a `u64[nnz, rank]` tensor and values a `[nnz]` tensor; every index is smaller than its
/// dimension. Entries may be in any order. Coordinates may repeat; the last entry wins when the tensor is
/// made dense. [`SparseCoo::sorted`] gives the canonical form, row-major and without duplicates.
///
/// ```
/// use tensor_core::{Shape, SparseCoo, Tensor};
///
/// // 2 x 3, with 5.0 at (0, 2) and 7.0 at (1, 0).
/// let indices = Tensor::from_vec(Shape::new(&[2, 2])?, vec![0u64, 2, 1, 0])?;
/// let values = Tensor::from_vec(Shape::vector(2), vec![5.0f32, 7.0])?;
/// let sparse = SparseCoo::new(Shape::new(&[2, 3])?, indices, values).unwrap();
///
/// assert_eq!(sparse.nnz(), 2);
/// let dense = sparse.to_dense(1024).unwrap();
/// assert_eq!(dense.to_string(), "[[0. 0. 5.]\n [7. 0. 0.]]");
/// // The caller's budget, not the file's claim, decides what is allocated.
/// assert!(sparse.to_dense(16).is_err());
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SparseCoo {
    spec: TensorSpec,
    indices: Tensor,
    values: Tensor,
}

impl SparseCoo {
    /// Checks that indices and values match and that every index lies inside `shape`.
    ///
    /// # Errors
    /// [`SparseError::Layout`] when `indices` is not `u64[nnz, rank]` or `values` not `[nnz]`;
    /// [`SparseError::IndexOutOfRange`] for the first coordinate outside its axis; [`SparseError::Spec`] when
    /// the dense tensor's byte length does not fit in `u64`.
    pub fn new(shape: Shape, indices: Tensor, values: Tensor) -> Result<Self, SparseError> {
        let spec = TensorSpec::new(values.spec().dtype(), shape)?;
        let &[nnz] = values.shape().dims() else {
            let expected = "a vector".to_owned();
            return Err(SparseError::Layout {
                part: "values",
                expected,
                found: values.spec().clone(),
            });
        };
        let rank = spec.shape().rank();
        if indices.spec().dtype() != DType::U64 || indices.shape().dims() != [nnz, rank as u64] {
            let expected = format!("u64[{nnz}, {rank}]");
            return Err(SparseError::Layout {
                part: "indices",
                expected,
                found: indices.spec().clone(),
            });
        }
        let sparse = Self {
            spec,
            indices,
            values,
        };
        let flat = sparse.flat_indices();
        for (entry, coordinates) in sparse.entries(&flat).enumerate() {
            for (axis, (&index, &dim)) in coordinates.iter().zip(sparse.shape().dims()).enumerate() {
                if index >= dim {
                    return Err(SparseError::IndexOutOfRange {
                        entry: entry as u64,
                        axis,
                        index,
                        dim,
                    });
                }
            }
        }
        drop(flat);
        Ok(sparse)
    }

    /// Keeps the elements of a dense tensor whose bytes are not all zero, in row-major order.
    ///
    /// An element of -0.0 has a bit set and is kept.
    #[must_use]
    pub fn from_dense(dense: &TensorView<'_>) -> Self {
        let width = dense.spec().dtype().size();
        let strides = strides(dense.shape());
        let mut indices: Vec<u64> = Vec::new();
        let mut values = Vec::new();
        for (position, element) in dense.bytes().chunks_exact(width).enumerate() {
            if element.iter().any(|&byte| byte != 0) {
                values.extend_from_slice(element);
                let mut rest = position as u64;
                for &stride in &strides {
                    indices.push(rest / stride);
                    rest %= stride;
                }
            }
        }
        let nnz = (values.len() / width) as u64;
        let part = |dtype, shape: Shape, bytes: Bytes| {
            // The loop above filled both parts together, so the spec is valid.
            let spec = TensorSpec::new(dtype, shape).unwrap_or_else(|_| unreachable!());
            Tensor::new_unchecked_len(spec, bytes)
        };
        let index_shape = Shape::new(&[nnz, strides.len() as u64]).unwrap_or_else(|_| unreachable!());
        let index_bytes = indices
            .iter()
            .flat_map(|index| index.to_le_bytes())
            .collect::<Vec<u8>>();
        Self {
            spec: dense.spec().clone(),
            indices: part(DType::U64, index_shape, index_bytes.into()),
            values: part(dense.spec().dtype(), Shape::vector(nnz), values.into()),
        }
    }

    /// Returns the spec of the dense tensor.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Returns the dimensions of the dense tensor.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.spec.shape()
    }

    /// Returns the number of stored entries.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.values.spec().element_count()
    }

    /// Returns the coordinates, `u64[nnz, rank]`.
    #[must_use]
    pub fn indices(&self) -> &Tensor {
        &self.indices
    }

    /// Returns the values, `[nnz]`, in the order of the coordinates.
    #[must_use]
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Returns the same tensor with its entries in row-major order.
    ///
    /// # Errors
    /// [`SparseError::Duplicate`] when two entries have the same coordinates.
    pub fn sorted(&self) -> Result<Self, SparseError> {
        let flat = self.flat_indices();
        let mut order: Vec<(&[u64], usize)> = self
            .entries(&flat)
            .enumerate()
            .map(|(entry, coordinates)| (coordinates, entry))
            .collect();
        if order.is_sorted_by(|a, b| a.0 < b.0) {
            return Ok(self.clone());
        }
        order.sort_unstable();
        if let Some(pair) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SparseError::Duplicate {
                entry: pair[1].1 as u64,
            });
        }
        let width = self.spec.dtype().size();
        let source = self.values.bytes();
        let mut indices = Vec::with_capacity(self.indices.bytes().len());
        let mut values = Vec::with_capacity(source.len());
        for &(coordinates, entry) in &order {
            indices.extend(coordinates.iter().flat_map(|index| index.to_le_bytes()));
            values.extend_from_slice(&source[entry * width..][..width]);
        }
        Ok(Self {
            spec: self.spec.clone(),
            indices: Tensor::new_unchecked_len(self.indices.spec().clone(), indices.into()),
            values: Tensor::new_unchecked_len(self.values.spec().clone(), values.into()),
        })
    }

    /// Returns the dense tensor, with zeros where nothing is stored. For duplicate coordinates the last value
    /// wins.
    ///
    /// # Errors
    /// [`SparseError::OverBudget`] when the dense tensor takes more than `budget` bytes. In this case,
    /// nothing is allocated.
    pub fn to_dense(&self, budget: u64) -> Result<Tensor, SparseError> {
        let over_budget = || SparseError::OverBudget {
            spec: self.spec.clone(),
            budget,
        };
        let byte_len = self.spec.byte_len();
        if byte_len > budget {
            return Err(over_budget());
        }
        let width = self.spec.dtype().size();
        let mut dense = vec![0u8; usize::try_from(byte_len).map_err(|_| over_budget())?];
        let strides = strides(self.shape());
        let flat = self.flat_indices();
        for (coordinates, value) in self.entries(&flat).zip(self.values.bytes().chunks_exact(width)) {
            let position: u64 = coordinates
                .iter()
                .zip(&strides)
                .map(|(index, stride)| index * stride)
                .sum();
            dense[position as usize * width..][..width].copy_from_slice(value);
        }
        Ok(Tensor::new_unchecked_len(self.spec.clone(), dense.into()))
    }

    /// Returns all coordinates as one slice, `rank` per entry; [`SparseCoo::entries`] splits the slice.
    fn flat_indices(&self) -> Cow<'_, [u64]> {
        cast_or_copy(self.indices.bytes())
    }

    /// Returns the coordinates of each entry, in stored order.
    fn entries<'a>(&self, flat: &'a [u64]) -> impl Iterator<Item = &'a [u64]> + use<'a> {
        let rank = self.shape().rank();
        // `chunks_exact` would panic for a sparse scalar, whose entries have no coordinates.
        (0..self.nnz() as usize).map(move |entry| &flat[entry * rank..][..rank])
    }
}

/// Returns row-major strides in elements. Meaningful only for shapes with elements, whose products cannot
/// overflow.
fn strides(shape: &Shape) -> Vec<u64> {
    let mut stride = 1u64;
    let mut strides: Vec<u64> = shape
        .dims()
        .iter()
        .rev()
        .map(|&dim| {
            let this = stride;
            stride = stride.wrapping_mul(dim.max(1));
            this
        })
        .collect();
    strides.reverse();
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(dims: &[u64], indices: &[u64], values: &[i16]) -> Result<SparseCoo, SparseError> {
        let nnz = values.len() as u64;
        let index_shape = Shape::new(&[nnz, dims.len() as u64]).unwrap();
        let indices = Tensor::from_vec(index_shape, indices.to_vec()).unwrap();
        let values = Tensor::from_vec(Shape::vector(nnz), values.to_vec()).unwrap();
        SparseCoo::new(Shape::new(dims).unwrap(), indices, values)
    }

    #[test]
    fn every_index_is_checked_against_its_axis() {
        let error = sparse(&[2, 3], &[0, 0, 1, 3], &[1, 2]).unwrap_err();
        assert_eq!(
            error,
            SparseError::IndexOutOfRange {
                entry: 1,
                axis: 1,
                index: 3,
                dim: 3
            }
        );
        assert!(sparse(&[2, 3], &[u64::MAX, 0], &[1]).is_err());
        // A shape with a dimension of 0 has no elements, so any entry is out of range.
        assert!(sparse(&[0, 3], &[0, 0], &[1]).is_err());
        assert_eq!(
            sparse(&[0, 3], &[], &[])
                .unwrap()
                .to_dense(0)
                .unwrap()
                .bytes()
                .len(),
            0
        );
    }

    #[test]
    fn parts_must_fit_each_other() {
        let values = Tensor::from_vec(Shape::vector(2), vec![1i16, 2]).unwrap();
        let shape = Shape::new(&[4, 4]).unwrap();
        for index_dims in [[2, 1], [2, 3], [3, 2]] {
            let count = index_dims[0] * index_dims[1];
            let indices = Tensor::from_vec(Shape::new(&index_dims).unwrap(), vec![0u64; count as usize]);
            let error = SparseCoo::new(shape.clone(), indices.unwrap(), values.clone()).unwrap_err();
            assert!(
                matches!(error, SparseError::Layout { part: "indices", .. }),
                "{error}"
            );
        }
        let signed = Tensor::from_vec(Shape::new(&[2, 2]).unwrap(), vec![0i64; 4]).unwrap();
        assert!(SparseCoo::new(shape, signed, values).is_err());
    }

    #[test]
    fn dense_and_back() {
        let original = sparse(&[2, 2, 2], &[0, 0, 1, 1, 1, 0], &[-3, 9]).unwrap();
        let dense = original.to_dense(16).unwrap();
        assert_eq!(dense.to_vec::<i16>().unwrap(), [0, -3, 0, 0, 0, 0, 9, 0]);
        assert_eq!(SparseCoo::from_dense(&dense.view()), original);
    }

    #[test]
    fn a_small_claim_of_a_huge_tensor_is_refused_before_it_is_allocated() {
        let bomb = sparse(&[1 << 20, 1 << 20], &[5, 5], &[1]).unwrap();
        let error = bomb.to_dense(1 << 30).unwrap_err();
        assert!(
            matches!(
                error,
                SparseError::OverBudget {
                    budget: 0x4000_0000,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(bomb.nnz(), 1);
    }

    #[test]
    fn sorting_orders_entries_and_refuses_repeats() {
        let unsorted = sparse(&[3, 3], &[2, 0, 0, 1, 0, 0], &[1, 2, 3]).unwrap();
        let sorted = unsorted.sorted().unwrap();
        assert_eq!(sorted.indices().to_vec::<u64>().unwrap(), [0, 0, 0, 1, 2, 0]);
        assert_eq!(sorted.values().to_vec::<i16>().unwrap(), [3, 2, 1]);
        assert_eq!(sorted.to_dense(64).unwrap(), unsorted.to_dense(64).unwrap());

        let repeated = sparse(&[3, 3], &[1, 1, 0, 0, 1, 1], &[1, 2, 3]).unwrap();
        assert_eq!(repeated.sorted(), Err(SparseError::Duplicate { entry: 2 }));
        assert_eq!(repeated.to_dense(64).unwrap().to_vec::<i16>().unwrap()[4], 3);
    }

    #[test]
    fn a_sparse_scalar_has_entries_without_coordinates() {
        let scalar = sparse(&[], &[], &[7]).unwrap();
        assert_eq!(scalar.to_dense(2).unwrap().to_vec::<i16>().unwrap(), [7]);
        assert_eq!(
            SparseCoo::from_dense(&scalar.to_dense(2).unwrap().view()).nnz(),
            1
        );
    }
}
