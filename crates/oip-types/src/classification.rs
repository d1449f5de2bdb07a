//! The classification extension: returns the highest values of an output with their indices and labels
//! instead of the output.

use std::{cmp::Ordering, fmt::Display};

use tensor_core::{DType, Element, Shape, Tensor};

use crate::{BytesTensor, ParameterValue, Parameters, ServiceError, TensorValue};

/// Parameter of a requested output: the number of classes.
const CLASSIFICATION: &str = "classification";
/// Maximum number of elements in an output to classify, as in Triton.
const MAX_ELEMENTS: u64 = 1_000_000;

/// Removes the requested number of classes from an output's parameters and returns it, if present.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the number is not a positive integer.
pub fn take_class_count(parameters: &mut Parameters) -> Result<Option<u64>, ServiceError> {
    let Some(value) = parameters.remove(CLASSIFICATION) else {
        return Ok(None);
    };
    let count = value.as_u64().filter(|count| *count > 0);
    let wrong = || {
        ServiceError::invalid(format!(
            "parameter '{CLASSIFICATION}': expected a number of classes above 0, found {value}"
        ))
    };
    count.map(Some).ok_or_else(wrong)
}

/// Returns the parameter that [`take_class_count`] reads.
#[must_use]
pub fn class_count_parameter(count: u64) -> (String, ParameterValue) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    (CLASSIFICATION.to_owned(), ParameterValue::Int64(count))
}

/// Returns the `count` highest values of an output, highest first, as `"<value>:<index>"` or
/// `"<value>:<index>:<label>"`.
///
/// Float values have six decimals, as C++ prints them and Triton's clients expect. With `is_batched`, each
/// row of the first dimension is classified separately. Equal values are ordered by index; NaN comes last.
/// The shape is `[count]` or `[rows, count]`, with fewer classes if the output has fewer elements.
///
/// ```
/// use oip_types::classify;
/// use tensor_core::{Shape, Tensor};
///
/// let scores = Tensor::from_vec(Shape::new(&[1, 3])?, vec![0.5f32, 3.3, 1.0])?;
/// let classes = classify(&scores.into(), 2, true, &["cat".into(), "dog".into()]).unwrap();
/// let classes: Vec<_> = classes.iter().collect();
/// assert_eq!(classes, [&b"3.300000:1:dog"[..], b"1.000000:2"]);
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the output's datatype has no order (BOOL,
/// BYTES) or is a 16-bit float, or when it has more than a million elements.
pub fn classify(
    value: &TensorValue,
    count: u64,
    is_batched: bool,
    labels: &[String],
) -> Result<BytesTensor, ServiceError> {
    let elements = value.shape().element_count();
    if elements > MAX_ELEMENTS {
        return Err(ServiceError::invalid(format!(
            "classification takes outputs of up to {MAX_ELEMENTS} elements, found {elements}"
        )));
    }
    let dims = value.shape().dims();
    let rows = dims.first().copied().filter(|_| is_batched);
    let per_row = elements.checked_div(rows.unwrap_or(1)).unwrap_or(0);
    let job = Job {
        per_row: per_row as usize,
        count: count.min(per_row) as usize,
        labels,
    };
    let refused = || {
        let datatype = value.datatype();
        ServiceError::invalid(format!("classification does not take {datatype} outputs"))
    };
    let tensor = value.as_fixed().ok_or_else(refused)?;
    let classes = match tensor.spec().dtype() {
        DType::U8 => job.of::<u8>(tensor),
        DType::U16 => job.of::<u16>(tensor),
        DType::U32 => job.of::<u32>(tensor),
        DType::U64 => job.of::<u64>(tensor),
        DType::I8 => job.of::<i8>(tensor),
        DType::I16 => job.of::<i16>(tensor),
        DType::I32 => job.of::<i32>(tensor),
        DType::I64 => job.of::<i64>(tensor),
        DType::F32 => job.of::<f32>(tensor),
        DType::F64 => job.of::<f64>(tensor),
        _ => return Err(refused()),
    };
    let mut dims: Vec<u64> = rows.into_iter().collect();
    dims.push(job.count as u64);
    let shape = Shape::new(&dims).map_err(|error| ServiceError::internal(error.to_string()))?;
    BytesTensor::from_elements(shape, classes)
}

struct Job<'l> {
    per_row: usize,
    count: usize,
    labels: &'l [String],
}

