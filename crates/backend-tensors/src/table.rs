//! Gathers rows of a tensor by index, one block for each run of consecutive rows.

use oip_resources::ByteBudget;
use oip_types::ServiceError;
use tensor_core::{Shape, Tensor, TensorSpec};

/// A tensor with rows, which are its entries along axis 0.
pub(crate) struct Table {
    tensor: Tensor,
    rows: u64,
    /// Bytes of one row.
    row_len: usize,
    row_shape: Shape,
}

/// An index that is out of range for a table, and its position among the requested rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSuchRow {
    pub(crate) row: i64,
    pub(crate) index: usize,
}

/// Why rows cannot be gathered.
#[derive(Debug)]
pub(crate) enum GatherError {
    NoSuchRow(NoSuchRow),
    Other(ServiceError),
}

impl Table {
    /// Creates a table, unless the tensor is a scalar or the shape of its rows cannot be represented.
    pub(crate) fn new(tensor: &Tensor) -> Option<Self> {
        let row_shape = tensor.shape().row()?;
        let rows = *tensor.shape().dims().first()?;
        let len = tensor.bytes().len();
        // All rows have the same size. If the row count exceeds the address space, the rows have no bytes.
        let row_len = usize::try_from(rows).ok().and_then(|rows| len.checked_div(rows));
        Some(Self {
            tensor: tensor.clone(),
            rows,
            row_len: row_len.unwrap_or(0),
            row_shape,
        })
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the shape of one row.
    pub(crate) fn row_shape(&self) -> &Shape {
        &self.row_shape
    }

    /// Returns the bytes of `rows` rows.
    pub(crate) fn byte_len(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.row_len as u64)
    }

    /// Gathers the rows with the indices `numbers` (INT64), in order. The shape of the result is the shape of
    /// `numbers` followed by the shape of a row.
    ///
    /// Consecutive rows are copied as one block; if all rows are consecutive, nothing is copied. Copied bytes
    /// count against the budget until the response is dropped.
    pub(crate) fn gather(&self, numbers: &Tensor, budget: &ByteBudget) -> Result<Tensor, GatherError> {
        let invalid = |message: String| GatherError::Other(ServiceError::invalid(message));
        let dims = [numbers.shape().dims(), self.row_shape.dims()].concat();
        let shape = Shape::new(&dims).map_err(|error| invalid(error.to_string()))?;
        let view = numbers.view();
        let numbers = view.to_cow::<i64>().map_err(|error| invalid(error.to_string()))?;
        let spec = TensorSpec::new(self.tensor.spec().dtype(), shape);
        let spec = spec.map_err(|error| invalid(error.to_string()))?;

        let mut runs = Runs {
            numbers: &numbers,
            // Indices are signed, so rows beyond 2^63, which have no bytes, cannot be requested.
            rows: self.rows.min(1 << 63),
            at: 0,
        };
        let bytes = self.tensor.bytes();
        let first = runs.next().transpose().map_err(GatherError::NoSuchRow)?;
        let first = first.map_or(0..0, |run| self.byte_range(run));
        let gathered = if runs.is_done() {
            bytes.slice(first)
        } else {
            let charge = budget.take(spec.byte_len()).map_err(GatherError::Other)?;
            let mut out = Vec::new();
            let len = usize::try_from(spec.byte_len()).unwrap_or(usize::MAX);
            out.try_reserve_exact(len)
                .map_err(|_| GatherError::Other(ServiceError::internal("not enough memory for the rows")))?;
            out.extend_from_slice(&bytes[first]);
            for run in runs {
                let run = run.map_err(GatherError::NoSuchRow)?;
                out.extend_from_slice(&bytes[self.byte_range(run)]);
            }
            charge.own(out)
        };
        Tensor::new(spec, gathered)
            .map_err(|error| GatherError::Other(ServiceError::internal(error.to_string())))
    }

    /// Returns the byte range of existing rows.
    fn byte_range(&self, rows: std::ops::Range<u64>) -> std::ops::Range<usize> {
        // Rows with bytes are addressable, so the cast is lossless; all rows without bytes are at offset 0.
        let at = |row: u64| (row as usize).wrapping_mul(self.row_len);
        at(rows.start)..at(rows.end)
    }
}

/// Iterates over runs of consecutive indices, as ranges of existing rows.
struct Runs<'a> {
    numbers: &'a [i64],
    rows: u64,
    at: usize,
}

