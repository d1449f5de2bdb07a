//! Rows of features and class labels, which the operators of scikit-learn's models share.

use std::borrow::Cow;

use onnx_tensor::prelude::*;

use onnx_tensor::{cancelling::Pace, elements, faults::Refusal, node::Attributes, operator::Fact, size};

/// A row-major matrix of features, one row per example.
pub(crate) struct Rows<'a, T: Clone> {
    pub(crate) count: usize,
    pub(crate) width: usize,
    pub(crate) values: Cow<'a, [T]>,
}

impl<'a> Rows<'a, f32> {
    /// Reads a tensor of any numeric type as FP32.
    pub(crate) fn read(tensor: &'a Tensor) -> Result<Self> {
        let (count, width) = shape(tensor)?;
        let values = floats(tensor)?;
        Ok(Self { count, width, values })
    }
}

/// Returns the elements of a tensor of any numeric type as FP32.
pub(crate) fn floats(tensor: &Tensor) -> Result<Cow<'_, [f32]>> {
    Ok(match tensor.element_type() {
        ElementType::F32 => Cow::Borrowed(elements::elements::<f32>(tensor)?),
        _ => Cow::Owned(tensor.cast_to::<f32>()?.into_owned().into_vec()?),
    })
}

impl<'a> Rows<'a, f64> {
    pub(crate) fn read_double(tensor: &'a Tensor) -> Result<Self> {
        let (count, width) = shape(tensor)?;
        let values = Cow::Borrowed(elements::elements::<f64>(tensor)?);
        Ok(Self { count, width, values })
    }
}

impl<T: Clone> Rows<'_, T> {
    /// Splits the rows into batches for a tree ensemble, small enough that a cancelled request ends soon.
    ///
    /// # Errors
    /// Yields the error of [`Pace::spend`] if the deadline has passed.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Result<tree_eval::Rows<'_, T>>> {
        const ROWS: usize = 64;
        (0..self.count).step_by(ROWS).map(|first| {
            Pace::default().spend(u64::MAX)?;
            let count = ROWS.min(self.count - first);
            let values = &self.values[first * self.width..][..count * self.width];
            Ok(tree_eval::Rows::new(values, count, self.width).unwrap_or_default())
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[T]> {
        // Counts rows instead of splitting the values, since a row may have no features.
        (0..self.count).map(|row| &self.values[row * self.width..(row + 1) * self.width])
    }
}

/// Returns the number of rows, and the number of features per row. A vector counts as one row.
fn shape(tensor: &Tensor) -> Result<(usize, usize)> {
    match *tensor.shape() {
        [width] => Ok((1, width)),
        [count, width] => Ok((count, width)),
        _ => bail!("expected a matrix, found {tensor:?}"),
    }
}

/// Checks that an input consists of numbers.
pub(crate) fn expect_numbers(input: &Fact) -> Result<()> {
    if matches!(input.element_type, ElementType::String | ElementType::Bool) {
        bail!(Refusal("takes numbers only".to_owned()));
    }
    Ok(())
}

/// Returns the row count of a numeric input as a dimension.
pub(crate) fn count(input: &Fact) -> Result<Dim> {
    expect_numbers(input)?;
    match &*input.shape {
        [_] => Ok(1.to_dim()),
        [count, _] => Ok(*count),
        _ => bail!(Refusal(format!(
            "takes a matrix, found {} dimensions",
            input.rank()
        ))),
    }
}

/// Checks, at load or at run time, that rows of `width` features have the `needed` features that the model
/// reads.
pub(crate) fn expect_width(width: usize, needed: usize) -> Result<()> {
    if width >= needed {
        return Ok(());
    }
    bail!(onnx_tensor::faults::BadInput(format!(
        "{needed} features are needed, found {width}"
    )))
}

/// The class labels of a classifier.
#[derive(Clone, Debug)]
pub(crate) enum Labels {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

impl Labels {
    /// Reads the labels from the attribute `ints` or `strings`.
    pub(crate) fn read(attributes: Attributes<'_>, ints: &str, strings: &str) -> Result<Self> {
        let texts = attributes.texts(strings)?;
        match (attributes.ints(ints), texts.is_empty()) {
            ([], true) => bail!(Refusal("has no labels of classes".to_owned())),
            (ints, true) => Ok(Self::Ints(ints.to_vec())),
            ([], false) => Ok(Self::Strings(texts)),
            _ => bail!(Refusal("has labels of two kinds".to_owned())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(ints) => ints.len(),
            Self::Strings(strings) => strings.len(),
        }
    }

    pub(crate) fn element_type(&self) -> ElementType {
        match self {
            Self::Ints(_) => ElementType::I64,
            Self::Strings(_) => ElementType::String,
        }
    }

    /// Returns the labels of `classes` as a tensor.
    pub(crate) fn of(&self, classes: &[usize]) -> Result<Tensor> {
        let shape = [classes.len()];
        let mut pace = Pace::default();
        match self {
            Self::Ints(ints) => elements::tensor(&shape, pace.map(classes, |&class| ints[class])?),
            Self::Strings(strings) => {
                let labels = classes.iter().map(|&class| &strings[class]);
                size::admit_contents(labels.clone().map(|label| (label, 1)))?;
                elements::tensor(&shape, pace.collect(labels.cloned())?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{cancelling::Cancelled, testing::while_cancelled};

    #[test]
    fn parts_have_all_rows_and_end_with_their_request() {
        for (count, width, expected) in [(130, 3, 3), (64, 1, 1), (0, 3, 0), (5, 0, 1)] {
            let values = Tensor::zero::<f32>(&[count, width]).unwrap();
            let rows = Rows::read(&values).unwrap();
            let parts = rows.parts().collect::<Result<Vec<_>>>();
            assert_eq!(parts.unwrap().len(), expected);
            let mut ended = while_cancelled(|| rows.parts().collect::<Vec<_>>()).into_iter();
            assert!(ended.all(|part| part.unwrap_err().is::<Cancelled>()));
        }
    }
}
