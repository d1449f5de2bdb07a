//! XGBoost's linear booster: scores are weighted sums of the features.

use crate::error::Refusal;

/// A linear model, `gblinear`.
#[derive(Debug)]
pub(crate) struct Linear {
    /// One weight per score for each feature, followed by one weight per score for the bias.
    weights: Vec<f32>,
    /// The initial value of every score.
    start: f32,
    scores: usize,
}

impl Linear {
    /// Creates a linear model. XGBoost uses the first base score for all scores of a linear model.
    pub(crate) fn new(weights: Vec<f32>, features: usize, start: &[f32]) -> Result<Self, Refusal> {
        let scores = start.len();
        let (expected, found) = ((features + 1) * scores, weights.len());
        if expected != found {
            return Err(Refusal::new(format!(
                "{features} features and {scores} scores need {expected} weights, found {found}"
            )));
        }
        Ok(Self {
            weights,
            start: start.first().copied().unwrap_or_default(),
            scores,
        })
    }

    /// Computes the scores of a row. A missing feature contributes 0.
    pub(crate) fn score(&self, features: &[f32], scores: &mut [f32]) {
        let count = self.scores;
        let (weights, biases) = self.weights.split_at(features.len() * count);
        for (score, out) in scores.iter_mut().enumerate() {
            *out = biases[score] + self.start;
            for (feature, weights) in features.iter().zip(weights.chunks_exact(count)) {
                if !feature.is_nan() {
                    *out += feature * weights[score];
                }
            }
        }
    }
}
