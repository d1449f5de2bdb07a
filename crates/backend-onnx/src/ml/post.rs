//! Transformations of scores: ONNX's `post_transform`, as ONNX Runtime computes it.

use tract_hir::internal::*;

use crate::{faults::Refusal, ops::Attributes};

/// A transformation of a row of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostTransform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

/// How one score becomes two, for classifiers of two classes that compute one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// It does not.
    None,
    /// The score is a probability: the other class has the rest of 1.
    Rest,
    /// The score is a margin: the other class has its opposite.
    Opposite,
}

impl PostTransform {
    pub(crate) fn read(attributes: Attributes<'_>) -> TractResult<Self> {
        Ok(match attributes.text("post_transform", "NONE") {
            "NONE" => Self::None,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => bail!(Refusal(format!("has an unknown post_transform '{other}'"))),
        })
    }

    /// Transforms a row of two or more scores.
    pub(crate) fn apply(self, scores: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
            Self::Softmax => {
                let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                scores
                    .iter_mut()
                    .for_each(|score| *score = (*score - greatest).exp());
                divide_by_sum(scores);
            }
            Self::SoftmaxZero => {
                let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                for score in scores.iter_mut() {
                    *score = match score.abs() > 1e-7 {
                        true => (*score - greatest).exp(),
                        false => *score * (-greatest).exp(),
                    };
                }
                divide_by_sum(scores);
            }
        }
    }

    /// Transforms a single score into `out`, which has room for two if there is to be a second.
    pub(crate) fn apply_to_one(self, score: f32, second: Second, out: &mut [f32]) {
        let pair = match (self, second) {
            (Self::Probit, _) => {
                out[0] = probit(score);
                return;
            }
            (_, Second::None) => {
                out[0] = score;
                return;
            }
            (_, Second::Rest) => [1.0 - score, score],
            (Self::Logistic, Second::Opposite) => [logistic(-score), logistic(score)],
            (_, Second::Opposite) => [-score, score],
        };
        out.copy_from_slice(&pair);
    }
}

fn divide_by_sum(scores: &mut [f32]) {
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

pub(crate) fn logistic(score: f32) -> f32 {
    let positive = 1.0 / (1.0 + (-score.abs()).exp());
    if score < 0.0 { 1.0 - positive } else { positive }
}

/// ONNX Runtime's approximation, constants included.
fn probit(score: f32) -> f32 {
    #[allow(clippy::approx_constant, reason = "ONNX Runtime's constants")]
    const PI: f32 = 3.14159;
    const A: f32 = 0.147;
    let x = 2.0 * score - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let half = 2.0 / (PI * A) + 0.5 * log;
    let inverse = (-half + (half * half - log / A).sqrt()).sqrt();
    std::f32::consts::SQRT_2 * if x < 0.0 { -inverse } else { inverse }
}
