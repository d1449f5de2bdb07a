//! LightGBM's score transformations by objective, in FP64 as in LightGBM.

use crate::{error::Refusal, meaning::Meaning};

/// The transformation of a row's scores into outputs, as in LightGBM's `predict`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Link {
    Identity,
    /// Squares the score and keeps its sign: the model was trained on square roots of the labels.
    Square,
    Exp,
    /// `1 / (1 + exp(-slope * score))` of each score.
    Logistic {
        slope: f64,
    },
    Softmax,
    /// `ln(1 + exp(score))`.
    LogOnePlusExp,
}

impl Link {
    /// Parses an objective such as `binary sigmoid:1`; `None` means a custom objective in Python.
    pub(crate) fn of_objective(text: Option<&str>) -> Result<(Self, Meaning), Refusal> {
        let mut words = text.unwrap_or("custom").split_ascii_whitespace();
        let name = words.next().unwrap_or("custom");
        let parameter = |key: &str| {
            let mut values = words
                .clone()
                .filter_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
            values.next()
        };
        let slope = || {
            let slope = parameter("sigmoid").unwrap_or("1");
            let number = slope.parse().ok().filter(|slope: &f64| *slope > 0.0);
            number.ok_or_else(|| {
                Refusal::new(format!(
                    "the objective's sigmoid is {}, expected a number above 0",
                    tensor_core::QuotedName(slope)
                ))
            })
        };
        let is_sqrt = words.clone().any(|word| word == "sqrt");
        Ok(match name {
            "regression" | "regression_l1" | "huber" | "fair" | "quantile" | "mape" => {
                let link = if is_sqrt { Self::Square } else { Self::Identity };
                (link, Meaning::Values)
            }
            "lambdarank" | "rank_xendcg" | "custom" => (Self::Identity, Meaning::Values),
            "poisson" | "gamma" | "tweedie" => (Self::Exp, Meaning::Values),
            "binary" => (Self::Logistic { slope: slope()? }, Meaning::YesOrNo),
            "cross_entropy" => (Self::Logistic { slope: 1.0 }, Meaning::Values),
            "cross_entropy_lambda" => (Self::LogOnePlusExp, Meaning::Values),
            "multiclass" => (Self::Softmax, Meaning::Classes { is_picked: false }),
            "multiclassova" => (
                Self::Logistic { slope: slope()? },
                Meaning::Classes { is_picked: false },
            ),
            other => {
                return Err(Refusal::new(format!(
                    "the objective {} is not supported, so the meaning of its scores is unknown",
                    tensor_core::QuotedName(other)
                )));
            }
        })
    }

    /// Transforms a row's scores.
    pub(crate) fn apply(self, scores: &mut [f64]) {
        let each: fn(f64) -> f64 = match self {
            Self::Identity => return,
            Self::Softmax => return softmax(scores),
            Self::Logistic { slope } => {
                for score in scores {
                    *score = 1.0 / (1.0 + (-slope * *score).exp());
                }
                return;
            }
            Self::Square => |score| {
                if score < 0.0 {
                    -(score * score)
                } else {
                    score * score
                }
            },
            Self::Exp => f64::exp,
            Self::LogOnePlusExp => |score| score.exp().ln_1p(),
        };
        scores.iter_mut().for_each(|score| *score = each(*score));
    }
}

fn softmax(scores: &mut [f64]) {
    let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - greatest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}
