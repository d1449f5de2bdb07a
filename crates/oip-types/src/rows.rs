//! Concatenates and splits tensors along axis 0, for batching.

use std::iter;

use bytes::Bytes;
use tensor_core::{SpecError, Tensor, TensorSpec};

use crate::{BytesTensor, ErrorCode, ServiceError, TensorValue};

impl TensorValue {
    /// Returns the length of axis 0; `None` for a scalar.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        self.shape().dims().first().copied()
    }

    /// Concatenates tensors of the same datatype and trailing dimensions along axis 0. A single tensor is
    /// returned as is; several are copied once.
    ///
    /// ```
    /// use oip_types::TensorValue;
    /// use tensor_core::{Shape, Tensor};
    ///
    /// let rows = |dims: &[u64], values: Vec<i8>| TensorValue::from(Tensor::from_vec(Shape::new(dims).unwrap(), values).unwrap());
    /// let parts = [rows(&[1, 2], vec![1, 2]), rows(&[2, 2], vec![3, 4, 5, 6])];
    /// let joined = TensorValue::join_rows(&[&parts[0], &parts[1]])?;
    /// assert_eq!(joined, rows(&[3, 2], vec![1, 2, 3, 4, 5, 6]));
    /// assert_eq!(joined.split_rows(&[1, 2])?, parts);
    /// # Ok::<(), oip_types::ServiceError>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) when the tensors differ in datatype or trailing
    /// dimensions or are scalars, or `parts` is empty; [`Overloaded`](ErrorCode::Overloaded) when there is no
    /// memory for the copy.
    pub fn join_rows(parts: &[&Self]) -> Result<Self, ServiceError> {
        let (first, others) = match parts {
            [] => return Err(ServiceError::invalid("expected tensors to join, found none")),
            [only] => return Ok((*only).clone()),
            [first, others @ ..] => (*first, others),
        };
        let fits = |other: &&&Self| {
            let (these, those) = (first.shape().dims(), other.shape().dims());
            first.datatype() == other.datatype()
                && these.len() == those.len()
                && these.get(1..) == those.get(1..)
        };
        if let Some(misfit) = others.iter().find(|other| !fits(other)) {
            return Err(ServiceError::invalid(format!(
                "{}{} and {}{} cannot be combined in a batch",
                first.datatype(),
                first.shape(),
                misfit.datatype(),
                misfit.shape(),
            )));
        }
        let mut rows = parts.iter().filter_map(|part| part.rows());
        let rows = rows.try_fold(0u64, u64::checked_add).unwrap_or(u64::MAX);
        let shape = first.shape().with_leading_dim(rows).map_err(invalid)?;

        let mut raw = Vec::new();
        let mut lens = parts.iter().map(|part| part.raw().len());
        let len = lens.try_fold(0usize, usize::checked_add);
        let reserved = raw.try_reserve_exact(len.unwrap_or(usize::MAX));
        reserved.map_err(|_| {
            ServiceError::new(
                ErrorCode::Overloaded,
                "not enough memory for a batch; try again later",
            )
        })?;
        parts.iter().for_each(|part| raw.extend_from_slice(part.raw()));

        match first {
            // The inputs are valid, and the concatenated shape has as many elements as all of them together.
            Self::Bytes(_) => Ok(Self::Bytes(BytesTensor::new_unchecked(shape, raw.into()))),
            Self::Fixed(first) => {
                let spec = TensorSpec::new(first.spec().dtype(), shape).map_err(invalid)?;
                Tensor::new(spec, raw).map(Self::Fixed).map_err(invalid)
            }
        }
    }

    /// Splits axis 0 into pieces of `counts` rows, which share the tensor's bytes. The offsets of byte
    /// strings cannot be computed, so their elements are read once, in order.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) when the tensor is a scalar or its number of rows is
    /// not the sum of `counts`.
    pub fn split_rows(&self, counts: &[u64]) -> Result<Vec<Self>, ServiceError> {
        let expected = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        if self.rows() != expected || expected.is_none() {
            let expected = expected.unwrap_or(u64::MAX);
            return Err(ServiceError::invalid(format!(
                "expected {expected} rows, found shape {}",
                self.shape()
            )));
        }
        let mut start = 0;
        let pieces = counts.iter().map(|count| {
            let rows = start..start + count;
            start = rows.end;
            rows
        });
        match self {
            Self::Fixed(tensor) => pieces
                .map(|rows| tensor.rows(rows).map(Self::Fixed).map_err(invalid))
                .collect(),
            Self::Bytes(tensor) => split_strings(tensor, counts),
        }
    }
}

