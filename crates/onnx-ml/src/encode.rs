//! The operators `OneHotEncoder`, `FeatureVectorizer` and `ArrayFeatureExtractor`, which select and encode
//! columns of features.

use std::{collections::HashMap, sync::Arc};

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements,
    faults::{BadInput, Limit, Refusal},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
    size,
};

/// Creates the operator `OneHotEncoder`, which has one output column per category.
pub fn one_hot(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let (ints, strings) = (attributes.ints("cats_int64s"), attributes.texts("cats_strings")?);
    let categories = match (ints, strings.is_empty()) {
        ([], true) => bail!(Refusal("has no categories".to_owned())),
        (ints, true) => Categories::Ints(positions(ints.iter().copied())),
        ([], false) => Categories::Strings(positions(strings.into_iter())),
        _ => bail!(Refusal("has categories of two kinds".to_owned())),
    };
    let count = ints.len().max(attributes.texts("cats_strings")?.len());
    Ok(kernel(OneHotEncoder {
        categories,
        count,
        // With the attribute `zeros`, an unknown category becomes a row of zeros instead of an error.
        ignores_unknown: attributes.int("zeros", 1) != 0,
    }))
}

/// The maximum number of features in a row.
const MAX_WIDTH: usize = 1 << 30;

/// Creates the operator `FeatureVectorizer`, which concatenates its inputs as FP32.
pub fn vectorizer(node: &Node) -> Result<Box<dyn Compute>> {
    let widths = Attributes(node).ints("inputdimensions");
    let widths: Option<Vec<usize>> = widths.iter().map(|&width| usize::try_from(width).ok()).collect();
    let widths = widths.ok_or_else(|| Refusal("has a negative dimension".to_owned()))?;
    let width = widths
        .iter()
        .try_fold(0usize, |sum, &width| sum.checked_add(width));
    match width.filter(|&width| width <= MAX_WIDTH) {
        Some(width) => Ok(kernel(FeatureVectorizer { widths, width })),
        None => bail!(Limit(format!(
            "the inputdimensions are more than {MAX_WIDTH} in sum, which is the limit"
        ))),
    }
}

/// Creates the operator `ArrayFeatureExtractor`, which selects columns by index.
pub fn extractor(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(ArrayFeatureExtractor))
}

#[derive(Debug)]
struct OneHotEncoder {
    categories: Categories,
    count: usize,
    ignores_unknown: bool,
}

#[derive(Debug)]
enum Categories {
    Ints(HashMap<i64, usize>),
    Strings(HashMap<String, usize>),
}

/// Returns the column of each category. If categories are equal, the column of the last one is used.
fn positions<C: std::hash::Hash + Eq>(categories: impl Iterator<Item = C>) -> HashMap<C, usize> {
    categories
        .enumerate()
        .map(|(index, category)| (category, index))
        .collect()
}

