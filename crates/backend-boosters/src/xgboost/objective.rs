//! XGBoost's score transformations by objective, in FP32 as in XGBoost.

use crate::{error::Refusal, meaning::Meaning};

/// The transformation of a row's scores into outputs, as in XGBoost's `predict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Identity,
    Logistic,
    Hinge,
    Exp,
    Softmax,
}

impl Link {
    /// Returns the transformation of an objective, and the meaning of its scores.
    pub(crate) fn of_objective(name: &str) -> Result<(Self, Meaning), Refusal> {
        Ok(match name {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "reg:quantileerror"
            | "reg:expectileerror"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => (Self::Identity, Meaning::Values),
            "reg:logistic" => (Self::Logistic, Meaning::Values),
            "binary:logistic" => (Self::Logistic, Meaning::YesOrNo),
            "binary:logitraw" => (Self::Identity, Meaning::YesOrNo),
            "binary:hinge" => (Self::Hinge, Meaning::YesOrNo),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Self::Exp, Meaning::Values)
            }
            "multi:softmax" => (Self::Softmax, Meaning::Classes { is_picked: true }),
            "multi:softprob" => (Self::Softmax, Meaning::Classes { is_picked: false }),
            other => {
                return Err(Refusal::new(format!(
                    "the objective {} is not supported, so the meaning of its scores is unknown",
                    tensor_core::QuotedName(other)
                )));
            }
        })
    }

    /// Converts a base score of the file to the initial value of the sum.
    pub(crate) fn margin(self, base: f32) -> Result<f32, Refusal> {
        match self {
            Self::Logistic if !(base > 0.0 && base < 1.0) => Err(Refusal::new(format!(
                "base_score is {base}, expected a number between 0 and 1 for this objective"
            ))),
            Self::Logistic => Ok(-(1.0 / base - 1.0).ln()),
            Self::Exp => Ok(base.ln()),
            _ => Ok(base),
        }
    }

    /// Transforms a row's scores.
    pub(crate) fn apply(self, scores: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Hinge => scores
                .iter_mut()
                .for_each(|score| *score = if *score > 0.0 { 1.0 } else { 0.0 }),
            Self::Exp => scores.iter_mut().for_each(|score| *score = score.exp()),
            Self::Softmax => softmax(scores),
        }
    }
}

/// Computes the logistic function with XGBoost's bounds, so that very negative scores do not overflow.
fn logistic(score: f32) -> f32 {
    1.0 / ((-score).min(88.7).exp() + 1.0 + 1e-16)
}

fn softmax(scores: &mut [f32]) {
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for score in scores.iter_mut() {
        *score = (*score - greatest).exp();
        sum += f64::from(*score);
    }
    scores.iter_mut().for_each(|score| *score /= sum as f32);
}
