//! The operators `LinearRegressor` and `LinearClassifier`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    post::{PostTransform, Single},
    rows::{self, Labels, Rows},
};
use onnx_tensor::{
    cancelling::Pace,
    elements,
    faults::Refusal,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
};

/// Creates the operator `LinearRegressor`.
pub fn regressor(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let targets = usize::try_from(attributes.int("targets", 1)).unwrap_or(0);
    Ok(kernel(Regressor {
        scores: Scores::read(attributes, targets)?,
        post: PostTransform::read(attributes)?,
    }))
}

/// Creates the operator `LinearClassifier`.
pub fn classifier(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let labels = Labels::read(attributes, "classlabels_ints", "classlabels_strings")?;
    let intercepts = attributes.floats("intercepts").len();
    let classes = if intercepts == 0 { labels.len() } else { intercepts };
    let is_binary = classes == 1 && labels.len() == 2;
    if classes != labels.len() && !is_binary {
        bail!(Refusal(format!(
            "has {} labels for {classes} classes",
            labels.len()
        )));
    }
    if classes == 1 && !is_binary {
        bail!(Refusal("has a single class".to_owned()));
    }
    let post = PostTransform::read(attributes)?;
    if is_binary {
        post.check_pair()?;
    }
    Ok(kernel(Classifier {
        scores: Scores::read(attributes, classes)?,
        post,
        labels,
        is_binary,
    }))
}

/// Computes scores as linear combinations of the features.
#[derive(Debug)]
struct Scores {
    /// The coefficients in row-major order, with one row per score.
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
    features: usize,
}

impl Scores {
    fn read(attributes: Attributes<'_>, count: usize) -> Result<Self> {
        let coefficients = attributes.floats("coefficients").to_vec();
        let mut intercepts = attributes.floats("intercepts").to_vec();
        // `count` comes from the file, so the number of coefficients limits it before memory is allocated.
        if intercepts.is_empty() && count <= coefficients.len() {
            intercepts = vec![0.0; count];
        }
        if count == 0
            || intercepts.len() != count
            || coefficients.is_empty()
            || !coefficients.len().is_multiple_of(count)
        {
            let (coefficients, intercepts) = (coefficients.len(), intercepts.len());
            bail!(Refusal(format!(
                "has {coefficients} coefficients and {intercepts} intercepts for {count} scores"
            )));
        }
        Ok(Self {
            features: coefficients.len() / count,
            coefficients,
            intercepts,
        })
    }

    fn count(&self) -> usize {
        self.intercepts.len()
    }

    fn of(&self, row: &[f32], scores: &mut [f32], pace: &mut Pace) -> Result<()> {
        pace.spend(self.coefficients.len() as u64)?;
        let coefficients = self.coefficients.chunks_exact(self.features);
        for ((score, coefficients), intercept) in scores.iter_mut().zip(coefficients).zip(&self.intercepts) {
            *score = crate::dot(row, coefficients) + intercept;
        }
        Ok(())
    }

    fn check(&self, rows: &Rows<'_, f32>) -> Result<()> {
        if rows.width == self.features {
            return Ok(());
        }
        let (needed, found) = (self.features, rows.width);
        bail!(onnx_tensor::faults::BadInput(format!(
            "{needed} features are needed, found {found}"
        )))
    }
}

#[derive(Debug)]
struct Regressor {
    scores: Scores,
    post: PostTransform,
}

impl Kernel for Regressor {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let shape = [rows::count(&inputs[0])?, self.scores.count().to_dim()];
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = Rows::read(&inputs[0])?;
        self.scores.check(&rows)?;
        let targets = self.scores.count();
        let mut out = vec![0.0; rows.count * targets];
        let mut pace = Pace::default();
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(targets)) {
            self.scores.of(row, out, &mut pace)?;
            match out {
                [score] => *score = self.post.single_target(*score),
                _ => self.post.apply(out),
            }
        }
        Ok(smallvec![elements::tensor(&[rows.count, targets], out)?])
    }
}

#[derive(Debug)]
struct Classifier {
    scores: Scores,
    post: PostTransform,
    labels: Labels,
    /// Whether a single score decides between two classes.
    is_binary: bool,
}

impl Kernel for Classifier {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let count = rows::count(&inputs[0])?;
        Ok(vec![
            Fact::new(self.labels.element_type(), [count]),
            Fact::new(ElementType::F32, [count, self.labels.len().to_dim()]),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = Rows::read(&inputs[0])?;
        self.scores.check(&rows)?;
        let width = self.labels.len();
        let mut out = vec![0.0; rows.count * width];
        let mut classes = Vec::with_capacity(rows.count);
        let mut pace = Pace::default();
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
            if self.is_binary {
                let mut score = [0.0];
                self.scores.of(row, &mut score, &mut pace)?;
                classes.push(usize::from(score[0] > 0.0));
                out.copy_from_slice(&self.post.pair(score[0], Single::Probability));
            } else {
                self.scores.of(row, out, &mut pace)?;
                classes.push(crate::greatest(out));
                self.post.apply(out);
            }
        }
        Ok(smallvec![
            self.labels.of(&classes)?,
            elements::tensor(&[rows.count, width], out)?
        ])
    }
}