impl Kernel for OneHotEncoder {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        use ElementType::{F32, F64, I32, I64, String};
        match (&self.categories, inputs[0].element_type) {
            (Categories::Strings(_), String) | (Categories::Ints(_), F32 | F64 | I32 | I64) => {}
            _ => bail!(Refusal(
                "has categories of another type than its input".to_owned()
            )),
        }
        if inputs[0].rank() == 0 {
            bail!(Refusal("is not supported for scalars".to_owned()));
        }
        let mut shape = inputs[0].shape.clone();
        shape.push(self.count.to_dim());
        Ok(vec![Fact::new(F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        // Checks that there is enough memory for two lists: the elements as integers, and their columns.
        size::admit_now(input.len() as u64 * 24)?;
        let mut pace = Pace::default();
        let columns: Vec<Option<usize>> = match &self.categories {
            Categories::Strings(columns) => {
                let texts = elements::elements::<String>(input)?;
                pace.map(texts, |text| columns.get(text).copied())?
            }
            Categories::Ints(columns) => {
                let ints = input.cast_to::<i64>()?;
                pace.map(elements::elements::<i64>(&ints)?, |int| columns.get(int).copied())?
            }
        };
        let mut hot = vec![0.0f32; columns.len() * self.count];
        for (index, column) in columns.into_iter().enumerate() {
            pace.spend(1)?;
            match column {
                Some(column) => hot[index * self.count + column] = 1.0,
                None if self.ignores_unknown => {}
                None => bail!(BadInput(format!("element {index} is of an unknown category"))),
            }
        }
        let mut shape: ShortVec<usize> = input.shape().into();
        shape.push(self.count);
        Ok(smallvec![elements::tensor(&shape, hot)?])
    }
}

#[derive(Debug)]
struct FeatureVectorizer {
    /// The number of features in each input.
    widths: Vec<usize>,
    /// The sum of `widths`: the number of features in a row of the output.
    width: usize,
}

impl Kernel for FeatureVectorizer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        if inputs.is_empty() || inputs.len() != self.widths.len() {
            bail!(Refusal(format!(
                "has {} inputs for {} dimensions",
                inputs.len(),
                self.widths.len()
            )));
        }
        let count = crate::rows::count(&inputs[0])?;
        for input in &inputs[1..] {
            if crate::rows::count(input)? != count {
                bail!(Refusal("has inputs with different numbers of rows".to_owned()));
            }
        }
        Ok(vec![Fact::new(ElementType::F32, [count, self.width.to_dim()])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let width = self.width;
        let mut out = Vec::new();
        let mut at = 0;
        let mut pace = Pace::default();
        for (input, &columns) in inputs.iter().zip(&self.widths) {
            let rows = crate::rows::Rows::read(input)?;
            out.resize(rows.count * width, 0.0);
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(width.max(1))) {
                pace.spend(1)?;
                let shared = columns.min(row.len());
                pace.pairs(&row[..shared], &mut out[at..at + shared], |row, out| {
                    out.copy_from_slice(row);
                })?;
            }
            at += columns;
        }
        let count = out.len().checked_div(width).unwrap_or(0);
        Ok(smallvec![elements::tensor(&[count, width], out)?])
    }
}

#[derive(Debug)]
struct ArrayFeatureExtractor;

impl Kernel for ArrayFeatureExtractor {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [data, positions] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if positions.element_type != ElementType::I64 || data.rank() == 0 {
            bail!(Refusal(
                "takes a tensor with columns, and their positions as INT64".to_owned()
            ));
        }
        let count = positions.shape.iter().copied().product::<Dim>();
        let mut shape = data.shape.clone();
        shape.pop();
        if shape.is_empty() {
            shape.push(1.to_dim());
        }
        shape.push(count);
        Ok(vec![Fact::new(data.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (data, positions) = (&inputs[0], elements::elements::<i64>(&inputs[1])?);
        let width = data.shape().last().copied().unwrap_or(0);
        let positions: Vec<usize> = positions
            .iter()
            .map(|&position| match usize::try_from(position) {
                Ok(column) if column < width => Ok(column),
                _ => bail!(BadInput(format!(
                    "the index {position} is outside of a dimension of {width}"
                ))),
            })
            .collect::<Result<_>>()?;
        let mut shape: ShortVec<usize> = data.shape().into();
        shape.pop();
        if shape.is_empty() {
            shape.push(1);
        }
        shape.push(positions.len());
        let made = with_unit!(data.element_type(), U => columns::<U>(data, &positions, &shape));
        Ok(smallvec![made?])
    }
}

fn columns<U: Unit>(data: &Tensor, positions: &[usize], shape: &[usize]) -> Result<Tensor> {
    let width = data.shape().last().copied().unwrap_or(0).max(1);
    let rows = data.as_units::<U>()?.chunks_exact(width);
    let picked = rows
        .clone()
        .flat_map(|row| positions.iter().map(|&position| &row[position]));
    size::admit_contents(picked.map(|element| (element, 1)))?;
    let mut made = Vec::with_capacity(rows.len() * positions.len());
    let mut pace = Pace::default();
    for row in rows {
        for positions in positions.chunks(PART) {
            pace.spend(positions.len() as u64)?;
            made.extend(positions.iter().map(|&position| row[position].clone()));
        }
    }
    Tensor::from_units(data.element_type(), shape, made)
}
