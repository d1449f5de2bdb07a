//! Limits on what a tokenizer's file may declare and on the cost of a text.

/// Limits for a tokenizer's file and for texts. The defaults accept the tokenizers of common models.
///
/// ```
/// use oip_text::TokenizerLimits;
///
/// let limits = TokenizerLimits::default().with(|limits| limits.max_text_bytes = 4096);
/// assert_eq!(limits.max_text_bytes, 4096);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TokenizerLimits {
    /// Maximum size of `tokenizer.json` in bytes.
    pub max_file_bytes: usize,
    /// Maximum number of tokens in the vocabulary. The file may have at most four times as many merges.
    pub max_vocabulary: usize,
    /// Maximum number of tokens in `added_tokens`.
    pub max_added_tokens: usize,
    /// Maximum factor by which all `Replace` and `Precompiled` normalizers together may lengthen a text.
    pub max_growth: usize,
    /// Maximum number of characters of a word that `WordPiece` looks up; the time grows with the cube of this
    /// number.
    pub max_word_chars: u64,
    /// Maximum size of one text in bytes. Longer texts are refused before tokenization, which cannot be
    /// interrupted.
    pub max_text_bytes: usize,
}

impl Default for TokenizerLimits {
    fn default() -> Self {
        Self {
            max_file_bytes: 64 << 20,
            max_vocabulary: 2_000_000,
            max_added_tokens: 100_000,
            max_growth: 128,
            max_word_chars: 200,
            max_text_bytes: 128 << 10,
        }
    }
}

impl TokenizerLimits {
    /// Returns the limits with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
