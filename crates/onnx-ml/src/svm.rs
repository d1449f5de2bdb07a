//! `SVMRegressor` and `SVMClassifier`, as ONNX Runtime computes them.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    post::{PostTransform, Single, logistic},
    rows::{self, Labels, Rows},
};
use onnx_tensor::{
    cancelling::Pace,
    elements,
    faults::{BadInput, Refusal},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
};

/// Creates the operator `SVMRegressor`.
pub fn regressor(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let coefficients = attributes.floats("coefficients").to_vec();
    // ONNX Runtime does not support a transformation of regressor scores either.
    if PostTransform::read(attributes)? != PostTransform::None {
        bail!(Refusal("has a post_transform, which is not supported".to_owned()));
    }
    let vectors = usize::try_from(attributes.int("n_supports", 0)).unwrap_or(0);
    let machine = Machine::read(attributes, vectors, coefficients.len())?;
    let [bias, ..] = *attributes.floats("rho") else {
        bail!(Refusal("has no rho".to_owned()));
    };
    if vectors > 0 && coefficients.len() != vectors {
        bail!(Refusal(format!(
            "has {} coefficients for {vectors} support vectors",
            coefficients.len()
        )));
    }
    Ok(kernel(Regressor {
        machine,
        coefficients,
        bias,
        is_one_class: attributes.int("one_class", 0) != 0,
    }))
}

/// Creates the operator `SVMClassifier`.
pub fn classifier(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let labels = Labels::read(attributes, "classlabels_ints", "classlabels_strings")?;
    let classes = labels.len();
    let counts: Option<Vec<usize>> = attributes
        .ints("vectors_per_class")
        .iter()
        .map(|&count| usize::try_from(count).ok())
        .collect();
    let counts = counts.unwrap_or_default();
    let vectors = counts
        .iter()
        .try_fold(0usize, |sum, &count| sum.checked_add(count));
    let vectors = vectors.ok_or_else(|| Refusal("has too many support vectors".to_owned()))?;
    let coefficients = attributes.floats("coefficients").to_vec();
    let rho = attributes.floats("rho").to_vec();
    let (slopes, offsets) = (
        attributes.floats("prob_a").to_vec(),
        attributes.floats("prob_b").to_vec(),
    );
    let pairs = classes * classes.saturating_sub(1) / 2;
    let fits = match vectors {
        0 => classes > 1 && coefficients.len() % classes == 0 && !rho.is_empty() && slopes.is_empty(),
        _ => {
            counts.len() == classes
                && classes > 1
                && Some(coefficients.len()) == vectors.checked_mul(classes - 1)
                && rho.len() == pairs
                && (slopes.is_empty() || slopes.len() == pairs)
                && slopes.len() == offsets.len()
        }
    };
    if !fits {
        bail!(Refusal(
            "has coefficients, offsets and classes that do not fit together".to_owned()
        ));
    }
    let width = if vectors == 0 {
        coefficients.len() / classes
    } else {
        0
    };
    let classifier = Classifier {
        machine: Machine::read(attributes, vectors, width)?,
        counts,
        all_positive: coefficients.iter().all(|&coefficient| coefficient >= 0.0),
        coefficients,
        rho,
        slopes,
        offsets,
        post: PostTransform::read(attributes)?,
        labels,
    };
    if classifier.has_single() {
        classifier.post.check_pair()?;
    }
    Ok(kernel(classifier))
}

/// A kernel function, its parameters and the support vectors.
#[derive(Debug)]
struct Machine {
    function: Function,
    /// The support vectors in row-major order.
    vectors: Vec<f32>,
    count: usize,
    features: usize,
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Linear,
    Poly { gamma: f32, coef0: f32, degree: f32 },
    Rbf { gamma: f32 },
    Sigmoid { gamma: f32, coef0: f32 },
}

impl Machine {
    /// Reads a kernel with `count` support vectors. Without support vectors the model is linear, and rows
    /// have `linear_width` features.
    fn read(attributes: Attributes<'_>, count: usize, linear_width: usize) -> Result<Self> {
        let parameter = |index: usize| {
            attributes
                .floats("kernel_params")
                .get(index)
                .copied()
                .unwrap_or(0.0)
        };
        let (gamma, coef0, degree) = (parameter(0), parameter(1), parameter(2));
        let function = match attributes.text("kernel_type", "LINEAR") {
            _ if count == 0 => Function::Linear,
            "LINEAR" => Function::Linear,
            "POLY" => Function::Poly { gamma, coef0, degree },
            "RBF" => Function::Rbf { gamma },
            "SIGMOID" => Function::Sigmoid { gamma, coef0 },
            other => bail!(Refusal(format!("has an unknown kernel_type '{other}'"))),
        };
        let vectors = attributes.floats("support_vectors").to_vec();
        let features = match count {
            0 => linear_width,
            count if vectors.len().is_multiple_of(count) => vectors.len() / count,
            _ => bail!(Refusal(format!(
                "has {} numbers for {count} support vectors",
                vectors.len()
            ))),
        };
        Ok(Self {
            function,
            vectors,
            count,
            features,
        })
    }

