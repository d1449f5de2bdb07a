//! The operators `Scaler`, `Normalizer`, `Binarizer` and `Imputer`, which preprocess features.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::rows::{self, Rows};
use onnx_tensor::{
    cancelling::{PART, Pace},
    elements,
    faults::{BadInput, Refusal},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
};

/// Creates the operator `Scaler`: `(x - offset) * scale`, per feature or with one value for all.
pub fn scaler(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let (offset, scale) = (
        attributes.floats("offset").to_vec(),
        attributes.floats("scale").to_vec(),
    );
    if scale.is_empty() || scale.len() != offset.len() {
        let (offset, scale) = (offset.len(), scale.len());
        bail!(Refusal(format!("has {offset} offsets and {scale} scales")));
    }
    Ok(kernel(Scaler { offset, scale }))
}

/// Creates the operator `Normalizer`, which divides each row by its norm.
pub fn normalizer(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(match Attributes(node).text("norm", "MAX") {
        "MAX" => Normalizer::Max,
        "L1" => Normalizer::L1,
        "L2" => Normalizer::L2,
        other => bail!(Refusal(format!("has an unknown norm '{other}'"))),
    }))
}

/// Creates the operator `Binarizer`: 1 for values above the threshold, otherwise 0.
pub fn binarizer(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Binarizer {
        threshold: Attributes(node).float("threshold", 0.0),
    }))
}

/// Creates the operator `Imputer`, which replaces the value that marks missing data.
pub fn imputer(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let (floats, ints) = (
        attributes.floats("imputed_value_floats"),
        attributes.ints("imputed_value_int64s"),
    );
    Ok(kernel(match (floats, ints) {
        ([], []) => bail!(Refusal("has no values to impute".to_owned())),
        (floats, []) => Imputer::Floats {
            values: floats.to_vec(),
            replaced: attributes.float("replaced_value_float", 0.0),
        },
        ([], ints) => Imputer::Ints {
            values: ints.to_vec(),
            replaced: attributes.int("replaced_value_int64", 0),
        },
        _ => bail!(Refusal("has values of two kinds to impute".to_owned())),
    }))
}

#[derive(Debug)]
struct Scaler {
    offset: Vec<f32>,
    scale: Vec<f32>,
}