impl Job<'_> {
    fn of<T: Class>(&self, tensor: &Tensor) -> Vec<String> {
        // The caller matched the dtype, so the conversion succeeds.
        let values = tensor.to_vec::<T>().unwrap_or_default();
        if self.count == 0 {
            return Vec::new();
        }
        let mut classes = Vec::with_capacity(self.count * (values.len() / self.per_row));
        for row in values.chunks(self.per_row) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            let highest_first =
                |a: &usize, b: &usize| T::highest_first(row[*a], row[*b]).then_with(|| a.cmp(b));
            if self.count < row.len() {
                order.select_nth_unstable_by(self.count - 1, highest_first);
                order.truncate(self.count);
            }
            order.sort_unstable_by(highest_first);
            classes.extend(order.into_iter().map(|index| {
                let value = row[index].print();
                match self.labels.get(index) {
                    Some(label) if !label.is_empty() => format!("{value}:{index}:{label}"),
                    _ => format!("{value}:{index}"),
                }
            }));
        }
        classes
    }
}

/// A datatype that can be classified.
trait Class: Element + Display {
    fn highest_first(a: Self, b: Self) -> Ordering;

    fn print(self) -> String {
        self.to_string()
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Class for $integer {
            fn highest_first(a: Self, b: Self) -> Ordering {
                b.cmp(&a)
            }
        }
    )*};
}

macro_rules! floats {
    ($($float:ty)*) => {$(
        impl Class for $float {
            fn highest_first(a: Self, b: Self) -> Ordering {
                let by_value = || b.partial_cmp(&a).unwrap_or(Ordering::Equal);
                a.is_nan().cmp(&b.is_nan()).then_with(by_value)
            }

            fn print(self) -> String {
                if self.is_nan() {
                    return "nan".to_owned();
                }
                format!("{self:.6}")
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }
floats! { f32 f64 }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    fn classes(value: impl Into<TensorValue>, count: u64, is_batched: bool) -> (Vec<u64>, Vec<String>) {
        let classes = classify(&value.into(), count, is_batched, &[]).unwrap();
        let text = |element: &[u8]| String::from_utf8(element.to_vec()).unwrap();
        (
            classes.shape().dims().to_vec(),
            classes.iter().map(text).collect(),
        )
    }

    fn tensor<T: Element>(dims: &[u64], values: &[T]) -> Tensor {
        Tensor::from_vec(Shape::new(dims).unwrap(), values.to_vec()).unwrap()
    }

    #[test]
    fn rows_are_classified_on_their_own() {
        let scores = tensor(&[2, 3], &[1i64, 3, 2, -1, -3, -2]);
        let (shape, found) = classes(scores.clone(), 2, true);
        assert_eq!(
            (shape, found),
            (
                vec![2, 2],
                ["3:1", "2:2", "-1:0", "-2:2"].map(str::to_owned).to_vec()
            )
        );
        let (shape, found) = classes(scores, 9, false);
        assert_eq!((shape[0], found[0].as_str(), found.len()), (6, "3:1", 6));
    }

    #[test]
    fn ties_keep_their_order_and_nan_is_last() {
        let (_, found) = classes(tensor(&[4], &[f32::NAN, 1.0, f32::INFINITY, 1.0]), 4, false);
        assert_eq!(found, ["inf:2", "1.000000:1", "1.000000:3", "nan:0"]);
        let (_, found) = classes(tensor(&[1000], &[7u8; 1000]), 3, false);
        assert_eq!(found, ["7:0", "7:1", "7:2"]);
    }

    #[test]
    fn empty_outputs_have_no_classes() {
        assert_eq!(
            classes(tensor::<f32>(&[0, 3], &[]), 2, true),
            (vec![0, 0], vec![])
        );
        assert_eq!(
            classes(tensor::<f32>(&[2, 0], &[]), 2, true),
            (vec![2, 0], vec![])
        );
    }

    #[test]
    fn what_has_no_order_is_refused() {
        for value in [
            TensorValue::from(Tensor::scalar(true)),
            BytesTensor::from_elements(Shape::vector(1), ["a"])
                .unwrap()
                .into(),
            tensor(&[1_000_001], &vec![0u8; 1_000_001]).into(),
        ] {
            assert_eq!(
                classify(&value, 1, false, &[]).unwrap_err().code(),
                ErrorCode::InvalidArgument
            );
        }
        for count in [
            ParameterValue::Int64(0),
            ParameterValue::Int64(-1),
            ParameterValue::String("1".into()),
        ] {
            assert!(take_class_count(&mut Parameters::from([(CLASSIFICATION.to_owned(), count)])).is_err());
        }
    }
}