    fn check(&self, rows: &Rows<'_, f32>) -> Result<()> {
        if rows.width == self.features {
            return Ok(());
        }
        let (needed, found) = (self.features, rows.width);
        bail!(BadInput(format!("{needed} features are needed, found {found}")))
    }

    /// Writes the kernel value of `row` and each support vector to `values`.
    fn values(&self, row: &[f32], values: &mut Vec<f32>, pace: &mut Pace) -> Result<()> {
        pace.spend((self.count as u64).saturating_mul(8 + self.features as u64))?;
        values.clear();
        let vectors = (0..self.count).map(|index| &self.vectors[index * self.features..][..self.features]);
        values.extend(vectors.map(|vector| match self.function {
            Function::Linear => crate::dot(row, vector),
            Function::Poly { gamma, coef0, degree } => (gamma * crate::dot(row, vector) + coef0).powf(degree),
            Function::Sigmoid { gamma, coef0 } => (gamma * crate::dot(row, vector) + coef0).tanh(),
            Function::Rbf { gamma } => {
                let distance: f32 = row.iter().zip(vector).map(|(a, b)| (a - b) * (a - b)).sum();
                (-gamma * distance).exp()
            }
        }));
        Ok(())
    }
}

#[derive(Debug)]
struct Regressor {
    machine: Machine,
    coefficients: Vec<f32>,
    bias: f32,
    /// `one_class`: whether the output is 1 for inliers and -1 for outliers instead of the score.
    is_one_class: bool,
}