impl Kernel for Scaler {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        check_rank(self.scale.len(), &inputs[0])?;
        Ok(vec![inputs[0].with(ElementType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut pace = Pace::default();
        let mut out = pace.copy(&rows::floats(&inputs[0])?)?;
        let width = inputs[0].shape().last().copied().unwrap_or(1);
        check_width(self.scale.len(), width)?;
        if let (&[offset], &[scale]) = (&*self.offset, &*self.scale) {
            pace.over(&mut out, |out| {
                out.iter_mut().for_each(|x| *x = (*x - offset) * scale);
            })?;
        } else if width > 0 {
            for row in out.chunks_exact_mut(width) {
                pace.spend(row.len() as u64)?;
                for ((x, offset), scale) in row.iter_mut().zip(&self.offset).zip(&self.scale) {
                    *x = (*x - offset) * scale;
                }
            }
        }
        Ok(smallvec![elements::tensor(inputs[0].shape(), out)?])
    }
}

#[derive(Debug)]
enum Normalizer {
    Max,
    L1,
    L2,
}

impl Kernel for Normalizer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        rows::count(&inputs[0])?;
        Ok(vec![inputs[0].with(ElementType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = Rows::read(&inputs[0])?;
        let width = rows.width.max(1);
        let mut pace = Pace::default();
        let mut out = pace.copy(&rows.values)?;
        for row in out.chunks_exact_mut(width) {
            let mut norm = match self {
                Self::Max => f32::NEG_INFINITY,
                Self::L1 | Self::L2 => 0.0,
            };
            for row in row.chunks(PART) {
                pace.spend(row.len() as u64)?;
                let row = row.iter();
                norm = match self {
                    // ONNX defines the norm MAX as the greatest value, not as the greatest magnitude.
                    Self::Max => row.copied().fold(norm, f32::max),
                    Self::L1 => row.fold(norm, |sum, x| sum + x.abs()),
                    Self::L2 => row.fold(norm, |sum, x| sum + x * x),
                };
            }
            if matches!(self, Self::L2) {
                norm = norm.sqrt();
            }
            if norm != 0.0 {
                pace.over(row, |row| row.iter_mut().for_each(|x| *x /= norm))?;
            }
        }
        Ok(smallvec![elements::tensor(inputs[0].shape(), out)?])
    }
}

#[derive(Debug)]
struct Binarizer {
    threshold: f32,
}

impl Kernel for Binarizer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        if inputs[0].element_type != ElementType::F32 {
            bail!(Refusal("takes FP32 only".to_owned()));
        }
        Ok(vec![inputs[0].with(ElementType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let values = elements::elements::<f32>(&inputs[0])?;
        let mut pace = Pace::default();
        for (first, values) in (0..).step_by(PART).zip(values.chunks(PART)) {
            pace.spend(values.len() as u64)?;
            if let Some(index) = values.iter().position(|x| x.is_nan()) {
                bail!(BadInput(format!(
                    "element {} is NaN, which is neither above the threshold nor below; expected numbers",
                    first + index
                )));
            }
        }
        let above = |x: &f32| f32::from(u8::from(*x > self.threshold));
        let out = pace.map(values, above)?;
        Ok(smallvec![elements::tensor(inputs[0].shape(), out)?])
    }
}

#[derive(Debug)]
enum Imputer {
    Floats { values: Vec<f32>, replaced: f32 },
    Ints { values: Vec<i64>, replaced: i64 },
}

impl Kernel for Imputer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let values = match self {
            Self::Floats { values, .. } => values.len(),
            Self::Ints { values, .. } => values.len(),
        };
        check_rank(values, &inputs[0])?;
        match (self, inputs[0].element_type) {
            (Self::Floats { .. }, ElementType::F32 | ElementType::F64)
            | (Self::Ints { .. }, ElementType::I64) => Ok(vec![inputs[0].with(inputs[0].element_type)]),
            _ => bail!(Refusal("has values of another type than its input".to_owned())),
        }
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let width = input.shape().last().copied().unwrap_or(1);
        Ok(smallvec![match self {
            Self::Ints { values, replaced } =>
                impute(input, width, values, |x| x == replaced, |value| *value)?,
            Self::Floats { values, replaced } if input.element_type() == ElementType::F64 => {
                let replaced = f64::from(*replaced);
                let is_missing = |x: &f64| *x == replaced || (x.is_nan() && replaced.is_nan());
                impute(input, width, values, is_missing, |value| f64::from(*value))?
            }
            Self::Floats { values, replaced } => {
                let is_missing = |x: &f32| x == replaced || (x.is_nan() && replaced.is_nan());
                impute(input, width, values, is_missing, |value| *value)?
            }
        }])
    }
}

fn impute<T: Element + Copy, V>(
    input: &Tensor,
    width: usize,
    values: &[V],
    is_missing: impl Fn(&T) -> bool,
    value: impl Fn(&V) -> T,
) -> Result<Tensor> {
    check_width(values.len(), width)?;
    let imputed = |(index, x): (usize, &T)| match is_missing(x) {
        true => value(&values[(index % width.max(1)) % values.len()]),
        false => *x,
    };
    let given = elements::elements::<T>(input)?;
    let mut out = Vec::with_capacity(given.len());
    let mut pace = Pace::default();
    for (part, given) in given.chunks(PART).enumerate() {
        pace.spend(given.len() as u64)?;
        out.extend((part * PART..).zip(given).map(imputed));
    }
    elements::tensor(input.shape(), out)
}

/// Checks that the input consists of numbers and, if there is one value for each feature, that it is a vector or
/// a matrix: for other tensors, ONNX does not say which axis has the features.
fn check_rank(values: usize, input: &Fact) -> Result<()> {
    match values {
        1 => rows::expect_numbers(input),
        _ => rows::count(input).map(|_| ()),
    }
}

/// Checks that there is one value for each of `width` features, or one for all.
fn check_width(values: usize, width: usize) -> Result<()> {
    if values == 1 || values == width {
        return Ok(());
    }
    bail!(BadInput(format!("{values} features are needed, found {width}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_tensor::node::Attribute;

    use super::*;

    fn attribute(name: &str, values: &[f32]) -> Attribute {
        Attribute {
            name: name.to_owned(),
            floats: values.to_vec(),
            ..Attribute::default()
        }
    }

    /// Runs a Scaler with these factors on numbers of the shape `shape`.
    fn scaled(factors: &[f32], shape: &[usize]) -> Result<Vec<f32>> {
        let node = Node {
            attribute: vec![
                attribute("offset", &vec![1.0; factors.len()]),
                attribute("scale", factors),
            ],
            ..Node::default()
        };
        let numbers: Vec<f32> = (0..shape.iter().product::<usize>()).map(|x| x as f32).collect();
        let input = Tensor::from_shape(shape, &numbers)?.into_arc();
        let facts = [Fact::new(
            ElementType::F32,
            shape.iter().map(onnx_tensor::ToDim::to_dim),
        )];
        let scaler = scaler(&node).unwrap();
        scaler.outputs(&facts)?;
        let outputs = scaler.run(&mut smallvec![input])?;
        assert_eq!(outputs[0].shape(), shape);
        Ok(elements::elements::<f32>(&outputs[0])?.to_vec())
    }

    #[test]
    fn one_factor_scales_tensors_of_any_rank() {
        for shape in [&[4][..], &[2, 2], &[2, 1, 2]] {
            assert_eq!(scaled(&[2.0], shape).unwrap(), [-2.0, 0.0, 2.0, 4.0]);
        }
        for shape in [&[4, 2][..], &[2, 2, 2]] {
            let found = scaled(&[2.0, 3.0], shape);
            assert_eq!(found.is_ok(), shape.len() == 2, "{shape:?}");
        }
    }
}