fn split_strings(tensor: &BytesTensor, counts: &[u64]) -> Result<Vec<TensorValue>, ServiceError> {
    let mut ends = tensor.ranges().map(|range| range.end);
    let mut start = 0;
    let piece = |count: &u64| {
        let shape = tensor.shape().with_leading_dim(*count).map_err(invalid)?;
        // A tensor of this shape exists in memory, so the count fits `usize`.
        let elements = shape.element_count() as usize;
        let end = iter::repeat_with(|| ends.next())
            .take(elements)
            .last()
            .flatten()
            .unwrap_or(start);
        let raw: Bytes = tensor.raw().slice(start..end);
        start = end;
        Ok(TensorValue::Bytes(BytesTensor::new_unchecked(shape, raw)))
    };
    counts.iter().map(piece).collect()
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: SpecError) -> ServiceError {
    ServiceError::invalid(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensor_core::Shape;

    use super::*;

    fn numbers(dims: &[u64]) -> TensorValue {
        let shape = Shape::new(dims).unwrap();
        let count = shape.element_count();
        Tensor::from_vec(shape, (0..count).collect()).unwrap().into()
    }

    fn strings(dims: &[u64], salt: usize) -> TensorValue {
        let shape = Shape::new(dims).unwrap();
        let elements = (0..shape.element_count() as usize).map(|index| "x".repeat((index * 7 + salt) % 5));
        BytesTensor::from_elements(shape, elements).unwrap().into()
    }

    #[test]
    fn pieces_share_the_bytes() {
        for whole in [numbers(&[5, 3]), strings(&[5, 3], 1)] {
            let pieces = whole.split_rows(&[2, 0, 3]).unwrap();
            assert_eq!(pieces[0].raw().as_ptr(), whole.raw().as_ptr());
            let len = pieces[0].raw().len();
            assert_eq!(pieces[2].raw().as_ptr(), whole.raw()[len..].as_ptr());
            assert_eq!(pieces[1].shape().dims(), [0, 3]);
        }
        let only = numbers(&[2]);
        let joined = TensorValue::join_rows(&[&only]).unwrap();
        assert_eq!(joined.raw().as_ptr(), only.raw().as_ptr());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let message = |parts: &[&TensorValue]| TensorValue::join_rows(parts).unwrap_err().to_string();
        assert_eq!(
            message(&[&numbers(&[1, 2]), &numbers(&[1, 3])]),
            "UINT64[1, 2] and UINT64[1, 3] cannot be combined in a batch"
        );
        assert_eq!(
            message(&[&numbers(&[1]), &strings(&[1], 0)]),
            "UINT64[1] and BYTES[1] cannot be combined in a batch"
        );
        assert_eq!(
            message(&[&numbers(&[]), &numbers(&[])]),
            SpecError::ScalarHasNoRows.to_string()
        );
        assert_eq!(message(&[]), "expected tensors to join, found none");
        for counts in [&[2, 2][..], &[], &[u64::MAX, 4]] {
            assert!(numbers(&[3]).split_rows(counts).is_err(), "{counts:?}");
        }
        assert!(numbers(&[]).split_rows(&[1]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_joined_can_be_cut_again(
            counts in proptest::collection::vec(0..4u64, 1..6),
            tail in proptest::collection::vec(0..3u64, 0..3),
            of_strings: bool,
        ) {
            let part = |(salt, count): (usize, &u64)| {
                let dims = [&[*count], &tail[..]].concat();
                if of_strings { strings(&dims, salt) } else { numbers(&dims) }
            };
            let parts: Vec<TensorValue> = counts.iter().enumerate().map(part).collect();
            let joined = TensorValue::join_rows(&parts.iter().collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(joined.rows(), Some(counts.iter().sum()));
            prop_assert_eq!(joined.split_rows(&counts).unwrap(), parts);
        }
    }
}
