//! What a model's scores are.

/// What scores are, once they are transformed as the package does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Numbers of any kind.
    Values,
    /// Of each score, how likely "yes" is.
    YesOrNo,
    /// How likely each class is. The package's own answer is the likeliest class if `is_picked`.
    Classes { is_picked: bool },
}
