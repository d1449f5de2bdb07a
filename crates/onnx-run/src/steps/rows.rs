//! Stacks tensors along an axis: results of iterations, and sequences.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::lowered::DeclaredType;
use crate::steps::values::Failure;
use onnx_tensor::{
    axis,
    cancelling::{PART, Pace},
    faults::BadInput,
    room::Room,
    size,
};

/// Maximum total size of the results of all iterations, in bytes. While they are stacked, the results are in
/// memory twice.
const MAX_BYTES: u64 = 2 << 30;

/// The results of a loop's iterations, collected per output.
pub(crate) struct Rows {
    pub(crate) made: Vec<Vec<Arc<Tensor>>>,
    bytes: u64,
}

impl Rows {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            made: vec![Vec::new(); count],
            bytes: 0,
        }
    }

    /// Adds a row, and counts its memory in `room` until the rows are stacked.
    pub(crate) fn push(
        &mut self,
        index: usize,
        row: Arc<Tensor>,
        room: &mut Room<'_>,
    ) -> Result<(), Failure> {
        // The free memory is checked again after this many bytes.
        const PERIOD: u64 = 128 << 20;
        let before = self.bytes;
        let bytes = size::of_listed(&row);
        room.ask(bytes)?;
        room.hold(bytes);
        self.bytes += bytes;
        if self.bytes > MAX_BYTES {
            let limit = size::gib(MAX_BYTES);
            return Err(BadInput(format!(
                "the scan outputs of a loop take more than the limit of {limit}"
            ))
            .into());
        }
        if before / PERIOD != self.bytes / PERIOD {
            // Stacking the results takes the same amount of memory again.
            size::admit_now(self.bytes)?;
        }
        if let Some(first) = self.made[index].first()
            && (first.shape() != row.shape() || first.element_type() != row.element_type())
        {
            return Err(BadInput(
                "the iterations of a loop give a scan output of different shapes".to_owned(),
            )
            .into());
        }
        self.made[index].push(row);
        Ok(())
    }

    /// Stacks the results of all iterations for an output along a new axis. Releases the memory of the rows
    /// in `room`.
    pub(crate) fn stacked(
        &mut self,
        index: usize,
        axis: i64,
        declared: Option<&DeclaredType>,
        room: &mut Room<'_>,
    ) -> Result<Tensor> {
        let rows = std::mem::take(&mut self.made[index]);
        let Some(first) = rows.first() else {
            return empty(axis, declared);
        };
        let axis = axis::axis(axis, first.rank() + 1)?;
        room.ask(rows.iter().map(|row| size::of_value(row)).sum())?;
        let listed = rows.iter().map(|row| size::of_listed(row)).sum();
        let whole = joined(rows, axis)?;
        room.release(listed);
        Ok(whole)
    }
}

/// Concatenates rows of one type and size along a new axis. Frees each row after copying it.
pub(crate) fn joined(rows: Vec<Arc<Tensor>>, axis: usize) -> Result<Tensor> {
    let first = &rows[0];
    let mut shape = first.shape().to_vec();
    let width = shape[axis..].iter().product::<usize>();
    let count = rows.len();
    shape.insert(axis, count);
    let mut whole = Tensor::zero_of(first.element_type(), &shape)?;
    if whole.is_empty() {
        return Ok(whole);
    }
    let mut pace = Pace::default();
    with_unit!(whole.element_type(), U => {
        let units = whole.as_units_mut::<U>()?;
        for (index, row) in rows.into_iter().enumerate() {
            spread(row.as_units::<U>()?, units, [width, count, index], &mut pace)?;
        }
    });
    Ok(whole)
}

/// Copies a row into `whole`, whose blocks have `count` parts of `width` elements: part `i` of the row
/// becomes part `index` of block `i`.
fn spread<U: Unit>(
    row: &[U],
    whole: &mut [U],
    [width, count, index]: [usize; 3],
    pace: &mut Pace,
) -> Result<()> {
    if width > PART {
        let blocks = whole.chunks_exact_mut(width * count).zip(row.chunks_exact(width));
        for (block, part) in blocks {
            let to = &mut block[index * width..][..width];
            pace.pairs(part, to, |from, to| to.clone_from_slice(from))?;
        }
        return Ok(());
    }
    // Checks for cancellation once for many short parts.
    let together = PART / width;
    let blocks = whole.chunks_mut(width * count * together);
    for (blocks, parts) in blocks.zip(row.chunks(width * together)) {
        pace.spend(parts.len() as u64)?;
        for (block, part) in blocks
            .chunks_exact_mut(width * count)
            .zip(parts.chunks_exact(width))
        {
            block[index * width..][..width].clone_from_slice(part);
        }
    }
    Ok(())
}