impl Kernel for Regressor {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        expect_single(&inputs[0])?;
        Ok(vec![Fact::new(
            ElementType::F32,
            [rows::count(&inputs[0])?, 1.to_dim()],
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = Rows::read(&inputs[0])?;
        self.machine.check(&rows)?;
        let mut values = Vec::new();
        let mut pace = Pace::default();
        let mut scores = Vec::with_capacity(rows.count);
        for row in rows.iter() {
            let row = match self.machine.count {
                0 => row,
                _ => {
                    self.machine.values(row, &mut values, &mut pace)?;
                    &values
                }
            };
            pace.spend(row.len() as u64)?;
            let score = crate::dot(row, &self.coefficients) + self.bias;
            scores.push(match self.is_one_class {
                true if score > 0.0 => 1.0,
                true => -1.0,
                false => score,
            });
        }
        Ok(smallvec![elements::tensor(&[rows.count, 1], scores)?])
    }
}

#[derive(Debug)]
struct Classifier {
    machine: Machine,
    /// The number of support vectors of each class; empty for a linear model.
    counts: Vec<usize>,
    coefficients: Vec<f32>,
    rho: Vec<f32>,
    slopes: Vec<f32>,
    offsets: Vec<f32>,
    all_positive: bool,
    post: PostTransform,
    labels: Labels,
}

impl Classifier {
    fn classes(&self) -> usize {
        self.labels.len()
    }

    /// Returns the number of score columns: one per class with probabilities or for a linear model; otherwise
    /// one per pair of classes, or two if there is only one pair.
    fn width(&self) -> usize {
        let classes = self.classes();
        match self.counts.is_empty() || !self.slopes.is_empty() {
            true => classes,
            false if classes > 2 => self.rho.len(),
            false => 2,
        }
    }

    /// Returns whether two classes share the score of their only pair.
    fn has_single(&self) -> bool {
        self.classes() == 2 && !self.counts.is_empty() && self.slopes.is_empty()
    }

    /// Returns the meaning of the single score. ONNX Runtime treats the score as a margin only if there is no
    /// transformation.
    fn single(&self) -> Single {
        match self.post {
            PostTransform::None => Single::Margin,
            _ => Single::Probability,
        }
    }

    /// Returns the class of a linear model's greatest score. With two classes, returns the second class
    /// whenever the greatest score exceeds the threshold.
    fn greatest(&self, scores: &[f32]) -> usize {
        let greatest = crate::greatest(scores);
        let is_second = match scores[greatest] {
            score if self.all_positive => score >= 0.5,
            score => score > 0.0,
        };
        if self.classes() == 2 && is_second {
            1
        } else {
            greatest
        }
    }

    /// Computes the decision value of each pair of classes, and counts the votes for each class.
    fn duels(&self, values: &[f32], scores: &mut Vec<f32>, votes: &mut [u32]) {
        let vectors = self.machine.count;
        let mut starts = Vec::with_capacity(self.classes());
        let mut start = 0;
        for count in &self.counts {
            starts.push(start);
            start += count;
        }
        scores.clear();
        votes.fill(0);
        for i in 0..self.classes() {
            for j in i + 1..self.classes() {
                let part = |row: usize, class: usize| -> f64 {
                    let own = starts[class]..starts[class] + self.counts[class];
                    let coefficients = &self.coefficients[row * vectors..][own.clone()];
                    let products = coefficients.iter().zip(&values[own]);
                    products.map(|(&a, &b)| f64::from(a * b)).sum()
                };
                let sum = part(j - 1, i) + part(i, j) + f64::from(self.rho[scores.len()]);
                scores.push(sum as f32);
                votes[if sum > 0.0 { i } else { j }] += 1;
            }
        }
    }

    /// Computes class probabilities from pairwise scores.
    fn probabilities(&self, scores: &[f32], out: &mut [f32], pace: &mut Pace) -> Result<()> {
        let classes = self.classes();
        let mut pairs = vec![0.0f32; classes * classes];
        let mut index = 0;
        for i in 0..classes {
            for j in i + 1..classes {
                let margin = scores[index] * self.slopes[index] + self.offsets[index];
                let won = (1.0 - logistic(margin)).clamp(1e-7, 1.0 - 1e-7);
                pairs[i * classes + j] = won;
                pairs[j * classes + i] = 1.0 - won;
                index += 1;
            }
        }
        couple(classes, &pairs, out, pace)
    }
}

impl Kernel for Classifier {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let count = rows::count(&inputs[0])?;
        Ok(vec![
            Fact::new(self.labels.element_type(), [count]),
            Fact::new(ElementType::F32, [count, self.width().to_dim()]),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = Rows::read(&inputs[0])?;
        self.machine.check(&rows)?;
        let (classes, width) = (self.classes(), self.width());
        let mut out = vec![0.0f32; rows.count * width];
        let mut winners = Vec::with_capacity(rows.count);
        let (mut values, mut scores, mut votes) = (Vec::new(), Vec::new(), vec![0u32; classes]);
        let mut pace = Pace::default();
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
            if self.counts.is_empty() {
                pace.spend(self.coefficients.len() as u64)?;
                let coefficients = self.coefficients.chunks_exact(self.machine.features.max(1));
                scores.clear();
                scores.extend(coefficients.map(|coefficients| crate::dot(row, coefficients) + self.rho[0]));
                winners.push(self.greatest(&scores));
            } else {
                self.machine.values(row, &mut values, &mut pace)?;
                // Each support vector contributes once for every class other than its own.
                pace.spend((classes * (classes + self.machine.count)) as u64)?;
                self.duels(&values, &mut scores, &mut votes);
                // As in libsvm, votes decide the class even if there are probabilities, so the most probable
                // class may differ.
                winners.push(most_votes(&votes));
                if !self.slopes.is_empty() {
                    self.probabilities(&scores, out, &mut pace)?;
                    scores.clear();
                    scores.extend_from_slice(out);
                }
            }
            match *scores {
                [score] => out.copy_from_slice(&self.post.pair(score, self.single())),
                _ => {
                    self.post.apply(&mut scores);
                    out.copy_from_slice(&scores);
                }
            }
        }
        Ok(smallvec![
            self.labels.of(&winners)?,
            elements::tensor(&[rows.count, width], out)?
        ])
    }
}

/// Returns the class with the most votes, the first one on ties.
fn most_votes(votes: &[u32]) -> usize {
    let mut most = 0;
    for (class, count) in votes.iter().enumerate() {
        if *count > votes[most] {
            most = class;
        }
    }
    most
}

/// Combines pairwise probabilities into class probabilities with the iteration of libsvm.
fn couple(classes: usize, pairs: &[f32], out: &mut [f32], pace: &mut Pace) -> Result<()> {
    let at = |i: usize, j: usize| i * classes + j;
    let mut q = vec![0.0f32; classes * classes];
    for i in 0..classes {
        for j in 0..classes {
            if i != j {
                q[at(i, i)] += pairs[at(j, i)] * pairs[at(j, i)];
                q[at(i, j)] = -pairs[at(j, i)] * pairs[at(i, j)];
            }
        }
    }
    out.fill(1.0 / classes as f32);
    let tolerance = 0.005 / classes as f32;
    let mut qp = vec![0.0f32; classes];
    for _ in 0..100 {
        pace.spend((2 * classes * classes) as u64)?;
        let mut pqp = 0.0;
        for i in 0..classes {
            qp[i] = (0..classes).map(|j| q[at(i, j)] * out[j]).sum();
            pqp += out[i] * qp[i];
        }
        if qp.iter().all(|qp| (qp - pqp).abs() < tolerance) {
            break;
        }
        for i in 0..classes {
            let change = (pqp - qp[i]) / q[at(i, i)];
            out[i] += change;
            pqp = (pqp + change * (change * q[at(i, i)] + 2.0 * qp[i])) / (1.0 + change) / (1.0 + change);
            for j in 0..classes {
                qp[j] = (qp[j] + change * q[at(i, j)]) / (1.0 + change);
                out[j] /= 1.0 + change;
            }
        }
    }
    Ok(())
}

/// Checks that the input is FP32, the only type that ONNX Runtime accepts for regressors.
fn expect_single(input: &Fact) -> Result<()> {
    if input.element_type == ElementType::F32 {
        return Ok(());
    }
    bail!(Refusal("takes FP32 only".to_owned()))
}
