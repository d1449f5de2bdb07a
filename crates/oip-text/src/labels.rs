//! Converts a model's logits to scores, and class indices to labels.

use serde_json::{Map, Value as Json};

/// How logits become scores.
///
/// ```
/// use oip_text::Activation;
///
/// let mut scores = [0.0, 0.0];
/// Activation::Softmax.apply(&mut scores);
/// assert_eq!(scores, [0.5, 0.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// Softmax over all classes, which exclude each other: the scores sum to 1.
    Softmax,
    /// Sigmoid of each logit: each class has a separate score between 0 and 1.
    Sigmoid,
    /// The logits are the scores, for example for regression.
    Identity,
}

impl Activation {
    /// Converts one row of logits to scores.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Sigmoid => logits
                .iter_mut()
                .for_each(|logit| *logit = 1.0 / (1.0 + (-*logit).exp())),
            Self::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                for logit in logits.iter_mut() {
                    *logit = (*logit - largest).exp();
                }
                let sum: f32 = logits.iter().sum();
                for logit in logits {
                    *logit /= sum;
                }
            }
        }
    }
}

/// Returns the index of the highest score; of equal scores, the first. Returns `None` if `scores` is empty.
#[must_use]
pub fn best(scores: &[f32]) -> Option<usize> {
    let indices = 0..scores.len();
    indices.reduce(|best, index| if scores[index] > scores[best] { index } else { best })
}

/// Returns the labels in a `config.json`'s `id2label`, ordered by class; `None` unless the map has every
/// class from 0 to the last.
pub(crate) fn of_config(labels: &Map<String, Json>) -> Option<Vec<String>> {
    let label = |index: usize| Some(labels.get(&index.to_string())?.as_str()?.to_owned());
    (0..labels.len()).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_large_logits_are_finite() {
        let mut scores = [1000.0, 999.0, -1000.0];
        Activation::Softmax.apply(&mut scores);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(best(&scores), Some(0));
        let mut scores = [-1000.0, 1000.0];
        Activation::Sigmoid.apply(&mut scores);
        assert_eq!(scores, [0.0, 1.0]);
    }

    #[test]
    fn labels_must_name_each_class() {
        let read = |text: &str| of_config(serde_json::from_str::<Json>(text).unwrap().as_object().unwrap());
        assert_eq!(read(r#"{"1": "b", "0": "a"}"#).unwrap(), ["a", "b"]);
        assert_eq!(read(r#"{"0": "a", "2": "c"}"#), None);
    }
}