/// The element type of a value whose type is not declared.
const UNDEFINED: i32 = 0;

/// Returns an empty result of the declared type; unknown dimensions are 0, as in ONNX Runtime.
fn empty(axis: i64, declared: Option<&DeclaredType>) -> Result<Tensor> {
    let declared = declared.filter(|declared| declared.elem_type != UNDEFINED);
    let declared = declared.ok_or_else(|| {
        BadInput(
            "a loop without iterations has a scan output whose type the file does not declare".to_owned(),
        )
    })?;
    let element_type = ElementType::from_code(declared.elem_type).ok_or_else(|| {
        BadInput(format!(
            "a loop without iterations has a scan output of the unsupported element type {}",
            declared.elem_type
        ))
    })?;
    let mut shape = declared.shape.clone().unwrap_or_default();
    let axis = match declared.shape {
        Some(_) => axis::axis(axis, shape.len() + 1)?,
        None => 0,
    };
    shape.insert(axis, 0);
    // The declared dimensions come from the file, so they are checked before memory is allocated.
    size::admit_shape(element_type, &shape)?;
    Tensor::zero_of(element_type, &shape)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{elements, testing::while_counted};

    #[test]
    fn no_rows_are_stacked_along_the_axis_too() {
        let mut declared = DeclaredType {
            elem_type: 1,
            shape: Some(vec![3, 0]),
        };
        let mut room = Room::new();
        let mut stacked = |axis, declared: &_| Rows::new(1).stacked(0, axis, Some(declared), &mut room);
        for (axis, shape) in [(0, [0, 3, 0]), (1, [3, 0, 0]), (-2, [3, 0, 0]), (2, [3, 0, 0])] {
            assert_eq!(stacked(axis, &declared).unwrap().shape(), shape, "{axis}");
        }
        assert!(stacked(3, &declared).is_err());
        let huge = DeclaredType {
            shape: Some(vec![1 << 31, 1 << 31, 1 << 31]),
            ..declared.clone()
        };
        assert!(stacked(0, &huge).is_err_and(|error| error.is::<BadInput>()));
        declared.shape = None;
        assert_eq!(stacked(1, &declared).unwrap().shape(), [0]);
        for elem_type in [None, Some(UNDEFINED), Some(99)] {
            let declared = elem_type.map(|elem_type| DeclaredType {
                elem_type,
                shape: None,
            });
            let error = Rows::new(1)
                .stacked(0, 0, declared.as_ref(), &mut Room::new())
                .unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
    }

    #[test]
    fn joining_checks_for_cancellation_along_any_axis() {
        let row = |shape: &[usize]| Arc::new(Tensor::zero::<u8>(shape).unwrap());
        for (rows, axis) in [
            (vec![row(&[1 << 20, 1]); 2], 1),
            (vec![row(&[4, 1 << 18]); 2], 1),
            (vec![row(&[1 << 20]); 2], 0),
            (vec![row(&[1, 3]); 1 << 18], 0),
        ] {
            let elements: usize = rows.iter().map(|row| row.len()).sum();
            let (joined, checks) = while_counted(u64::MAX, || joined(rows, axis));
            assert_eq!(joined.unwrap().len(), elements);
            assert!(
                checks >= elements as u64 >> 17,
                "{checks} checks for {elements} elements"
            );
        }
    }

    #[test]
    fn rows_are_joined_along_any_axis() {
        let numbers =
            |start: i64| Tensor::from_shape(&[2, 3], &[start, start + 1, start + 2, 7, 8, 9]).unwrap();
        let words = |word: &str| elements::tensor(&[2, 1], vec![word.to_owned(), "b".to_owned()]).unwrap();
        let truths = |first: bool| Tensor::from_shape(&[1, 2], &[first, false]).unwrap();
        for rows in [
            [numbers(0), numbers(50)],
            [words("x"), words("y")],
            [truths(true), truths(false)],
        ] {
            let rows: Vec<Arc<Tensor>> = rows.into_iter().map(Arc::new).collect();
            for axis in 0..3 {
                let mut shape = rows[0].shape().to_vec();
                shape.insert(axis, 1);
                let views = rows.iter().map(|row| (**row).clone().into_shape(&shape).unwrap());
                let wanted = Tensor::concat(axis, &views.collect::<Vec<Tensor>>()).unwrap();
                assert_eq!(joined(rows.clone(), axis).unwrap(), wanted);
            }
        }
        let nothing = (0..3).map(|_| Arc::new(Tensor::zero::<f32>(&[2, 0]).unwrap()));
        assert_eq!(joined(nothing.collect(), 1).unwrap().shape(), [2, 3, 0]);
    }
}
