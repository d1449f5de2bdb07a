//! Transforms scores by the attribute `post_transform`, as ONNX Runtime does.

use onnx_tensor::prelude::*;

use onnx_tensor::{faults::Refusal, node::Attributes};

/// The transformations of a row's scores that a node can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostTransform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

/// The meaning of the single score of a binary classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Single {
    /// The score is the probability of the second class; the probability of the first class is `1 - score`.
    Probability,
    /// The score is the margin of the second class; the margin of the first class is `-score`.
    Margin,
}

impl PostTransform {
    pub(crate) fn read(attributes: Attributes<'_>) -> Result<Self> {
        Ok(match attributes.text("post_transform", "NONE") {
            "NONE" => Self::None,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => bail!(Refusal(format!("has an unknown post_transform '{other}'"))),
        })
    }

    /// Transforms the two or more scores of a row in place.
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

    /// Returns the scores of both classes of a binary classifier from its single score. Only the logistic
    /// function turns margins into probabilities; ONNX Runtime ignores the other transformations.
    pub(crate) fn pair(self, score: f32, single: Single) -> [f32; 2] {
        match (self, single) {
            (Self::Logistic, _) => [logistic(-score), logistic(score)],
            (_, Single::Probability) => [1.0 - score, score],
            (_, Single::Margin) => [-score, score],
        }
    }

    /// Transforms the score of a regressor with one target. Softmax and logistic leave the score unchanged:
    /// ONNX Runtime applies them only to several targets.
    pub(crate) fn single_target(self, score: f32) -> f32 {
        match self {
            Self::Probit => probit(score),
            _ => score,
        }
    }

    /// Checks that the transformation is defined for the single score of a binary classifier.
    ///
    /// # Errors
    /// Fails for PROBIT: ONNX Runtime transforms the score and leaves the output of the other class
    /// uninitialized.
    pub(crate) fn check_pair(self) -> Result<()> {
        if self == Self::Probit {
            bail!(Refusal(
                "has the post_transform PROBIT and one score for two classes, which leaves the other class without a \
                 value; give each class a score, or apply PROBIT to the output"
                    .to_owned()
            ));
        }
        Ok(())
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

/// Approximates the probit function with the formula and constants of ONNX Runtime.
fn probit(score: f32) -> f32 {
    #[allow(clippy::approx_constant, reason = "ONNX Runtime's constants")]
    const PI: f32 = 3.14159;
    const A: f32 = 0.147;
    let x = 2.0 * score - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let half = 2.0 / (PI * A) + 0.5 * log;
    let inverse = (-half + (half * half - 1.0 / A * log).sqrt()).sqrt();
    std::f32::consts::SQRT_2 * if x < 0.0 { -inverse } else { inverse }
}
