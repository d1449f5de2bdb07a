//! Transforms scores by the attribute `post_transform`, as ONNX Runtime does.

use num_traits::Float;
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
    pub(crate) fn apply<T: Float>(self, scores: &mut [T]) {
        match self {
            Self::None => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
            Self::Softmax => {
                let greatest = greatest(scores);
                scores
                    .iter_mut()
                    .for_each(|score| *score = (*score - greatest).exp());
                divide_by_sum(scores);
            }
            Self::SoftmaxZero => {
                let greatest = greatest(scores);
                let least = constant(1e-7);
                for score in scores.iter_mut() {
                    *score = match score.abs() > least {
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
    pub(crate) fn single_target<T: Float>(self, score: T) -> T {
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

fn constant<T: Float>(value: f64) -> T {
    T::from(value).expect("FP32 and FP64 represent every constant")
}

fn greatest<T: Float>(scores: &[T]) -> T {
    scores.iter().copied().fold(T::neg_infinity(), T::max)
}

fn divide_by_sum<T: Float>(scores: &mut [T]) {
    let sum = scores.iter().fold(T::zero(), |sum, &score| sum + score);
    scores.iter_mut().for_each(|score| *score = *score / sum);
}

pub(crate) fn logistic<T: Float>(score: T) -> T {
    let positive = (T::one() + (-score.abs()).exp()).recip();
    if score < T::zero() {
        T::one() - positive
    } else {
        positive
    }
}

/// Approximates the probit function with the formula and constants of ONNX Runtime.
fn probit<T: Float>(score: T) -> T {
    #[allow(clippy::approx_constant, reason = "ONNX Runtime's constants")]
    const PI: f64 = 3.14159;
    let (one, two, a) = (T::one(), constant::<T>(2.0), constant::<T>(0.147));
    let x = two * score - one;
    let log = ((one - x) * (one + x)).ln();
    let half = two / (constant::<T>(PI) * a) + constant::<T>(0.5) * log;
    let inverse = (-half + (half * half - one / a * log).sqrt()).sqrt();
    constant::<T>(std::f64::consts::SQRT_2) * if x < T::zero() { -inverse } else { inverse }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_fp64_keep_their_precision() {
        let mut scores = [1.0_f64, 2.0];
        PostTransform::Softmax.apply(&mut scores);
        let expected = 1.0 / (1.0 + 1.0_f64.exp());
        assert!((scores[0] - expected).abs() < 1e-15, "{scores:?}");

        let mut scores = [-0.5_f64, 0.0];
        PostTransform::Logistic.apply(&mut scores);
        assert!(
            (scores[0] - 1.0 / (1.0 + 0.5_f64.exp())).abs() < 1e-15,
            "{scores:?}"
        );
        assert_eq!(scores[1], 0.5);
    }

    #[test]
    fn probit_of_fp64_is_that_of_fp32() {
        for score in [0.01, 0.3, 0.5, 0.9] {
            let single = f64::from(PostTransform::Probit.single_target(score as f32));
            let double = PostTransform::Probit.single_target(score);
            assert!((single - double).abs() < 1e-5, "{score}: {single} and {double}");
        }
    }
}