impl Runs<'_> {
    fn is_done(&self) -> bool {
        self.at == self.numbers.len()
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<std::ops::Range<u64>, NoSuchRow>;

    fn next(&mut self) -> Option<Self::Item> {
        let (index, row) = (self.at, *self.numbers.get(self.at)?);
        let start = match u64::try_from(row) {
            Ok(start) if start < self.rows => start,
            _ => {
                self.at = self.numbers.len();
                return Some(Err(NoSuchRow { row, index }));
            }
        };
        let following = self.numbers[index + 1..].iter();
        let expected = start + 1..self.rows;
        let count = following
            .zip(expected)
            .take_while(|(row, expected)| **row as u64 == *expected)
            .count();
        self.at += 1 + count;
        Some(Ok(start..start + 1 + count as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(dims: &[u64]) -> (Tensor, Table) {
        let shape = Shape::new(dims).unwrap();
        let elements: Vec<u16> = (0..shape.element_count() as u16).collect();
        let tensor = Tensor::from_vec(shape, elements).unwrap();
        let table = Table::new(&tensor).unwrap();
        (tensor, table)
    }

    fn numbers(dims: &[u64], numbers: &[i64]) -> Tensor {
        Tensor::from_vec(Shape::new(dims).unwrap(), numbers.to_vec()).unwrap()
    }

    /// Gathers with an unlimited budget.
    fn gather(table: &Table, numbers: &Tensor) -> Result<Tensor, GatherError> {
        table.gather(numbers, &ByteBudget::new(u64::MAX))
    }

    fn runs(numbers: &[i64], rows: u64) -> Vec<Result<std::ops::Range<u64>, NoSuchRow>> {
        Runs { numbers, rows, at: 0 }.collect()
    }

    #[test]
    fn rows_that_follow_each_other_are_one_run() {
        assert_eq!(runs(&[], 9), []);
        assert_eq!(
            runs(&[3, 4, 5, 2, 3, 3, 8], 9),
            [Ok(3..6), Ok(2..4), Ok(3..4), Ok(8..9)]
        );
        // A run ends at the last row.
        assert_eq!(
            runs(&[7, 8, 9, 1], 9),
            [Ok(7..9), Err(NoSuchRow { row: 9, index: 2 })]
        );
        for row in [-1, i64::MIN, i64::MAX, 9] {
            assert_eq!(runs(&[0, row], 9)[1], Err(NoSuchRow { row, index: 1 }));
        }
        assert_eq!(runs(&[i64::MAX], u64::MAX).len(), 1);
    }

    #[test]
    fn one_run_is_a_slice() {
        let (tensor, table) = table(&[5, 3]);
        let part = gather(&table, &numbers(&[3], &[1, 2, 3])).unwrap();
        assert_eq!(part, tensor.rows(1..4).unwrap());
        assert_eq!(part.bytes().as_ptr(), tensor.bytes()[6..].as_ptr());
    }

    #[test]
    fn what_is_copied_is_taken_from_the_budget() {
        let (_, table) = table(&[5, 3]);
        let budget = ByteBudget::new(30);
        let scattered = numbers(&[3], &[4, 0, 2]);
        let first = table.gather(&scattered, &budget).unwrap();
        assert_eq!(budget.used(), 18);
        let GatherError::Other(full) = table.gather(&scattered, &budget).unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(full.code(), oip_types::ErrorCode::Overloaded);
        let slice = table.gather(&numbers(&[5], &[0, 1, 2, 3, 4]), &budget).unwrap();
        assert_eq!(budget.used(), 18, "a slice takes nothing");
        drop((first, slice));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn shapes_of_the_answer() {
        let (_, table) = table(&[5, 3, 2]);
        for (dims, rows, expected) in [
            (&[][..], &[4][..], &[3, 2][..]),
            (&[1], &[4], &[1, 3, 2]),
            (&[2, 2], &[4, 0, 0, 1], &[2, 2, 3, 2]),
            (&[0], &[], &[0, 3, 2]),
            (&[3, 0, 2], &[], &[3, 0, 2, 3, 2]),
        ] {
            let gathered = gather(&table, &numbers(dims, rows)).unwrap();
            assert_eq!(gathered.shape().dims(), expected);
        }
        let many = numbers(&[1; 63], &[0]);
        assert!(
            matches!(gather(&table, &many), Err(GatherError::Other(_))),
            "rank 65"
        );
    }

    #[test]
    fn tables_without_bytes() {
        let (_, empty) = table(&[0, 3]);
        assert_eq!(
            gather(&empty, &numbers(&[0], &[])).unwrap().shape().dims(),
            [0, 3]
        );
        assert!(gather(&empty, &numbers(&[1], &[0])).is_err());
        let (_, hollow) = table(&[1 << 40, 0]);
        let gathered = gather(&hollow, &numbers(&[2], &[7, 1 << 39])).unwrap();
        assert_eq!(gathered.shape().dims(), [2, 0]);
        assert!(gather(&hollow, &numbers(&[1], &[1 << 40])).is_err());
        assert!(Table::new(&Tensor::scalar(1u8)).is_none());
        let (_, vast) = table(&[u64::MAX, 0]);
        assert!(gather(&vast, &numbers(&[1], &[i64::MAX])).is_ok());
        assert!(gather(&vast, &numbers(&[2], &[i64::MAX, i64::MIN])).is_err());
    }

    proptest! {
        #[test]
        fn rows_are_those_of_the_tensor(rows in 1u64..6, width in 0u64..4, picked in prop::collection::vec(0i64..6, 0..20)) {
            let (tensor, table) = table(&[rows, width]);
            let gathered = gather(&table, &numbers(&[picked.len() as u64], &picked));
            let expected: Option<Vec<u8>> = picked
                .iter()
                .map(|&row| Some(tensor.rows(row as u64..row as u64 + 1).ok()?.bytes().to_vec()))
                .collect::<Option<Vec<_>>>()
                .map(|rows| rows.concat());
            match (gathered, expected) {
                (Ok(gathered), Some(expected)) => prop_assert_eq!(&gathered.bytes()[..], &expected[..]),
                (Err(GatherError::NoSuchRow(NoSuchRow { row, index })), None) => {
                    prop_assert_eq!(picked.iter().position(|row| *row as u64 >= rows), Some(index));
                    prop_assert_eq!(picked[index], row);
                }
                (gathered, expected) => prop_assert!(false, "{:?} {:?}", gathered, expected),
            }
        }
    }
}
