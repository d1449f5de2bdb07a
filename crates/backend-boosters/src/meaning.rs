//! The meaning of a model's scores.

/// The meaning of scores, after the package's transformation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Numbers of any kind.
    Values,
    /// For each score, the probability of "yes".
    YesOrNo,
    /// The probability of each class. If `is_picked` is set, the package's own `predict` returns the most
    /// probable class.
    Classes { is_picked: bool },
}
