//! XGBoost's transformations of scores by objective. In `f32`, as there.

use crate::{error::Refusal, meaning::Meaning};

/// How a row's scores become its outputs, as XGBoost's `predict` does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Identity,
    /// The base score is a probability all the same.
    LogisticMargin,
    Logistic,
    Hinge,
    Exp,
    Softmax,
}

impl Link {
    /// What an objective computes.
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
            "binary:logitraw" => (Self::LogisticMargin, Meaning::YesOrNo),
            "binary:hinge" => (Self::Hinge, Meaning::YesOrNo),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Self::Exp, Meaning::Values)
            }
            "multi:softmax" => (Self::Softmax, Meaning::Classes { is_picked: true }),
            "multi:softprob" => (Self::Softmax, Meaning::Classes { is_picked: false }),
            other => {
                return Err(Refusal::new(format!(
                    "the objective {} is not supported, so the meaning of its scores is unknown",
                    tensor_core::Quoted(other)
                )));
            }
        })
    }

    /// The score that trees add to, of a base score as files have it.
    pub(crate) fn margin(self, base: f32) -> Result<f32, Refusal> {
        match self {
            Self::Logistic if !(base > 0.0 && base < 1.0) => Err(Refusal::new(format!(
                "base_score is {base}, for this objective it is between 0 and 1"
            ))),
            Self::Logistic => Ok(-(1.0 / base - 1.0).ln()),
            Self::Exp => Ok(base.ln()),
            _ => Ok(base),
        }
    }

    /// Transforms a row's scores.
    pub(crate) fn apply(self, scores: &mut [f32]) {
        match self {
            Self::Identity | Self::LogisticMargin => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Hinge => scores
                .iter_mut()
                .for_each(|score| *score = if *score > 0.0 { 1.0 } else { 0.0 }),
            Self::Exp => scores.iter_mut().for_each(|score| *score = score.exp()),
            Self::Softmax => softmax(scores),
        }
    }
}

/// With XGBoost's bounds: nothing is below 0, and what is far below 0 does not overflow.
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
